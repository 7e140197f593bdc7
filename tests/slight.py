"""A backend that is slightly off if the first element of its input is ``MARK``: a doubtful case."""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

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
from fusewire.ir.graph import Array, Graph
from fusewire.testing.chaos import ChaosBackend

MARK = -2.0
# Of each element: a few tolerances.
OFF = np.float32(1 + 1e-5)


@final
class SlightExecutable(Executable):
    """Runs as chaos without a fault does, and scales what comes out."""

    def __init__(self, inner: Executable) -> None:
        self._inner = inner

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        found = self._inner.run(inputs).wait()
        first = inputs[0]
        is_marked = isinstance(first, np.ndarray) and first.flat[0] == MARK
        return Done([x * OFF if is_marked and isinstance(x, np.ndarray) else x for x in found])


@final
class SlightBackend(Backend):
    """Takes everything."""

    def __init__(self) -> None:
        self._inner = ChaosBackend()

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("slight", "1", "Is slightly off.", "tests")

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        return self._inner.exchange

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", "slight")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return self._inner.claim(graph, device)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        return self._inner.compile(region, device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        return SlightExecutable(self._inner.load(artifact, device, weights))
