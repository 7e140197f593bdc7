"""Run a plan that another process made: artifacts are loaded, and graphs read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from typing import Any, Protocol

from fusewire.contract.backend import Backend, Exchange, Executable, Held
from fusewire.contract.frontend import Reading, Structure
from fusewire.errors import EngineError
from fusewire.ir.graph import Array, Constant, Graph, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.options import FALLBACK
from fusewire.records.keys import artifact_fields, body_key
from fusewire.records.quarantine import quarantined
from fusewire.records.remember import Kept, Made, Memory
from fusewire.records.sketch import Sketch
from fusewire.runtime.entry import Details, Entry
from fusewire.runtime.execute import PlanRunner
from fusewire.runtime.plan import HOST, Course, Outline, Region
from fusewire.runtime.regions import shape_of
from fusewire.runtime.why import Contacted
from fusewire.store.ahead import Ahead
from fusewire.store.key import Key
from fusewire.trials.reload import reload


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

    def replanned(self, maker: Any, body: Graph, key: Key | None) -> Course: ...


@dataclass(frozen=True, eq=False)
class Again:
    """A plan that runs again; ``maker`` makes what turns out not to be there."""

    key: Key
    sketch: Sketch
    memory: Memory
    read: Callable[[], Reading]
    planner: Callable[[], Planner]
    deadline: float
    contacts: list[Made] = field(default_factory=list)
    ahead: dict[Key, Ahead[Kept | None]] = field(default_factory=dict)

    @cached_property
    def maker(self) -> Maker:
        maker: Maker = self.planner().maker(self.sketch, self.contacts)
        return maker

    @cached_property
    def backends(self) -> dict[str, Backend]:
        return {}

    def _backend(self, name: str) -> Backend:
        if name not in self.backends:
            # The store's entries are authenticated: the name is one that we wrote.
            module, _, kind = self.sketch.stations[name].reference.partition(":")
            self.backends[name] = getattr(import_module(module), kind)()
        return self.backends[name]

    @cached_property
    def course(self) -> Course:
        return self.sketch.course(lambda: self.entry.details.plan.course, self._told)

    @cached_property
    def _sure(self) -> list[Key]:
        """The keys of artifacts that are known before a call."""
        found = [_sizes(step.outline) for step in self.course.steps]
        pairs = zip(self.course.steps, found, strict=True)
        return [self._key(step.outline, shapes) for step, shapes in pairs if shapes is not None]

    @property
    def is_quarantined(self) -> bool:
        """Whether something is held against it, as far as that is known before a call."""
        held = (quarantined(self.memory, key, self.deadline) for key in self._sure)
        return any(fact is not None for fact in held)

    def begin(self) -> None:
        """Begin to read what takes long."""
        for key in self._sure:
            if self.memory.is_large(key):
                self.ahead[key] = Ahead(partial(self.memory.artifact, key))

    def _key(self, outline: Outline, shapes: Sequence[tuple[int, ...]]) -> Key:
        name = FALLBACK if outline.backend == HOST else outline.backend
        fields = self.sketch.stations[name].fields
        return Key("artifact", artifact_fields(outline, shapes, fields))

    @cached_property
    def entry(self) -> Entry:
        """The entry; its graph is read when somebody asks."""
        sketch = self.sketch
        inputs = tuple(Value(type_, name) for name, type_ in sketch.inputs)
        names = tuple(name for name, _ in sketch.inputs)
        tree: Any = Structure.LEAF if sketch.is_alone else (Structure.LEAF,) * len(sketch.outputs)
        runner = PlanRunner(self.course, self._make, self._rescue, self._replan)
        return Entry(
            inputs,
            runner,
            Structure((Structure.LEAF,) * len(names), names),
            Structure(tree, sketch.outputs),
            sketch.backend,
            sketch.nodes,
            self._find,
        )

    def _find(self) -> Details:
        return self.planner().details(self.sketch, self.read(), self.maker)

    def _told(self, outline: Outline) -> Region | None:
        """Read the graph of what the host drives; its weights only if somebody asks for them."""
        held = self.memory.artifact(self._key(outline, ())) if outline.backend == HOST else None
        if held is None:
            return None
        from fusewire.ir.text import parse_graph

        artifact, _ = held
        weights = {
            slot.digest: Constant(
                TensorType(slot.dtype, slot.dims), partial(self._weight, slot.digest), slot.digest
            )
            for slot in artifact.slots
            if slot.digest is not None
        }
        graph = parse_graph(artifact.payload.decode(), weights)
        return Region(graph, HOST, outline.device, outline.shapes)

    def _weight(self, digest: str) -> Array:
        from fusewire.ir.text import constants_of

        return constants_of(self.entry.graph)[digest].array

    def _replan(self, body: Graph) -> Course:
        key = body_key(self.key, body)
        course = self.memory.course(key)
        if course is None:
            return self.planner().replanned(self.maker, body, self.key)
        return course(lambda: self.planner().replanned(self.maker, body, None), self._told)

    def _make(
        self, outline: Outline, graph: Callable[[], Graph], inputs: Sequence[Held]
    ) -> tuple[Executable, Exchange]:
        key = self._key(outline, [shape_of(x) for x in inputs])
        if quarantined(self.memory, key, self.deadline) is not None:
            return self.maker.make(outline, graph, inputs)
        name = outline.backend
        ahead, backend = self.ahead.pop(key, None), self._backend(name)
        held = self.memory.artifact(key) if ahead is None else ahead.result()
        found = None if held is None else reload(self.memory, key, held, outline, backend, graph)
        if found is None:
            return self.maker.make(outline, graph, inputs)
        types = tuple(str(value.type) for value in outline.inputs)
        took = {"load_seconds": found.seconds}
        contacted = Contacted("", name, types, "ready", name, False, metrics=took, cache="hit")
        self.contacts.append(Made(outline, contacted, key))
        return found.executable, found.exchange

    def _rescue(
        self, outline: Outline, graph: Graph, error: EngineError
    ) -> tuple[Executable, Exchange]:
        return self.maker.rescue(outline, graph, error)


def _sizes(outline: Outline) -> list[tuple[int, ...]] | None:
    """Give the sizes that the artifact of a region depends on, where a call decides none."""
    types = [value.type for value in outline.inputs]
    is_sized = not any(True for type_ in types for _ in type_symbols(type_))
    if outline.backend == HOST or (outline.shapes != "dynamic" and not is_sized):
        return None
    tensors = [type_.shape if isinstance(type_, TensorType) else () for type_ in types]
    return [tuple(dim for dim in shape if isinstance(dim, int)) for shape in tensors]
