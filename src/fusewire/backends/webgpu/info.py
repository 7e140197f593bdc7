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
    metadata={"engine": "https://github.com/pygfx/wgpu-py"},
)
