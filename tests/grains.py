"""Backends that are slow at ``cos``, and faster where they may round it to bfloat16.

``grains`` rounds all of a region, ``sieve`` leaves the nodes exact that it is told to.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import final

from fusewire.contract.backend import (
    EXACT_NODES,
    Artifact,
    BackendOption,
    Config,
    Device,
    Executable,
    Fact,
)
from fusewire.contract.region import nodes_at
from fusewire.dtypes import bfloat16, float32
from fusewire.ir.builder import Rebuild
from fusewire.ir.graph import Array, Graph, Node
from fusewire.ops.conversion import cast
from tests.wrapped import SleepingExecutable, WrappedBackend

# Seconds that an op takes, and those that it takes in less.
SLOW, FAST = 0.02, 0.002


def places_of(graph: Graph) -> list[int]:
    """List what is rounded."""
    return [place for place, node in enumerate(graph.nodes) if node.op == "cos"]


def rounded(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Round the outputs of nodes."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        (value,) = rebuild.copied(node).outputs
        is_rounded = node in nodes
        value = cast(cast(value, dtype=bfloat16), dtype=float32) if is_rounded else value
        rebuild.replace(node, [value])
    return rebuild.finish()


@final
class GrainBackend(WrappedBackend):
    """Runs everything as the reference does."""

    def __init__(self, name: str, leaves_nodes: bool) -> None:
        super().__init__(name, "Rounds if it may.")
        self._leaves_nodes = leaves_nodes

    @property
    def options(self) -> Sequence[BackendOption]:
        own = [BackendOption("coarse", False, "Whether it rounds.")]
        exact = BackendOption(EXACT_NODES, "", "Nodes that stay exact.")
        return [*own, exact] if self._leaves_nodes else own

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        options = config.checked(self.info.name, self.options)
        places = places_of(region)
        exact = nodes_at(region, str(options.get(EXACT_NODES, "")), places)
        nodes = [region.nodes[x] for x in places if options["coarse"]]
        nodes = [node for node in nodes if node not in exact]
        artifact = self.inner.compile(rounded(region, nodes), device, Config())
        seconds = len(nodes) * FAST + (len(places) - len(nodes)) * SLOW
        launch = {**artifact.launch, "seconds": seconds}
        return Artifact(artifact.kind, artifact.payload, artifact.slots, launch=launch)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        seconds = artifact.launch["seconds"]
        assert isinstance(seconds, float | int)
        return SleepingExecutable(self.inner.load(artifact, device, weights), seconds)

    def reduced(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        return [{"coarse": True}] if places_of(region) else []

    def reduced_nodes(
        self, region: Graph, device: Device, options: Mapping[str, Fact]
    ) -> Sequence[int]:
        return places_of(region) if self._leaves_nodes else ()


grains = partial(GrainBackend, "grains", False)
sieve = partial(GrainBackend, "sieve", True)
