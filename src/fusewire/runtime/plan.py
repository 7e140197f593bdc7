"""A plan: which region runs where, as data. Who decides is in placement, who runs in execute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusewire.backend import Device, Shapes
from fusewire.ir.graph import Constant, Graph

# The home of control-flow nodes that no backend takes whole: their bodies run by plan.
HOST = "host"


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that one backend runs together, as a graph of their own."""

    graph: Graph
    backend: str
    device: Device
    shapes: Shapes


@dataclass(frozen=True, eq=False)
class Step:
    """One region, and where its values lie in the list of values of a run."""

    region: Region
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    bodies: Mapping[str, Plan] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Plan:
    """Steps in order. The first places hold the inputs, then come ``constants``."""

    graph: Graph
    steps: tuple[Step, ...]
    constants: tuple[Constant, ...]
    outputs: tuple[int, ...]
    places: int

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
            name = step.region.backend
            count += sum(makers.get(place, name) != name for place in step.inputs)
            makers |= dict.fromkeys(step.outputs, name)
            count += sum(body.crossings() for body in step.bodies.values())
        return count
