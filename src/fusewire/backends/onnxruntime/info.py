"""Who ONNX Runtime is. Imports no engine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fusewire.backend import BackendInfo

# One module under several names: whichever wheel is installed.
WHEELS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")


def _installed() -> str:
    for wheel in WHEELS:
        try:
            return version(wheel)
        except PackageNotFoundError:
            continue
    return ""


INFO = BackendInfo(
    name="onnxruntime",
    version=_installed(),
    description="ONNX Runtime on the CPU: compiled once for any size of input.",
    vendor="Microsoft",
    extra="onnxruntime",
)
