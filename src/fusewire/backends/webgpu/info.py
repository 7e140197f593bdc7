"""Who the WebGPU backend is. Imports no engine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fusewire.contract.backend import BackendInfo


def _installed() -> str:
    try:
        return version("wgpu")
    except PackageNotFoundError:
        return "none"


INFO = BackendInfo(
    name="webgpu",
    version=_installed(),
    description="Kernels of our own in WGSL, on Vulkan, Metal and D3D12 through wgpu.",
    vendor="Fusewire",
    extra="webgpu",
    metadata={"engine": "https://github.com/pygfx/wgpu-py"},
)
