"""What an engine makes of a region, found by looking: an optional part of the contract.

The backend reads what its engine compiled (its optimised graph, its own dump, the kernels that it
printed) and names the nodes behind each kernel. It never says what the engine could do.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.contract.backend import Config, Device
from fusewire.ir.graph import Graph


@dataclass(frozen=True)
class EngineKernel:
    """A kernel of an engine: its name there, its kind, and the nodes that it computes, by place.

    A kernel of no node only moves data or prepares the engine. What the engine does not tell is
    empty, or None: ``block`` and ``grid`` of a launch, ``shared_bytes`` of a block, ``registers``
    of a thread. ``parameters`` are the types of what it is given.
    """

    name: str
    kind: str
    nodes: tuple[int, ...]
    block: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    shared_bytes: int | None = None
    registers: int | None = None
    parameters: tuple[str, ...] = ()


class Inspector(abc.ABC):
    """A backend that can tell which nodes its engine fused."""

    @abc.abstractmethod
    def kernels(self, region: Graph, device: Device, config: Config) -> Sequence[EngineKernel]:
        """Compile a region, and list the kernels that the engine runs for it, in order."""
