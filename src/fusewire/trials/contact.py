"""Make regions ready to run: first contact in a child, then loaded here; else somewhere else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fusewire.contract.backend import Artifact, Backend, Config, Exchange, Executable, Held, Refusal
from fusewire.contract.region import build, weights_of
from fusewire.errors import EngineError, FallbackWarning, RefusedError
from fusewire.ir.graph import Graph
from fusewire.ir.text import constants_of
from fusewire.options import Fallback
from fusewire.planning.claims import Home
from fusewire.process.guard import BY_CODE, guarded
from fusewire.process.isolate import first_contact
from fusewire.records.keys import artifact_key
from fusewire.records.quarantine import Fact, quarantined
from fusewire.records.remember import Made, Memory
from fusewire.runtime.plan import Outline
from fusewire.runtime.regions import shape_of
from fusewire.runtime.transfer import to_host
from fusewire.runtime.why import Contacted
from fusewire.store.key import Key
from fusewire.trials.reload import loaded, reload


@dataclass(frozen=True)
class Maker:
    """Builds executables for the regions of a program; ``spare`` runs what an engine cannot.

    ``contacts`` fills up with what became of each; regions are those of the plan, or of a body
    that was planned anew. What is in ``memory`` has proved itself, and is loaded as it is.
    """

    home: Home
    spare: Home
    config: Config
    fallback: Fallback
    memory: Memory | None = None
    contacts: list[Made] = field(default_factory=list)

    def make(
        self, outline: Outline, graph: Callable[[], Graph], inputs: Sequence[Held]
    ) -> tuple[Executable, Exchange]:
        """Compile and load a region; what an engine does instead of answering is a refusal."""
        key = self._key(outline, inputs)
        fact = self._held_against(key)
        if fact is not None and fact.code == "wrong":
            # Nobody looks at its answers here. Who crashed meets a child again.
            error = EngineError(f"{outline.backend} is {fact.sentence()}")
            return self.rescue(outline, graph(), error)
        if key is None or self.memory is None or fact is not None:
            return self._made(outline, graph(), inputs, key)
        if (found := self._recalled(outline, key, graph)) is not None:
            return found
        with self.memory.alone(key):
            # Another process may have made it while this one waited.
            if (found := self._recalled(outline, key, graph)) is not None:
                return found
            return self._made(outline, graph(), inputs, key)

    def _made(
        self, outline: Outline, sized: Graph, inputs: Sequence[Held], key: Key | None
    ) -> tuple[Executable, Exchange]:
        is_home = outline.backend == self.home.name
        backend = self.home.backend if is_home else self.spare.backend
        config = self.config if is_home else Config()
        metrics: Mapping[str, float] = {}
        try:
            artifact, metrics = self._compiled(backend, outline, sized, config, inputs)
            weights = weights_of(artifact, constants_of(sized))
            found = loaded(outline, backend, artifact, weights)
        except EngineError as error:
            return self.rescue(outline, sized, error)
        if key is not None and self.memory is not None:
            self.memory.keep_artifact(key, artifact, weights)
        self._note(outline, "ready", outline.backend, metrics=metrics, key=key)
        return found

    def _key(self, outline: Outline, inputs: Sequence[Held]) -> Key | None:
        """Name what would be remembered; None where compiling costs nothing, or nobody keeps it."""
        is_worth = outline.backend == self.home.name and not self.home.backend.info.trusted
        if self.memory is None or not is_worth:
            return None
        return artifact_key(outline, [shape_of(x) for x in inputs], self.home.backend, self.config)

    def _held_against(self, key: Key | None) -> Fact | None:
        if key is None or self.memory is None:
            return None
        return quarantined(self.memory, key, self.home.limits.seconds)

    def _recalled(
        self, outline: Outline, key: Key, graph: Callable[[], Graph]
    ) -> tuple[Executable, Exchange] | None:
        assert self.memory is not None, "there was a key"
        held = self.memory.artifact(key)
        if held is None:
            return None
        found = reload(self.memory, key, held, outline, self.home.backend, graph)
        if found is None:
            return None
        metrics = {"load_seconds": found.seconds}
        self._note(outline, "ready", outline.backend, metrics=metrics, key=key, cache="hit")
        return found.executable, found.exchange

    def _compiled(
        self,
        backend: Backend,
        outline: Outline,
        graph: Graph,
        config: Config,
        inputs: Sequence[Held],
    ) -> tuple[Artifact, Mapping[str, float]]:
        """Compile: here, or with a first run in a child where the engine is not trusted."""
        home = self.home
        if outline.backend != home.name or home.reference is None:
            compile_ = backend.compile
            name = outline.backend
            made = guarded(name, "compile", graph.name, compile_, graph, outline.device, config)
            return made, {}
        given = [to_host(value) for value in inputs]
        contact = first_contact(home.reference, graph, outline.device, config, given, home.limits)
        if isinstance(contact, Refusal):
            raise BY_CODE[contact.code](contact.reason, contact.suggestion)
        return contact.artifact, contact.metrics

    def rescue(
        self, outline: Outline, graph: Graph, error: EngineError
    ) -> tuple[Executable, Exchange]:
        """Run a region elsewhere, or raise where that is not allowed."""
        spare = self.spare
        is_allowed = self.fallback != "error" and outline.backend != spare.name
        self._note(outline, error.code, spare.name if is_allowed else "", error)
        if not is_allowed:
            raise RefusedError(f"{error} Fallback is not allowed, so the program stops.") from error
        if self.fallback == "warn":
            said = f"{error} {len(graph.nodes)} nodes run on {spare.name} instead."
            warnings.warn(said, FallbackWarning, stacklevel=2)
        return build(spare.backend, graph, spare.device), spare.backend.exchange

    def _note(
        self,
        outline: Outline,
        outcome: str,
        runs_on: str,
        error: EngineError | None = None,
        metrics: Mapping[str, float] = {},
        key: Key | None = None,
        cache: str = "",
    ) -> None:
        inputs = tuple(str(value.type) for value in outline.inputs)
        isolated = outline.backend == self.home.name and self.home.reference is not None
        said = ("", "") if error is None else (error.reason, error.advice)
        cache = cache or ("off" if key is None else "miss")
        contacted = Contacted(
            "", outline.backend, inputs, outcome, runs_on, isolated, *said, metrics, cache
        )
        self.contacts.append(Made(outline, contacted, key))
