"""A model file that an earlier process compiled: found by its digest, loaded, not read.

Nothing is parsed, planned, asked or compiled, and nothing that would do so is imported, until it
turns out to be needed. What is recalled was proved in a child when it was made, on this machine,
with these packages; whatever does not fit is forgotten, and the model is compiled as if new.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fusewire.backend import Backend, Exchange, Executable, Held
from fusewire.errors import EngineError
from fusewire.frontend import Reading, Structure
from fusewire.ir.graph import Graph, Value
from fusewire.options import Options
from fusewire.placement.keys import artifact_fields, host_fields, settings, state_of_code
from fusewire.placement.remember import Made, Memory, Sketch
from fusewire.process.guard import guarded
from fusewire.runtime.entry import Details, Entry
from fusewire.runtime.plan import Outline
from fusewire.runtime.regions import RegionRunner, shape_of
from fusewire.runtime.why import Contacted
from fusewire.store.disk import shared_store
from fusewire.store.key import Key


class Maker(Protocol):
    """Makes regions ready that are not remembered after all."""

    def make(
        self, outline: Outline, graph: Callable[[], Graph], inputs: Sequence[Held]
    ) -> tuple[Executable, Exchange]: ...

    def rescue(
        self, outline: Outline, graph: Graph, error: EngineError
    ) -> tuple[Executable, Exchange]: ...


class Planner(Protocol):
    """Does what recalling spares, where it turns out to be needed."""

    def maker(self, sketch: Sketch, contacts: list[Made]) -> Any: ...

    def details(self, sketch: Sketch, reading: Reading, maker: Any) -> Details: ...


def file_key(digest: str, example: Sequence[Any], options: Options) -> Key | None:
    """Name what is remembered of a file; None where nothing is."""
    registry = sys.modules.get("fusewire.registry")
    is_changed = registry is not None and registry.REGISTRY.default != "auto"
    if not isinstance(options.backend, str) or is_changed:
        return None
    return Key.of(
        "plan", file=digest, example=" ".join(map(_typed, example)), backend=options.backend,
        device=options.device or "any", level=options.level, fallback=options.fallback,
        max_crossings=options.max_crossings, canary=options.canary, **settings(options.config),
        packages=_packages(), code=state_of_code(), **dict(host_fields()),
    )  # fmt: skip


def _typed(example: Any) -> str:
    """Name the type of an example: what a graph is specialised to."""
    if isinstance(example, np.ndarray | np.generic):
        return f"{example.dtype}{list(example.shape)}"
    return repr(example)


def _packages() -> str:
    """Tell whether anything was installed, replaced or removed since."""
    folders = [Path(path) for path in sys.path if path.endswith("-packages")]
    states = [f"{path} {path.stat().st_mtime_ns}" for path in folders if path.is_dir()]
    return hashlib.sha256("\n".join(states).encode()).hexdigest()[:16]


def recalled(
    source: object, example: Sequence[Any], options: Options, read: Callable[[], Reading],
    planner: Callable[[], Planner],
) -> Entry | None:  # fmt: skip
    """Make an entry of a file that was compiled before; ``read`` reads it after all."""
    store = shared_store() if options.cache else None
    if not isinstance(source, str | os.PathLike) or store is None:
        return None
    try:
        with Path(source).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
    memory = Memory(store)
    key = file_key(digest, example, options)
    sketch = None if key is None else memory.sketch(key)
    if sketch is None or any(os.environ.get(name) != x for name, x in sketch.environment.items()):
        return None
    return _Again(sketch, memory, read, planner).entry


@dataclass(frozen=True, eq=False)
class _Again:
    """A plan of one region that runs again; ``maker`` makes what turns out not to be there."""

    sketch: Sketch
    memory: Memory
    read: Callable[[], Reading]
    planner: Callable[[], Planner]
    contacts: list[Made] = field(default_factory=list)

    @cached_property
    def maker(self) -> Maker:
        maker: Maker = self.planner().maker(self.sketch, self.contacts)
        return maker

    @cached_property
    def backend(self) -> Backend:
        # The store's entries are authenticated: the name is one that we wrote.
        module, _, name = self.sketch.reference.partition(":")
        backend: Backend = getattr(import_module(module), name)()
        return backend

    @cached_property
    def entry(self) -> Entry:
        """The entry; its graph is read when somebody asks."""
        sketch = self.sketch
        inputs = tuple(Value(type_, name) for name, type_ in sketch.inputs)
        outline = Outline(
            inputs, sketch.backend, sketch.device, sketch.shapes,
            lambda: self.entry.details.plan.steps[0].region, sketch.region,
        )  # fmt: skip
        names = tuple(name for name, _ in sketch.inputs)
        tree: Any = Structure.LEAF if sketch.is_alone else (Structure.LEAF,) * len(sketch.outputs)
        return Entry(
            inputs, RegionRunner(outline, self._make, self._rescue, True),
            Structure((Structure.LEAF,) * len(names), names), Structure(tree, sketch.outputs),
            sketch.backend, sketch.nodes, self._find,
        )  # fmt: skip

    def _find(self) -> Details:
        return self.planner().details(self.sketch, self.read(), self.maker)

    def _make(
        self, outline: Outline, graph: Callable[[], Graph], inputs: Sequence[Held]
    ) -> tuple[Executable, Exchange]:
        start = time.perf_counter()
        shapes = [shape_of(x) for x in inputs]
        key = Key("artifact", artifact_fields(outline, shapes, self.sketch.fields))
        is_bad = self.memory.get(Key("quarantine", key.fields)) is not None
        held = None if is_bad else self.memory.artifact(key)
        if held is None:
            return self.maker.make(outline, graph, inputs)
        artifact, weights = held
        if any(slot.digest not in weights for slot in artifact.slots if slot.digest is not None):
            return self.maker.make(outline, graph, inputs)
        name, backend = self.sketch.backend, self.backend
        try:
            made = guarded(name, "load", name, backend.load, artifact, outline.device, weights)
        except EngineError:
            self.memory.drop(key)
            return self.maker.make(outline, graph, inputs)
        types = tuple(str(value.type) for value in outline.inputs)
        took = {"load_seconds": time.perf_counter() - start}
        contacted = Contacted("", name, types, "ready", name, False, metrics=took, cache="hit")
        self.contacts.append(Made(outline, contacted, key))
        return made, backend.exchange

    def _rescue(
        self, outline: Outline, graph: Graph, error: EngineError
    ) -> tuple[Executable, Exchange]:
        return self.maker.rescue(outline, graph, error)
