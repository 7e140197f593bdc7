"""The reference backend: the interpreter of ops behind the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from fusewire.backends.reference.executable import ReferenceExecutable
from fusewire.backends.reference.gaps import GAPS
from fusewire.backends.reference.info import INFO
from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots, weight_slots
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph


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
        config.checked(INFO.name, ())
        # A constant is in the text exactly when it is not a weight.
        slots = (*edge_slots(region), *weight_slots(region, INLINE_BYTES + 1))
        return Artifact("rebuild", print_graph(region).encode(), slots)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Parse the graph and wrap it in an interpreter."""
        held = {digest: Constant.of(array) for digest, array in weights.items()}
        return ReferenceExecutable(parse_graph(artifact.payload.decode(), held))
