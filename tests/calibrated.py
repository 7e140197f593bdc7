"""A backend whose calls take milliseconds, and fewer in int8 with ranges that were measured."""

from collections.abc import Mapping, Sequence
from typing import final

from fusewire.contract.backend import (
    CALIBRATED,
    Artifact,
    BackendOption,
    Config,
    Device,
    Executable,
)
from fusewire.contract.region import edge_slots
from fusewire.ir.graph import Array, Graph
from fusewire.ir.text import print_graph
from fusewire.rewrite.static_int8 import with_static_int8
from tests.wrapped import SleepingExecutable, WrappedBackend

OPTIONS = (BackendOption(CALIBRATED, (), "Ranges of layers."),)
_EXACT, _ROUNDED = 0.03, 0.004


@final
class CalibratedBackend(WrappedBackend):
    """Takes everything."""

    def __init__(self) -> None:
        super().__init__("calibrated", "Computes in int8 if it may.")

    @property
    def options(self) -> Sequence[BackendOption]:
        return OPTIONS

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
        return SleepingExecutable(self.inner.load(artifact, device, weights), seconds)
