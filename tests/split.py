"""A backend that does not take ``cos``, so that plans are split; ``wrong`` errs in its answers.

``absent`` lacks its package, and ``blind`` a device.
"""

from collections.abc import Mapping, Sequence
from functools import partial
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
from fusewire.contract.region import claim_by_table
from fusewire.ir.graph import Array, Graph
from fusewire.testing.chaos import ChaosBackend


@final
class SplitBackend(Backend):
    """Runs the rest as chaos does."""

    def __init__(self, fault: str, lacks: Unavailable | None = None) -> None:
        self._inner = ChaosBackend(fault)
        self._lacks = lacks

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("split", "1", "Does not take cos.", "tests")

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        return self._inner.exchange

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", "split") if self._lacks is None else self._lacks]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return claim_by_table(
            graph, lambda node: "No cos." if node.op == "cos" else None, "dynamic"
        )

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        return self._inner.compile(region, device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        return self._inner.load(artifact, device, weights)


right = partial(SplitBackend, "none")
wrong = partial(SplitBackend, "element")
absent = partial(
    SplitBackend,
    "none",
    Unavailable("not-installed", "It needs the package split.", "Run: pip install split"),
)
blind = partial(SplitBackend, "none", Unavailable("no-device", "No eyes.", "Get some."))
