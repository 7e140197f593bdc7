"""The identity of the Triton backend. Imports no engine."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo, BackendOption
from fusewire.contract.tuning import TUNED
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
# Sizes are powers of two.
OPTIONS = (
    BackendOption("block", 512, "Elements that a program computes, where each is on its own."),
    BackendOption("tile", 2048, "Elements of the rows that a program takes at a time."),
    BackendOption("rows", 32, "Rows of a product that a program computes."),
    BackendOption("columns", 32, "Columns of a product that a program computes."),
    BackendOption("depth", 32, "Steps of a product that a program loads at a time."),
    BackendOption("warps", 4, "Warps that work on a program."),
    BackendOption(
        "stages", 0, "Pipelined steps of a product, 1 to 5, or 0 for Triton's own choice."
    ),
    BackendOption(
        "variant",
        0,
        "Configuration of kernels that packages bring, by its number in their list, from 0 on.",
    ),
    BackendOption(TUNED, (), "Configurations of single kernels by key; level 3 writes it."),
)
