"""A backend as it would stand in the tree: a test copies this file to backends/abacus/engine.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots, weight_slots
from fusewire.ir.graph import Array, Constant, Graph, Node, Value
from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph

INFO = BackendInfo("abacus", "1.0", "Adds and negates.", "an example", trusted=True)
TABLE: dict[str, Any] = {"add": np.add, "negative": np.negative}


def _refuses(node: Node) -> str | None:
    if node.op not in TABLE:
        return f"{node.op} is not in the table."
    wrong = [v.tensor.dtype.name for v in node.operands if v.tensor.dtype.name != "float32"]
    return f"{wrong[0]} is not taken, float32 is." if wrong else None


@final
class AbacusExecutable(Executable):
    """A graph, run node by node."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @property
    def is_reentrant(self) -> bool:
        """Every run has its own values."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end."""
        constants = self._graph.constants
        values: dict[Value, Any] = {v: v.constant.array for v in constants if v.constant}
        values |= dict(zip(self._graph.inputs, inputs, strict=True))
        for node in self._graph.nodes:
            values[node.outputs[0]] = TABLE[node.op](*[values[v] for v in node.operands])
        return [np.array(values[v]) for v in self._graph.outputs]


@final
class AbacusBackend(Backend):
    """Runs what is in the table."""

    @property
    def info(self) -> BackendInfo:
        """Who this is."""
        return INFO

    @property
    def gaps(self) -> Sequence[Gap]:
        """None are known."""
        return ()

    @property
    def exchange(self) -> Exchange:
        """Arrays of the host."""
        return Exchange()

    def probe(self) -> list[Device | Unavailable]:
        """Find the processor."""
        return [Device("cpu", "beads")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what is in the table."""
        return claim_by_table(graph, _refuses, shapes="dynamic")

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the graph."""
        config.checked(INFO.name, ())
        slots = (*edge_slots(region), *weight_slots(region, INLINE_BYTES + 1))
        return Artifact("rebuild", print_graph(region).encode(), slots)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Parse the graph."""
        held = {digest: Constant.of(array) for digest, array in weights.items()}
        return AbacusExecutable(parse_graph(artifact.payload.decode(), held))
