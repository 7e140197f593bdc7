"""A plan: which region runs where, as data. Who decides is in placement, who runs in execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fusewire.contract.backend import Device, Shapes
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.hash import exact_hash

# The home of control-flow nodes that no backend takes whole: their bodies run by plan.
HOST = "host"


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that one backend runs together, as a graph of their own."""

    graph: Graph
    backend: str
    device: Device
    shapes: Shapes

    @cached_property
    def outline(self) -> Outline:
        """What of it a run has to know."""
        return Outline(self.graph.inputs, self.backend, self.device, self.shapes, lambda: self)


@dataclass(frozen=True, eq=False)
class Outline:
    """What running a region takes to know; the region itself is looked for when it is built.

    ``told`` is the digest of one that was not looked for yet.
    """

    inputs: tuple[Value, ...]
    backend: str
    device: Device
    shapes: Shapes
    find: Callable[[], Region]
    told: str = ""

    @cached_property
    def region(self) -> Region:
        return self.find()

    @cached_property
    def digest(self) -> str:
        """The exact hash of its graph, sizes left open."""
        return self.told or exact_hash(self.region.graph)


@dataclass(frozen=True, eq=False)
class Step:
    """One region, and where its values lie in the list of values of a run."""

    outline: Outline
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    bodies: Mapping[str, Course] = field(default_factory=dict)

    @property
    def region(self) -> Region:
        return self.outline.region


@dataclass(frozen=True, eq=False)
class Course:
    """Steps in order, as a run goes through them.

    The first places hold the inputs, ``takes`` of them, then come ``constants``.
    """

    takes: int
    steps: tuple[Step, ...]
    constants: tuple[Array, ...]
    outputs: tuple[int, ...]
    places: int

    @property
    def is_whole(self) -> bool:
        """Whether it is one region that takes and gives exactly what the plan does."""
        if len(self.steps) != 1:
            return False
        (step,) = self.steps
        return step.inputs == tuple(range(self.takes)) and step.outputs == self.outputs

    def regions(self) -> list[Region]:
        """List the regions, those of bodies included."""
        found = []
        for step in self.steps:
            found.append(step.region)
            for body in step.bodies.values():
                found += body.regions()
        return found

    def crossings(self) -> int:
        """Count the tensors that go from one backend to another."""
        makers: dict[int, str] = {}
        count = 0
        for step in self.steps:
            name = step.outline.backend
            count += sum(makers.get(place, name) != name for place in step.inputs)
            makers |= dict.fromkeys(step.outputs, name)
            count += sum(body.crossings() for body in step.bodies.values())
        return count


@dataclass(frozen=True, eq=False)
class Plan:
    """A graph, and how it runs."""

    graph: Graph
    course: Course

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.course.steps

    @property
    def is_whole(self) -> bool:
        """Whether it is one region that takes and gives exactly what the plan does."""
        return self.course.is_whole

    def regions(self) -> list[Region]:
        """List the regions, those of bodies included."""
        return self.course.regions()

    def crossings(self) -> int:
        """Count the tensors that go from one backend to another."""
        return self.course.crossings()
