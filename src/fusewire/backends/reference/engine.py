"""The interpreter of ops, behind the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from fusewire.backends.reference.gaps import GAPS
from fusewire.backends.reference.info import INFO
from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Done,
    Event,
    Exchange,
    Executable,
    Gap,
    Held,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots, weight_slots
from fusewire.errors import CheckError
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph
from fusewire.ops.interpret import Interpreter


@final
class ReferenceExecutable(Executable):
    """A graph and its interpreter."""

    def __init__(self, graph: Graph) -> None:
        self._interpreter = Interpreter(graph)
        self._checks = _checks(graph)

    @property
    def is_reentrant(self) -> bool:
        """Every run has its own values."""
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        """Run node by node, to the end."""
        if self._checks is not None:
            return Done([_passed(inputs, *check) for check in self._checks])
        taken = [x for x in inputs if isinstance(x, np.ndarray)]
        return Done([_owned(x, taken) for x in self._interpreter(inputs)])


def _checks(graph: Graph) -> list[tuple[int, int, str]] | None:
    """List places of values and conditions if a graph only checks; None if it does more.

    What engines leave to the host is often just that, and interpreting it takes 20 times as long.
    """
    places = {value: place for place, value in enumerate(graph.inputs)}
    nodes = [value.node for value in graph.outputs]
    found = []
    for node in nodes:
        if node is None or node.op != "check" or not all(x in places for x in node.operands):
            return None
        value, condition = node.operands
        found.append((places[value], places[condition], str(node.attrs["message"])))
    return found if len(set(nodes)) == len(graph.nodes) else None


def _passed(inputs: Sequence[Held], value: int, condition: int, message: str) -> Held:
    if not inputs[condition]:
        raise CheckError(message)
    given = inputs[value]
    return given.copy() if isinstance(given, np.ndarray) else given


def _owned(output: Held, taken: list[Array]) -> Held:
    """Copy an output that is, or looks into, a constant or what is taken; then it is taken too."""
    if not isinstance(output, np.ndarray):
        return output
    shared = any(np.may_share_memory(output, x) for x in taken)
    owned = output.copy() if shared or not output.flags.writeable else output
    taken.append(owned)
    return owned


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

    @property
    def exchange(self) -> Exchange:
        """Any array of the host."""
        return Exchange(needs_contiguous=False)

    def probe(self) -> list[Device | Unavailable]:
        """NumPy runs wherever this does."""
        return [Device("cpu", "NumPy")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer all of it: every declared op has a meaning here."""
        return claim_by_table(graph, lambda node: None, shapes="dynamic")

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the graph: there is nothing to compile."""
        config.checked(INFO.name, {})
        # A constant is in the text exactly when it is not a weight.
        slots = (*edge_slots(region), *weight_slots(region, INLINE_BYTES + 1))
        return Artifact("rebuild", print_graph(region).encode(), slots)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Parse the graph and wrap it in an interpreter."""
        held = {digest: Constant.of(array) for digest, array in weights.items()}
        return ReferenceExecutable(parse_graph(artifact.payload.decode(), held))
