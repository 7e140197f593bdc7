"""The interpreter of ops, behind the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from fusewire.backend import Backend, BackendInfo, Executable, Gap
from fusewire.backends.reference.gaps import GAPS
from fusewire.backends.reference.info import INFO
from fusewire.ir.graph import Graph, Node
from fusewire.ops.interpret import Interpreter
from fusewire.ops.sample import HostValue


@final
class ReferenceExecutable(Executable):
    """A graph and its interpreter."""

    def __init__(self, graph: Graph) -> None:
        self._interpreter = Interpreter(graph)

    def run(self, inputs: Sequence[HostValue]) -> list[HostValue]:
        """Run node by node."""
        given = [x for x in inputs if isinstance(x, np.ndarray)]
        return [_owned(x, given) for x in self._interpreter(inputs)]


def _owned(output: HostValue, inputs: Sequence[HostValue]) -> HostValue:
    """Copy an output that is, or looks into, an input or a constant: outputs are the caller's."""
    if not isinstance(output, np.ndarray):
        return output
    shared = any(np.may_share_memory(output, x) for x in inputs)
    return output.copy() if shared or not output.flags.writeable else output


@final
class ReferenceBackend(Backend):
    """Runs every graph."""

    @property
    def info(self) -> BackendInfo:
        """Who this is."""
        return INFO

    @property
    def gaps(self) -> Sequence[Gap]:
        """What it is known to get wrong."""
        return GAPS

    def refuses(self, node: Node) -> str | None:
        """Refuse nothing: every declared op has a meaning here."""
        return None

    def compile(self, graph: Graph) -> Executable:
        """Wrap the graph in an interpreter."""
        return ReferenceExecutable(graph)
