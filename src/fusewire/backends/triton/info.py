"""The identity of the Triton backend. Imports no engine."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="triton",
    version=installed("triton") or "none",
    description="Our own fused kernels in Triton, for NVIDIA and AMD GPUs.",
    vendor="Fusewire",
    extra="triton",
    # Where there is no GPU it interprets, which is slower than the reference.
    priority=-90,
    environment=("TRITON_PTXAS_PATH", "CUDA_HOME", "CUDA_PATH"),
    metadata={"engine": "https://github.com/triton-lang/triton"},
)
