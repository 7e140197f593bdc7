"""A target: a backend and one of its devices, on which a region may run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusewire.contract.backend import Backend, Device, Exchange, Offer, Refusal
from fusewire.ir.graph import Graph
from fusewire.process.guard import BY_CODE, described, guarded
from fusewire.process.limits import ChildLimits


@dataclass(frozen=True)
class Target:
    """A backend and one of its devices.

    With a ``reference`` the backend is asked in a child process, without one in this process. One
    that claims by a table is asked here, whoever wrote it, unless it is extended.
    """

    backend: Backend
    device: Device
    reference: str | None = None
    limits: ChildLimits = field(default_factory=ChildLimits)

    @property
    def name(self) -> str:
        """The name that the registry knows the backend by."""
        return self.backend.info.name

    @property
    def exchange(self) -> Exchange:
        """How the device exchanges tensors."""
        return self.backend.exchange_on(self.device)

    def claim(self, graph: Graph) -> Sequence[Offer | Refusal]:
        """Ask which nodes of a graph it would run; raises EngineError if there is no answer."""
        if self.reference is None or self._claims_here:
            return guarded(self.name, "claim", described(graph), self._claim, graph)
        from fusewire.process import isolate

        answers = isolate.claim(self.reference, graph, self.device, self.limits)
        for answer in answers:
            if isinstance(answer, Refusal) and (kind := BY_CODE.get(answer.code)):
                raise kind(answer.reason, answer.suggestion)
        return answers

    @property
    def _claims_here(self) -> bool:
        is_alone = self.reference is not None and "+" not in self.reference
        return is_alone and self.backend.info.claims_by_table

    def _claim(self, graph: Graph) -> Sequence[Offer | Refusal]:
        answers, count = self.backend.claim(graph, self.device), len(graph.nodes)
        if any(place not in range(count) for answer in answers for place in answer.nodes):
            raise ValueError(f"nodes outside of the {count} of the graph")
        return answers
