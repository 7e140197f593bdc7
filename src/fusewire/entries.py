"""Make the entries of a program: planned, decided by comparison, or recalled from the store."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from fusewire.backend import Held
from fusewire.errors import FallbackWarning, RefusedError, RegistryError, UnavailableError
from fusewire.frontend import Reading, Structure
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ops.table import verify
from fusewire.options import Options
from fusewire.placement.candidates import Candidate
from fusewire.placement.claims import Home
from fusewire.placement.contact import Maker
from fusewire.placement.decide import Choice, Question, decide
from fusewire.placement.explain import Explanation
from fusewire.placement.planner import Planned, make_plan
from fusewire.placement.remember import Memory, Sketch, host_fields, settings, state_of_code
from fusewire.placement.select import Search, choose, fitting
from fusewire.region import first_device
from fusewire.registry import REGISTRY
from fusewire.rewrite.pipeline import run_pipeline
from fusewire.runtime.entry import Details, Entry
from fusewire.runtime.execute import PlanRunner, RegionRunner
from fusewire.runtime.plan import Outline, Plan
from fusewire.runtime.why import Tried
from fusewire.store.disk import shared_store
from fusewire.store.key import Key

# Runs every graph, and is always there.
FALLBACK = "reference"
_PACKAGE = str(Path(__file__).parent)


def reference() -> Home:
    """Give the home that runs everything."""
    backend = REGISTRY.backends.get(FALLBACK)
    return Home(backend, first_device(backend))


@final
class Undecided:
    """Stands where a runner will be once it is decided which."""

    def call(self, inputs: Sequence[Held]) -> list[Any]:
        """Nobody calls it: a program decides first."""
        raise AssertionError("it was not decided")

    def close(self) -> None:
        """Nothing is held."""


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
            graph.inputs, Undecided(), reading.arguments, reading.results, "auto",
            len(graph.nodes), lambda: self._planned(reading, graph, None).details,
            lambda arguments: self._decided(reading, graph, key, arguments),
        )  # fmt: skip

    def _planned(self, reading: Reading, graph: Graph, key: Key | None) -> Entry:
        """Plan without measuring."""
        notes: list[str] = []
        home = self._home(graph, notes)
        planned = self._plan(graph, home, notes)
        return self._assembled(reading, Candidate(home, planned), key, notes)

    def _decided(
        self, reading: Reading, graph: Graph, key: Key | None, arguments: tuple[Any, ...]
    ) -> Entry:
        """Compare the engines on these arguments, or recall an earlier comparison."""
        options = self.options
        policy = REGISTRY.default if options.backend == "auto" else options.backend
        question = Question(
            graph,
            reading.arguments.flatten(arguments),
            lambda: fitting(policy, options.device, graph, self.search),
            reference(),
            options.config,
            self.fields(),
            options.fallback != "error",
            options.budget_seconds,
            options.seed,
            options.tell,
        )
        decided = decide(question, self.memory, self.search)
        options.tell("ready", 1.0)
        return self._assembled(reading, decided.candidate, key, decided.notes, decided.tried)

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
        if options.fallback == "warn" and (left := planned.left_over()):
            _warn(_left_over(home, left, planned.plan))
        return planned

    def _say(self, notes: list[str], said: str) -> None:
        notes.append(said)
        if self.options.fallback == "warn":
            _warn(said)

    def _assembled(
        self, reading: Reading, found: Candidate, key: Key | None, notes: Sequence[str],
        tried: tuple[Tried, ...] = (),
    ) -> Entry:  # fmt: skip
        """Make a plan ready to run."""
        options, spare = self.options, reference()
        home, planned = found.home, found.planned
        config = found.config(options.config)
        maker = Maker(home, spare, config, options.fallback, self.memory)
        homes = [home] if options.fallback == "error" else [home, spare]
        plan, graph = planned.plan, planned.plan.graph
        runner = PlanRunner(
            plan, maker.make, maker.rescue, lambda body: make_plan(body, homes, spare).plan
        )
        details = Details(graph, plan, Explanation(planned, maker, tuple(notes), tried).why)
        if key is not None and plan.is_whole and plan.steps[0].region.backend == home.name:
            self.memory.keep_sketch(key, _sketch(reading, found))
        return Entry(
            graph.inputs, runner, reading.arguments, reading.results, home.name,
            len(graph.nodes), lambda: details,
        )  # fmt: skip

    def fields(self) -> dict[str, object] | None:
        """Name what a plan depends on beside the graph; None for what has no name."""
        options = self.options
        if not isinstance(options.backend, str):
            return None
        policy = REGISTRY.default if options.backend == "auto" else options.backend
        names = REGISTRY.backends.names() if policy == "auto" else [policy]
        return {
            "backend": policy, "device": options.device or "any", "level": self.level,
            "fallback": options.fallback, "max_crossings": options.max_crossings,
            **settings(options.config), "engines": ", ".join(map(_version, names)),
            "code": state_of_code(), **dict(host_fields()),
        }  # fmt: skip

    def key(self, reading: Reading, example: Sequence[Any]) -> Key | None:
        """Name what is remembered of a file that was read; None where nothing is."""
        return None if reading.digest is None else self._key(reading.digest, example)

    def _key(self, digest: str, example: Sequence[Any]) -> Key | None:
        fields = self.fields()
        is_plain = self.memory.store is not None and not REGISTRY.extensions.names()
        if fields is None or not is_plain:
            return None
        return Key.of("plan", file=digest, example=" ".join(map(_typed, example)), **fields)

    def recalled(
        self, source: object, example: Sequence[Any], read: Callable[[], Reading]
    ) -> Entry | None:
        """Make an entry of a file that an earlier process compiled, without reading it."""
        if not isinstance(source, str | os.PathLike) or self.memory.store is None:
            return None
        try:
            with Path(source).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None
        key = self._key(digest, example)
        sketch = None if key is None else self.memory.sketch(key)
        if sketch is None:
            return None
        try:
            return self._again(sketch, read)
        except RegistryError:
            return None

    def _again(self, sketch: Sketch, read: Callable[[], Reading]) -> Entry:
        options = self.options
        plugin = REGISTRY.backends.describe(sketch.backend)
        backend = REGISTRY.get(sketch.backend, isolate=options.isolate, limits=options.limits)
        isolated = plugin.reference if options.isolate and not backend.info.trusted else None
        home = Home(backend, sketch.device, isolated, options.limits)
        choice = Choice.from_data(sketch.choice)
        config = choice.config(options.config)
        maker = Maker(home, reference(), config, options.fallback, self.memory)

        def find() -> Details:
            graph = run_pipeline(read().graph).graph
            planned = choice.planned(graph, home, reference(), options.fallback != "error")
            return Details(graph, planned.plan, Explanation(planned, maker).why)

        inputs = tuple(Value(type_, name) for name, type_ in sketch.inputs)
        outline = Outline(
            inputs, sketch.backend, sketch.device, sketch.shapes,
            lambda: entry.details.plan.steps[0].region, sketch.region,
        )  # fmt: skip
        names = tuple(name for name, _ in sketch.inputs)
        tree: Any = Structure.LEAF if sketch.is_alone else (Structure.LEAF,) * len(sketch.outputs)
        entry = Entry(
            inputs, RegionRunner(outline, maker.make, maker.rescue, True),
            Structure((Structure.LEAF,) * len(names), names), Structure(tree, sketch.outputs),
            sketch.backend, sketch.nodes, find,
        )  # fmt: skip
        return entry


def _sketch(reading: Reading, found: Candidate) -> Sketch:
    (step,) = found.planned.plan.steps
    region, graph = step.region, found.planned.plan.graph
    return Sketch(
        tuple((v.name or "", v.type) for v in graph.inputs), reading.results.names,
        reading.results.tree is Structure.LEAF, region.backend, region.device, region.shapes,
        region.outline.digest, len(graph.nodes), Choice.of(found).to_data(),
    )  # fmt: skip


def _typed(example: Any) -> str:
    """Name the type of an example: what a graph is specialised to."""
    if isinstance(example, np.ndarray | np.generic):
        return f"{example.dtype}{list(example.shape)}"
    return repr(example)


def _version(name: str) -> str:
    """Name a backend with the version of what it drives."""
    plugin = REGISTRY.backends.describe(name)
    if plugin.distribution != "fusewire":
        return f"{name} {plugin.version}"
    return f"{name} {REGISTRY.backends.get(name).info.version}"


def _warn(said: str) -> None:
    """Warn at the line outside of this package that asked."""
    depth, frame = 1, sys._getframe(0).f_back
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(said, FallbackWarning, stacklevel=depth)


def _left_over(home: Home, left: Mapping[Node, str], plan: Plan) -> str:
    node, reason = next(iter(left.items()))
    return (
        f"{len(left)} of {len(plan.graph.nodes)} nodes do not run on {home.name} and run on "
        f"{FALLBACK}, in {len(plan.steps)} regions. The first is {node!r}: {reason} "
        "Use fallback='allow' to accept this, or 'error' to refuse it."
    )
