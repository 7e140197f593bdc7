"""The identity of the ONNX Runtime backend. Imports no engine."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo
from fusewire.process.wheels import installed, installed_with

# One module under several names: whichever wheel is installed.
WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-webgpu",
    "onnxruntime-rocm",
    "onnxruntime-migraphx",
    "onnxruntime-training",
)


# Wheels that bring a provider; each begins with the name of its package.
PLUGINS = "onnxruntime_ep_"


INFO = BackendInfo(
    name="onnxruntime",
    version=installed(*WHEELS) or "none",
    description="ONNX Runtime and its execution providers; compiled once for any input size.",
    vendor="Microsoft",
    extra="onnxruntime",
    metadata={name: f"{name} {version}" for name, version in installed_with(PLUGINS).items()},
    checks_indices=True,
    # 1.31.1 narrows the k of TopK to 32 bits before it looks at it.
    unchecked_ops=("dynamic_top_k",),
    claims_by_table=True,
    # Sessions have threads of their own, and may be run by several threads at once.
)
