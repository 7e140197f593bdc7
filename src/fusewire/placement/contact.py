"""Make regions ready to run: first contact in a child, then loaded here; else somewhere else."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
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

Fallback = Literal["error", "warn", "allow"]


@dataclass(frozen=True)
class Maker:
    """Builds executables for the regions of a program; ``spare`` runs what an engine cannot."""

    home: Home
    spare: Home
    config: Config
    fallback: Fallback

    def make(
        self, region: Region, graph: Graph, inputs: Sequence[Held]
    ) -> tuple[Executable, Exchange]:
        """Compile and load a region; what an engine does instead of answering is a refusal."""
        is_home = region.backend == self.home.name
        backend = self.home.backend if is_home else self.spare.backend
        config = self.config if is_home else Config()
        try:
            if not is_home or self.home.reference is None:
                made = guarded(
                    region.backend, "compile", graph.name, build, backend, graph, region.device,
                    config,
                )  # fmt: skip
            else:
                made = self._proven(backend, region, graph, config, inputs)
        except EngineError as error:
            return self.rescue(region, graph, error)
        return made, backend.exchange

    def _proven(
        self, backend: Backend, region: Region, graph: Graph, config: Config, inputs: Sequence[Held]
    ) -> Executable:
        home = self.home
        assert home.reference is not None, "it is met in a child"
        given = [to_host(value) for value in inputs]
        contact = first_contact(home.reference, graph, region.device, config, given, home.limits)
        if isinstance(contact, Refusal):
            raise BY_CODE[contact.code](contact.reason, contact.suggestion)
        weights = weights_of(contact.artifact, constants_of(graph))
        return guarded(
            region.backend, "load", graph.name, backend.load, contact.artifact, region.device,
            weights,
        )  # fmt: skip

    def rescue(
        self, region: Region, graph: Graph, error: EngineError
    ) -> tuple[Executable, Exchange]:
        """Run a region elsewhere, or raise where that is not allowed."""
        if self.fallback == "error" or region.backend == self.spare.name:
            raise RefusedError(f"{error} Fallback is not allowed, so the program stops.") from error
        if self.fallback == "warn":
            said = f"{error} {len(graph.nodes)} nodes run on {self.spare.name} instead."
            warnings.warn(said, FallbackWarning, stacklevel=2)
        spare = self.spare
        return build(spare.backend, graph, spare.device), spare.backend.exchange
