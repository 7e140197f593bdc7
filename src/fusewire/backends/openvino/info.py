"""Who the backend is. Plain data; must never import the engine."""

from importlib import metadata

from fusewire.backend import BackendInfo


def _engine_version() -> str:
    try:
        return metadata.version("openvino")
    except metadata.PackageNotFoundError:
        return "none"


INFO = BackendInfo(
    name="openvino",
    version=_engine_version(),
    description="OpenVINO's CPU plugin, through nodes of its own opset.",
    vendor="Intel",
    extra="openvino",
)
