"""Make regions ready to run: first contact in a child, then loaded here; else somewhere else."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fusewire.backend import Backend, Config, Exchange, Executable, Held, Refusal
from fusewire.errors import EngineError, FallbackWarning, RefusedError
from fusewire.ir.graph import Graph
from fusewire.ir.text import constants_of
from fusewire.placement.claims import Home
from fusewire.process.guard import BY_CODE, guarded
from fusewire.process.isolate import first_contact
from fusewire.region import build, weights_of
from fusewire.runtime.plan import Region
from fusewire.runtime.transfer import to_host
from fusewire.runtime.why import Contacted

Fallback = Literal["error", "warn", "allow"]


@dataclass(frozen=True)
class Maker:
    """Builds executables for the regions of a program; ``spare`` runs what an engine cannot.

    ``contacts`` fills up with what became of each; regions are those of the plan, or of a body
    that was planned anew.
    """

    home: Home
    spare: Home
    config: Config
    fallback: Fallback
    contacts: list[tuple[Region, Contacted]] = field(default_factory=list)

    def make(
        self, region: Region, graph: Graph, inputs: Sequence[Held]
    ) -> tuple[Executable, Exchange]:
        """Compile and load a region; what an engine does instead of answering is a refusal."""
        is_home = region.backend == self.home.name
        backend = self.home.backend if is_home else self.spare.backend
        config = self.config if is_home else Config()
        metrics: Mapping[str, float] = {}
        try:
            if not is_home or self.home.reference is None:
                made = guarded(
                    region.backend, "compile", graph.name, build, backend, graph, region.device,
                    config,
                )  # fmt: skip
            else:
                made, metrics = self._proven(backend, region, graph, config, inputs)
            exchange = guarded(region.backend, "load", graph.name, _exchange, backend, made)
        except EngineError as error:
            return self.rescue(region, graph, error)
        self._note(region, graph, "ready", region.backend, metrics=metrics)
        return made, exchange

    def _proven(
        self, backend: Backend, region: Region, graph: Graph, config: Config, inputs: Sequence[Held]
    ) -> tuple[Executable, Mapping[str, float]]:
        home = self.home
        assert home.reference is not None, "it is met in a child"
        given = [to_host(value) for value in inputs]
        contact = first_contact(home.reference, graph, region.device, config, given, home.limits)
        if isinstance(contact, Refusal):
            raise BY_CODE[contact.code](contact.reason, contact.suggestion)
        weights = weights_of(contact.artifact, constants_of(graph))
        made = guarded(
            region.backend, "load", graph.name, backend.load, contact.artifact, region.device,
            weights,
        )  # fmt: skip
        return made, contact.metrics

    def rescue(
        self, region: Region, graph: Graph, error: EngineError
    ) -> tuple[Executable, Exchange]:
        """Run a region elsewhere, or raise where that is not allowed."""
        spare = self.spare
        is_allowed = self.fallback != "error" and region.backend != spare.name
        self._note(region, graph, error.code, spare.name if is_allowed else "", error)
        if not is_allowed:
            raise RefusedError(f"{error} Fallback is not allowed, so the program stops.") from error
        if self.fallback == "warn":
            said = f"{error} {len(graph.nodes)} nodes run on {spare.name} instead."
            warnings.warn(said, FallbackWarning, stacklevel=2)
        return build(spare.backend, graph, spare.device), spare.backend.exchange

    def _note(
        self,
        region: Region,
        graph: Graph,
        outcome: str,
        runs_on: str,
        error: EngineError | None = None,
        metrics: Mapping[str, float] = {},
    ) -> None:
        inputs = tuple(str(value.type) for value in graph.inputs)
        isolated = region.backend == self.home.name and self.home.reference is not None
        said = ("", "") if error is None else (error.reason, error.advice)
        contacted = Contacted(
            region.graph.name, region.backend, inputs, outcome, runs_on, isolated, *said, metrics
        )
        self.contacts.append((region, contacted))


def _exchange(backend: Backend, made: object) -> Exchange:
    """Ask how tensors go into what was loaded, and see that it can be asked."""
    exchange: object = backend.exchange
    if not (isinstance(made, Executable) and isinstance(exchange, Exchange)):
        kinds = f"{type(made).__name__} and {type(exchange).__name__}"
        raise TypeError(f"expected Executable and Exchange, found {kinds}")
    bool(made.is_reentrant)
    return exchange
