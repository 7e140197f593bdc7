"""A backend that gets one op wrong, loses NaN in another, and refuses two more."""

from collections.abc import Mapping, Sequence
from typing import final

from fusewire.backends.reference.engine import ReferenceBackend
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
from fusewire.ir.builder import Rebuild
from fusewire.ir.graph import Array, Graph, Node
from fusewire.ops.elementwise import cos
from fusewire.ops.logic import greater, where

CPU = Device("cpu", "test")


@final
class WrongSine(Backend):
    """The reference, but for a sine that is a cosine, and no softmax or sort at all.

    Of two elements it takes the second as the larger if they cannot be compared.
    """

    def __init__(self, *gaps: Gap) -> None:
        self._gaps = gaps
        self._inner = ReferenceBackend()

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("wrong-sine", "1", "Gets one op wrong.", "tests", trusted=True)

    @property
    def gaps(self) -> Sequence[Gap]:
        return self._gaps

    @property
    def exchange(self) -> Exchange:
        return self._inner.exchange

    def probe(self) -> list[Device | Unavailable]:
        return [CPU]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        refused = ("softmax", "sort")
        return claim_by_table(graph, lambda n: f"No {n.op} here." if n.op in refused else None)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        rebuild = Rebuild(region)
        for node in region.nodes:
            new = rebuild.copied(node)
            made: Node | None = new
            if node.op == "sin":
                made = cos(*new.operands).node
            elif node.op == "maximum":
                made = where(greater(*new.operands), *new.operands).node
            assert made is not None
            rebuild.replace(node, made.outputs)
        return self._inner.compile(rebuild.finish(), device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        return self._inner.load(artifact, device, weights)
