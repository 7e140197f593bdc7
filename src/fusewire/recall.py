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
from fusewire.errors import EngineError, FormatError
from fusewire.frontend import Reading, Structure
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.options import Options
from fusewire.placement.keys import artifact_fields, host_fields, settings, state_of_code
from fusewire.placement.quarantine import quarantined
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
    if key is None or sketch is None:
        return None
    if sketch.cut_at is not None and options.budget_seconds > sketch.cut_at:
        return None
    if any(os.environ.get(name) != x for name, x in sketch.environment.items()):
        return None

    def same() -> Reading:
        found = read()
        if found.digest != digest:
            # What is made of it would be kept, and used, as that of the file that was there.
            raise FormatError(
                f"{source} has changed since it was compiled, and must be read again for this. "
                "Compile it anew."
            )
        return found

    again = _Again(sketch, memory, same, planner, options.deadline)
    if again.is_quarantined:
        memory.drop(key)
        return None
    return again.entry


@dataclass(frozen=True, eq=False)
class _Again:
    """A plan of one region that runs again; ``maker`` makes what turns out not to be there."""

    sketch: Sketch
    memory: Memory
    read: Callable[[], Reading]
    planner: Callable[[], Planner]
    deadline: float
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
    def outline(self) -> Outline:
        """The region, which is read when somebody asks."""
        sketch = self.sketch
        inputs = tuple(Value(type_, name) for name, type_ in sketch.inputs)
        return Outline(
            inputs, sketch.backend, sketch.device, sketch.shapes,
            lambda: self.entry.details.plan.steps[0].region, sketch.region,
        )  # fmt: skip

    @property
    def is_quarantined(self) -> bool:
        """Whether something is held against it, as far as that is known before a call."""
        types = [type_ for _, type_ in self.sketch.inputs]
        is_sized = not any(True for type_ in types for _ in type_symbols(type_))
        if self.sketch.shapes != "dynamic" and not is_sized:
            return False
        tensors = [type_.shape if isinstance(type_, TensorType) else () for type_ in types]
        shapes = [tuple(dim for dim in shape if isinstance(dim, int)) for shape in tensors]
        return quarantined(self.memory, self._key(shapes), self.deadline) is not None

    def _key(self, shapes: Sequence[tuple[int, ...]]) -> Key:
        return Key("artifact", artifact_fields(self.outline, shapes, self.sketch.fields))

    @cached_property
    def entry(self) -> Entry:
        """The entry; its graph is read when somebody asks."""
        sketch, outline = self.sketch, self.outline
        names = tuple(name for name, _ in sketch.inputs)
        tree: Any = Structure.LEAF if sketch.is_alone else (Structure.LEAF,) * len(sketch.outputs)
        return Entry(
            outline.inputs, RegionRunner(outline, self._make, self._rescue, True),
            Structure((Structure.LEAF,) * len(names), names), Structure(tree, sketch.outputs),
            sketch.backend, sketch.nodes, self._find,
        )  # fmt: skip

    def _find(self) -> Details:
        return self.planner().details(self.sketch, self.read(), self.maker)

    def _make(
        self, outline: Outline, graph: Callable[[], Graph], inputs: Sequence[Held]
    ) -> tuple[Executable, Exchange]:
        start = time.perf_counter()
        key = self._key([shape_of(x) for x in inputs])
        is_bad = quarantined(self.memory, key, self.deadline) is not None
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
