"""Who the backend is. Plain data; must never import the engine."""

from fusewire.backend import BackendInfo
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="openvino",
    version=installed("openvino") or "none",
    description="OpenVINO's CPU plugin, through nodes of its own opset.",
    vendor="Intel",
    extra="openvino",
)
