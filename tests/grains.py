"""Backends that are slow at ``cos``, and faster where they may round it to bfloat16.

``grains`` rounds all of a region, ``sieve`` leaves the nodes exact that it is told to.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import final

from fusewire.contract.backend import (
    EXACT_NODES,
    Artifact,
    Backend,
    BackendInfo,
    BackendOption,
    Config,
    Device,
    Event,
    Exchange,
    Executable,
    Fact,
    Gap,
    Held,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import nodes_at
from fusewire.dtypes import bfloat16, float32
from fusewire.ir.builder import Rebuild
from fusewire.ir.graph import Array, Graph, Node
from fusewire.ops.conversion import cast
from fusewire.testing.chaos import ChaosBackend

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
class GrainBackend(Backend):
    """Runs everything as the reference does."""

    def __init__(self, name: str, leaves_nodes: bool) -> None:
        self._name, self._leaves_nodes = name, leaves_nodes
        self._inner = ChaosBackend()

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(self._name, "1", "Rounds if it may.", "tests")

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        return self._inner.exchange

    @property
    def options(self) -> Sequence[BackendOption]:
        own = [BackendOption("coarse", False, "Whether it rounds.")]
        exact = BackendOption(EXACT_NODES, "", "Nodes that stay exact.")
        return [*own, exact] if self._leaves_nodes else own

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", self._name)]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return self._inner.claim(graph, device)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        options = config.checked(self._name, self.options)
        places = places_of(region)
        exact = nodes_at(region, str(options.get(EXACT_NODES, "")), places)
        nodes = [region.nodes[x] for x in places if options["coarse"]]
        nodes = [node for node in nodes if node not in exact]
        artifact = self._inner.compile(rounded(region, nodes), device, Config())
        seconds = len(nodes) * FAST + (len(places) - len(nodes)) * SLOW
        launch = {**artifact.launch, "seconds": seconds}
        return Artifact(artifact.kind, artifact.payload, artifact.slots, launch=launch)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        seconds = artifact.launch["seconds"]
        assert isinstance(seconds, float | int)
        return GrainExecutable(self._inner.load(artifact, device, weights), seconds)

    def reduced(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        return [{"coarse": True}] if places_of(region) else []

    def reduced_nodes(
        self, region: Graph, device: Device, options: Mapping[str, Fact]
    ) -> Sequence[int]:
        return places_of(region) if self._leaves_nodes else ()


@final
class GrainExecutable(Executable):
    def __init__(self, inner: Executable, seconds: float) -> None:
        self._inner, self._seconds = inner, seconds

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        time.sleep(self._seconds)
        return self._inner.run(inputs)


grains = partial(GrainBackend, "grains", False)
sieve = partial(GrainBackend, "sieve", True)
