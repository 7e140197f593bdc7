"""A backend that compiles for ``SECONDS``, and says that it takes half a minute."""

import time
from typing import final

from fusewire.contract.backend import (
    Artifact,
    Config,
    Device,
    Offer,
    Refusal,
)
from fusewire.ir.graph import Graph
from tests.wrapped import WrappedBackend

SECONDS = 2.0


@final
class SlowBackend(WrappedBackend):
    """Takes everything but ``sin``."""

    def __init__(self) -> None:
        super().__init__("slow", "Compiles slowly.", compile_seconds=30.0)

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return [
            Refusal((place,), "op", "It has no sin.") if node.op == "sin" else Offer((place,))
            for place, node in enumerate(graph.nodes)
        ]

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        time.sleep(SECONDS)
        return self.inner.compile(region, device, config)
