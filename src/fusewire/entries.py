"""Make the entries of a program: planned, decided by comparison, or recalled from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fusewire.choosing.canary import Watched
from fusewire.choosing.decide import Choice, Question, decide, read_tried
from fusewire.choosing.explain import Explanation
from fusewire.choosing.ledger import Ledger
from fusewire.contract.frontend import Reading
from fusewire.contract.region import first_device
from fusewire.errors import NoneRightError, RefusedError, UnavailableError
from fusewire.ir.graph import Graph
from fusewire.numerics.judge import Verdict
from fusewire.ops.table import verify
from fusewire.options import FALLBACK, Options
from fusewire.planning.candidates import Candidate
from fusewire.planning.claims import Home
from fusewire.planning.planner import Planned, make_plan
from fusewire.planning.select import Search, choose, fitting
from fusewire.records.keeping import Keeping
from fusewire.records.keys import code_fields, host_fields, settings
from fusewire.records.quarantine import Fact
from fusewire.records.recall import file_key, warn_outside
from fusewire.records.remember import Made, Memory
from fusewire.records.sketch import Sketch
from fusewire.registry import REGISTRY
from fusewire.rewrite.pipeline import run_pipeline
from fusewire.runtime.entry import Details, Entry, Runner, Undecided, plain
from fusewire.runtime.execute import PlanRunner
from fusewire.runtime.plan import Course
from fusewire.runtime.transfer import to_host
from fusewire.runtime.why import Tried
from fusewire.store.disk import shared_store
from fusewire.store.key import Key
from fusewire.trials.contact import Maker


def reference() -> Home:
    """Give the home that runs everything."""
    backend = REGISTRY.backends.get(FALLBACK)
    return Home(backend, first_device(backend))


@dataclass(frozen=True)
class Recipe:
    """What all entries of a program are made with."""

    options: Options

    @cached_property
    def memory(self) -> Memory:
        """What is remembered, and where new things are kept."""
        return Memory(shared_store() if self.options.cache else None)

    @cached_property
    def search(self) -> Search:
        """Where backends are looked for."""
        return Search(REGISTRY, self.options.isolate, self.options.limits)

    @property
    def level(self) -> int:
        """The level that was asked for; "auto" measures, and a named backend does not."""
        options = self.options
        if options.level is not None:
            return options.level
        is_auto = options.backend == "auto" and REGISTRY.default == "auto"
        return int(is_auto and options.budget_seconds > 0)

    def entry(self, reading: Reading, example: Sequence[Any], key: Key | None) -> Entry:
        """Make an entry; with a key, what a call needs to know of it is remembered."""
        verify(reading.graph)
        graph = run_pipeline(reading.graph).graph
        if self.level == 0:
            return self._planned(reading, graph, key)
        if example and all(isinstance(x, np.ndarray | np.generic) for x in example):
            return self._decided(reading, graph, key, tuple(example))
        return Entry(
            graph.inputs,
            Undecided(),
            reading.arguments,
            reading.results,
            "auto",
            len(graph.nodes),
            lambda: self._planned(reading, graph, None).details,
            lambda arguments: self._decided(reading, graph, key, arguments),
        )

    def _planned(self, reading: Reading, graph: Graph, key: Key | None) -> Entry:
        """Plan without measuring."""
        notes: list[str] = []
        home = self._home(graph, notes)
        planned = self._plan(graph, home, notes)
        # What was not to be had may be there the next time.
        return self._assembled(reading, Candidate(home, planned), None if notes else key, notes)

    def _decided(
        self, reading: Reading, graph: Graph, key: Key | None, arguments: tuple[Any, ...]
    ) -> Entry:
        """Compare the engines on these arguments, or recall an earlier comparison."""
        options = self.options
        policy = REGISTRY.default if options.backend == "auto" else options.backend
        given, search = reading.arguments.flatten(arguments), replace(self.search, is_ahead=True)
        asked = policy, options.device, graph, search
        question = Question(
            graph,
            [to_host(plain(*pair)) for pair in zip(graph.inputs, given, strict=True)],
            lambda: iter([choose(*asked)]) if callable(policy) else fitting(*asked),
            reference(),
            options.config,
            self.fields(),
            options.fallback != "error",
            options.budget_seconds,
            options.seed,
            options.tell,
            max_crossings=options.max_crossings,
            tunes=self.level == 3,
        )
        try:
            decided = decide(question, self.memory, self.search)
        except NoneRightError as error:
            return self._unchosen(reading, graph, error)
        options.tell("ready", 1.0)
        found, notes = decided.candidate, decided.notes
        return self._assembled(reading, found, key, notes, decided.tried, decided.cut_at)

    def _unchosen(self, reading: Reading, graph: Graph, error: NoneRightError) -> Entry:
        """Run what was not compared: of those that were, none is right."""
        if self.options.fallback == "error" or any(x.backend == FALLBACK for x in error.tried):
            raise error
        notes: list[str] = []
        self._say(notes, f"{error} All of it runs on {FALLBACK}.")
        spare = Candidate(reference(), make_plan(graph, [reference()]))
        return self._assembled(reading, spare, None, notes, tuple(error.tried))

    def _home(self, graph: Graph, notes: list[str]) -> Home:
        """Find the home that is asked for; the reference if it has no device and may be used."""
        options = self.options
        try:
            return choose(options.backend, options.device, graph, self.search)
        except UnavailableError as error:
            if options.fallback == "error":
                raise
            self._say(notes, f"{error} All of it runs on {FALLBACK}.")
            return reference()

    def _plan(self, graph: Graph, home: Home, notes: list[str]) -> Planned:
        options, spare = self.options, reference()
        homes = [home] if options.fallback == "error" else [home, spare]
        planned = make_plan(graph, homes, spare)
        crossings = planned.plan.crossings() if options.max_crossings is not None else 0
        if crossings > (options.max_crossings or 0):
            said = (
                f"{home.name} would hand over {crossings} tensors, and {options.max_crossings} "
                "are allowed."
            )
            if options.fallback == "error":
                raise RefusedError(f"{said} Raise max_crossings, or choose another backend.")
            self._say(notes, f"{said} All of it runs on {FALLBACK}.")
            return make_plan(graph, [spare])
        return planned

    def _say(self, notes: list[str], said: str) -> None:
        notes.append(said)
        if self.options.fallback == "warn":
            warn_outside(said)

    def _assembled(
        self,
        reading: Reading,
        found: Candidate,
        key: Key | None,
        notes: Sequence[str],
        tried: tuple[Tried, ...] = (),
        cut_at: float | None = None,
    ) -> Entry:
        """Make a plan ready to run."""
        options, spare = self.options, reference()
        home, planned = found.home, found.planned
        said = _left_over(home, planned) if options.fallback == "warn" else []
        for sentence in said:
            warn_outside(sentence)
        config = found.config(options.config)
        maker = Maker(home, spare, config, options.fallback, self.memory)
        plan, graph = planned.plan, planned.plan.graph
        keeping = None if key is None else Keeping(self.memory, key, home, spare, config)
        if options.canary or keeping is None or not keeping.is_ours:
            keeping = None
        else:
            keeping.keep(reading, found, tried, cut_at, said)
        runner = PlanRunner(
            plan.course, maker.make, maker.rescue, lambda body: self._body(body, maker, keeping)
        )
        made: Runner = runner
        if options.canary and home.name != FALLBACK:
            made = Watched(
                runner,
                graph,
                options.canary,
                found.name,
                lambda inputs, verdict: self._remade(reading, found, inputs, verdict),
            )
        details = Details(graph, plan, Explanation(planned, maker, tuple(notes), tried).why)
        return Entry(
            graph.inputs,
            made,
            reading.arguments,
            reading.results,
            home.name,
            len(graph.nodes),
            lambda: details,
        )

    def _body(self, body: Graph, maker: Maker, keeping: Keeping | None) -> Course:
        """Plan a body of control flow in which sizes are known."""
        homes = [maker.home] if self.options.fallback == "error" else [maker.home, maker.spare]
        course = make_plan(body, homes, maker.spare).plan.course
        if keeping is not None:
            keeping.keep_body(body, course)
        return course

    def replanned(self, maker: Maker, body: Graph, key: Key | None) -> Course:
        """Plan a body of a plan that was recalled; with a key, that is remembered."""
        parts = maker.home, maker.spare, maker.config
        keeping = None if key is None else Keeping(self.memory, key, *parts)
        return self._body(body, maker, keeping)

    def _remade(
        self, reading: Reading, found: Candidate, inputs: Sequence[Any], verdict: Verdict
    ) -> Runner:
        """Make a program again without the engine that was found wrong."""
        graph, seconds = run_pipeline(reading.graph).graph, self.options.deadline
        ledger = Ledger(graph, inputs, self.memory, self.options.config, seconds)
        ledger.hold(found, Fact("wrong", verdict.reason))
        if self.level:
            arguments = reading.arguments.restore(inputs)
            return self._decided(reading, graph, None, arguments).executable
        if self.options.fallback == "error":
            raise RefusedError(
                f"{found.home.name} gave a wrong answer, and fallback is not allowed: "
                f"{verdict.reason}"
            )
        planned = make_plan(graph, [reference()])
        return self._assembled(reading, Candidate(reference(), planned), None, ()).executable

    def fields(self) -> dict[str, object] | None:
        """Name what a plan depends on beside the graph; None for what has no name."""
        options = self.options
        if not isinstance(options.backend, str):
            return None
        policy = REGISTRY.default if options.backend == "auto" else options.backend
        names = REGISTRY.backends.names() if policy == "auto" else [policy]
        return {
            "backend": policy,
            "device": options.device or "any",
            "level": self.level,
            "fallback": options.fallback,
            "max_crossings": options.max_crossings,
            **settings(options.config),
            "engines": ", ".join(map(_version, names)),
            **code_fields(policy),
            **dict(host_fields()),
        }

    def key(self, reading: Reading, example: Sequence[Any], is_open: bool) -> Key | None:
        """Name what is remembered of a file that was read; None where nothing is."""
        if reading.digest is None or self.memory.store is None or REGISTRY.extensions.names():
            return None
        return file_key(reading.digest, example, is_open, self.options)

    def maker(self, sketch: Sketch, contacts: list[Made]) -> Maker:
        """Make what makes the region of a plan that was recalled."""
        options = self.options
        backend = REGISTRY.get(sketch.backend, isolate=options.isolate, limits=options.limits)
        station = sketch.stations[sketch.backend]
        isolated = station.reference if options.isolate and not backend.info.trusted else None
        home = Home(backend, station.device, isolated, options.limits)
        config = Choice.from_data(sketch.choice).config(options.config)
        return Maker(home, reference(), config, options.fallback, self.memory, contacts)

    def details(self, sketch: Sketch, reading: Reading, maker: Maker) -> Details:
        """Plan again what was recalled, as it was chosen."""
        graph = run_pipeline(reading.graph).graph
        choice, may_fall_back = Choice.from_data(sketch.choice), self.options.fallback != "error"
        planned = choice.planned(graph, maker.home, maker.spare, may_fall_back)
        plan = planned.plan
        tried = tuple(map(read_tried, sketch.tried))
        return Details(plan.graph, plan, Explanation(planned, maker, (), tried).why)


def _version(name: str) -> str:
    """Name a backend with the version of what it drives."""
    plugin = REGISTRY.backends.describe(name)
    if plugin.distribution != "fusewire":
        return f"{name} {plugin.version}"
    return f"{name} {REGISTRY.backends.get(name).info.version}"


def _left_over(home: Home, planned: Planned) -> list[str]:
    """Say what does not run where it was asked to, if anything."""
    left, plan = planned.left_over(), planned.plan
    if not left:
        return []
    node, reason = next(iter(left.items()))
    return [
        f"{len(left)} of {len(plan.graph.nodes)} nodes do not run on {home.name} and run on "
        f"{FALLBACK}, in {len(plan.steps)} regions. The first is {node!r}: {reason} "
        "Use fallback='allow' to accept this, or 'error' to refuse it."
    ]
