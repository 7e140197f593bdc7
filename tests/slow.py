"""A backend that compiles for ``SECONDS``, and says that it takes half a minute."""

import time
from collections.abc import Mapping, Sequence
from typing import final

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
from fusewire.ir.graph import Array, Graph
from fusewire.testing.chaos import ChaosBackend

SECONDS = 2.0


@final
class SlowBackend(Backend):
    """Takes everything but ``sin``."""

    def __init__(self) -> None:
        self._inner = ChaosBackend()

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("slow", "1", "Compiles slowly.", "tests", compile_seconds=30.0)

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        return self._inner.exchange

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", "slow")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return [
            Refusal((place,), "op", "It has no sin.") if node.op == "sin" else Offer((place,))
            for place, node in enumerate(graph.nodes)
        ]

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        time.sleep(SECONDS)
        return self._inner.compile(region, device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        return self._inner.load(artifact, device, weights)
