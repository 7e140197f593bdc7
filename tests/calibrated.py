"""A backend whose calls take milliseconds, and fewer in int8 with ranges that were measured."""

import time
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from fusewire.contract.backend import (
    CALIBRATED,
    Artifact,
    Backend,
    BackendInfo,
    BackendOption,
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
from fusewire.contract.region import edge_slots
from fusewire.ir.graph import Array, Graph
from fusewire.ir.text import parse_graph, print_graph
from fusewire.ops.interpret import Interpreter
from fusewire.rewrite.static_int8 import with_static_int8
from fusewire.testing.chaos import ChaosBackend

OPTIONS = (BackendOption(CALIBRATED, (), "Ranges of layers."),)
_EXACT, _ROUNDED = 0.03, 0.004


@final
class CalibratedExecutable(Executable):
    """Runs as the reference does, slower if it is exact."""

    def __init__(self, graph: Graph, seconds: float) -> None:
        self._run, self._seconds = Interpreter(graph), seconds

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        time.sleep(self._seconds)
        return Done([*self._run([np.asarray(x) for x in inputs])])


@final
class CalibratedBackend(Backend):
    """Takes everything."""

    def __init__(self) -> None:
        self._inner = ChaosBackend()

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("calibrated", "1", "Computes in int8 if it may.", "tests")

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def options(self) -> Sequence[BackendOption]:
        return OPTIONS

    @property
    def exchange(self) -> Exchange:
        return self._inner.exchange

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", "calibrated")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return self._inner.claim(graph, device)

    def calibrates(self, device: Device) -> bool:
        return True

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        lines = config.checked("calibrated", OPTIONS)[CALIBRATED]
        graph = with_static_int8(region, lines) if lines else region
        text = print_graph(graph, inline_bytes=1 << 20).encode()
        slots = tuple(edge_slots(region))
        return Artifact("rebuild", text, slots, launch={"rounds": bool(lines)})

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        seconds = _ROUNDED if artifact.launch["rounds"] else _EXACT
        return CalibratedExecutable(parse_graph(artifact.payload.decode(), {}), seconds)
