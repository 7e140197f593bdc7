"""Describe a printed kernel as one of an engine: its nodes, and what a launch of it is given."""

from __future__ import annotations

from fusewire.contract.inspection import EngineKernel
from fusewire.fusion.grouping import Fusion, Group
from fusewire.kernel.form import Kernel
from fusewire.kernel.printed import Code, PrintedKernel


def described_kernel(
    kernel: Kernel, printed: PrintedKernel[Code], group: Group | None, fusion: Fusion
) -> EngineKernel:
    """Describe a kernel; its nodes are places in the graph that was fused."""
    places = {node: place for place, node in enumerate(fusion.given.nodes)}
    origins = () if group is None else group.origins
    nodes = tuple(sorted({places[node] for node in origins if node in places}))
    kind = "copy" if group is None else group.pattern
    types = tuple(f"{buffer.dtype.name}{list(buffer.shape)}" for buffer in printed.buffers)
    return EngineKernel(kernel.name, kind, nodes, grid=printed.grid, parameters=types)
