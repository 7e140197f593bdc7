"""The identity of the WebGPU backend. Imports no engine."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="webgpu",
    version=installed("wgpu") or "none",
    description="Our own fused kernels in WGSL, on Vulkan, Metal and Direct3D 12.",
    vendor="Fusewire",
    extra="webgpu",
    # Those of Vulkan's loader name drivers; wgpu's own choose among adapters.
    environment=(
        *("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "VK_ADD_DRIVER_FILES", "VK_LAYER_PATH"),
        *("WGPU_BACKEND_TYPE", "WGPUPY_WGPU_ADAPTER_NAME"),
    ),
    metadata={"engine": "https://github.com/pygfx/wgpu-py"},
)
