"""A backend that runs everything as the reference does, and refuses what it is told to."""

from collections.abc import Mapping, Sequence
from typing import final

from fusewire.backends.reference.engine import ReferenceBackend
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
    Shapes,
    Unavailable,
)
from fusewire.contract.region import claim_by_table
from fusewire.ir.graph import Array, Graph, Node


@final
class PickyBackend(Backend):
    """Keeps the graphs it is asked about and compiles; refuses ops by name."""

    def __init__(self, name: str, refused: Sequence[str], shapes: Shapes = "dynamic") -> None:
        self._name = name
        self._refused = refused
        self._shapes: Shapes = shapes
        self._inner = ReferenceBackend()
        self.asked: list[Graph] = []
        self.compiled: list[Graph] = []

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(self._name, "1", "Refuses what it is told to.", "tests")

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        return Exchange(alignment=64, needs_writable=True)

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", self._name)]

    def _refuses(self, node: Node) -> str | None:
        inner = [n for _, body in node.graphs() for g in body.walk() for n in g.nodes]
        bad = next((n.op for n in [node, *inner] if n.op in self._refused), None)
        return f"{self._name} does not run {bad}." if bad else None

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        self.asked.append(graph)
        return claim_by_table(graph, self._refuses, self._shapes)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        self.compiled.append(region)
        return self._inner.compile(region, device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        return self._inner.load(artifact, device, weights)
