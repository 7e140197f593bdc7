"""A backend that does not take ``cos``, so that plans are split; ``wrong`` errs in its answers.

``absent`` lacks its package, and ``blind`` a device.
"""

from functools import partial
from typing import final

from fusewire.contract.backend import (
    Device,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table
from fusewire.ir.graph import Graph
from tests.wrapped import WrappedBackend


@final
class SplitBackend(WrappedBackend):
    """Runs the rest as chaos does."""

    def __init__(self, fault: str, lacks: Unavailable | None = None) -> None:
        super().__init__("split", "Does not take cos.", fault)
        self._lacks = lacks

    def probe(self) -> list[Device | Unavailable]:
        return super().probe() if self._lacks is None else [self._lacks]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return claim_by_table(
            graph, lambda node: "No cos." if node.op == "cos" else None, "dynamic"
        )


right = partial(SplitBackend, "none")
wrong = partial(SplitBackend, "element")
absent = partial(
    SplitBackend,
    "none",
    Unavailable("not-installed", "It needs the package split.", "Run: pip install split"),
)
blind = partial(SplitBackend, "none", Unavailable("no-device", "No eyes.", "Get some."))
