"""What backends of tests have in common that run as chaos without a fault does, but for one thing.

A subclass overrides that one thing, and asks ``self.inner`` for the rest.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, final

from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Event,
    Exchange,
    Executable,
    Gap,
    Held,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.ir.graph import Array, Graph
from fusewire.testing.chaos import ChaosBackend


class WrappedBackend(Backend):
    """Takes everything; ``about`` are further fields of its BackendInfo."""

    def __init__(self, name: str, summary: str, fault: str = "none", **about: Any) -> None:
        self._info = BackendInfo(name, "1", summary, "tests", **about)
        self.inner = ChaosBackend(fault)

    @property
    def info(self) -> BackendInfo:
        return self._info

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        return self.inner.exchange

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", self.info.name)]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return self.inner.claim(graph, device)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        return self.inner.compile(region, device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        return self.inner.load(artifact, device, weights)


@final
class SleepingExecutable(Executable):
    """Sleeps for some seconds, and then runs another."""

    def __init__(self, inner: Executable, seconds: float) -> None:
        self._inner, self._seconds = inner, seconds

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        time.sleep(self._seconds)
        return self._inner.run(inputs)
