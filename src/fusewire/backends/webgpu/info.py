"""The identity of the WebGPU backend. Imports no engine."""

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
    description="Our own fused kernels in WGSL, on Vulkan, Metal and Direct3D 12.",
    vendor="Fusewire",
    extra="webgpu",
    metadata={"engine": "https://github.com/pygfx/wgpu-py"},
)
