"""A plan: which region runs where, as data.

planning/ makes plans, execute.py runs them, and records/ saves them. A saved plan has the same
class: its graphs are named by digest, and are loaded when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from fusewire.contract.backend import Device, Shapes
from fusewire.contract.devices import CPU
from fusewire.dtypes import bool_
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.hash import exact_hash
from fusewire.ir.types import TensorType, Type
from fusewire.plan.finite import float_places
from fusewire.plan.guards import Guard
from fusewire.store.code_state import meanings_state

if TYPE_CHECKING:
    from fusewire.contract.model_file import ModelFile

# The backend of control-flow nodes that no backend takes whole: the host drives them, and their
# bodies have plans of their own.
HOST = "host"
# The user's own function among backends.
FUNCTION = "function"
# The backends whose steps the interpreter runs, under the limits of the call.
INTERPRETED = (HOST, "reference")


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that one backend runs together.

    A call needs only the inputs and the backend; ``load`` returns the graph when the region is
    built. ``saved_digest`` is its digest in a saved plan. With ``load_file`` the engine reads the
    model file by itself, in place of the graph; ``loses_nan`` says that its own nodes may then lose
    a NaN or an infinity.
    """

    inputs: tuple[Value, ...]
    backend: str
    device: Device
    shapes: Shapes
    load: Callable[[Region], Graph]
    saved_digest: str = ""
    load_file: Callable[[Region], ModelFile] | None = None
    loses_nan: bool = False

    @staticmethod
    def of(
        graph: Graph,
        backend: str,
        device: Device,
        shapes: Shapes,
        file: ModelFile | None = None,
        *,
        loses_nan: bool = False,
    ) -> Region:
        """Make a region of a graph that is loaded already."""
        load_file = None if file is None else lambda region: file
        load: Callable[[Region], Graph] = lambda region: graph  # noqa: E731 - as that of a file
        return Region(
            graph.inputs, backend, device, shapes, load, "", load_file, loses_nan=loses_nan
        )

    def exact(self) -> Region:
        """Return the region that the engine runs by our graph, if its own nodes may lose NaN."""
        if not self.loses_nan:
            return self
        return replace(
            self, load=lambda _: self.graph, saved_digest="", load_file=None, loses_nan=False
        )

    @cached_property
    def graph(self) -> Graph:
        return self.load(self)

    def title(self) -> str:
        """Name it for people; the graph may have to be loaded for that."""
        return self.graph.name

    @cached_property
    def file(self) -> ModelFile | None:
        """The model file that the engine reads by itself; None if it gets the graph."""
        return None if self.load_file is None else self.load_file(self)

    @cached_property
    def digest(self) -> str:
        """The exact hash of the graph, with symbolic sizes left open; with that of the file.

        Ops of packages add the state of the code that says what they mean.
        """
        if self.saved_digest:
            return self.saved_digest
        digest = exact_hash(self.graph)
        # Kernels of packages were judged by what their ops meant.
        digest += f" ops {meanings}" if (meanings := meanings_state(self.graph)) else ""
        return digest if self.file is None else f"{digest} file {self.file.digest}"


@dataclass(frozen=True, eq=False)
class Step:
    """One region, and the places of its values in the list of values of a run.

    ``guards`` are checked before it runs. ``peaks`` is what an engine holds at once, in bytes, by
    the sizes of its inputs. In a plan of several steps, others may have found these sizes: beyond
    the limit of the call, the engine does not run.
    """

    region: Region
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    bodies: Mapping[str, Plan] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    peaks: tuple[Dim, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """The steps of a graph in order, as a run goes through them.

    A run keeps its values in a list of ``places`` items: first the inputs, ``takes`` of them, then
    the ``constants``. ``load`` returns the graph, for explanations. ``guards`` are checked before
    the first step. ``steady`` has the places of the inputs that kernels rely on to stay as they
    are.
    """

    takes: int
    steps: tuple[Step, ...]
    constants: tuple[Array, ...]
    outputs: tuple[int, ...]
    places: int
    load: Callable[[], Graph]
    guards: tuple[Guard, ...] = ()
    steady: tuple[int, ...] = ()

    @cached_property
    def graph(self) -> Graph:
        return self.load()

    @property
    def is_whole(self) -> bool:
        """Whether one region of a backend takes and gives exactly what the plan does."""
        if len(self.steps) != 1:
            return False
        (step,) = self.steps
        if step.region.backend == HOST:
            return False
        return step.inputs == tuple(range(self.takes)) and step.outputs == self.outputs

    def float_places(self) -> tuple[int, ...]:
        """List the places of the inputs that regions take and that may have a NaN."""
        pairs = (zip(step.inputs, step.region.inputs, strict=True) for step in self.steps)
        return float_places(chain.from_iterable(pairs), self.takes)

    def exact(self) -> Plan:
        """Return the plan for calls of which no NaN may be lost; its engines must keep them too."""
        steps = (replace(step, region=step.region.exact()) for step in self.steps)
        return replace(self, steps=tuple(steps))

    @property
    def guarded_inputs(self) -> tuple[int, ...]:
        """The places of the inputs that some guard is about."""
        guards = (*self.guards, *(guard for step in self.steps for guard in step.guards))
        return tuple(sorted({x.place for x in guards if x.place < self.takes}))

    @property
    def truth_places(self) -> tuple[int, ...]:
        """The places of ``steady`` that regions take as booleans."""
        pairs = (pair for x in self.steps for pair in zip(x.inputs, x.region.inputs, strict=True))
        steady = frozenset(self.steady)
        return tuple(sorted({at for at, value in pairs if at in steady and is_truth(value)}))

    def regions(self) -> list[Region]:
        """List the regions, including those of bodies."""
        regions = []
        for step in self.steps:
            regions.append(step.region)
            for body in step.bodies.values():
                regions += body.regions()
        return regions

    def host_bytes(self) -> int | None:
        """Count what a run with arrays copies between the host and devices, without bodies.

        None if a size is open.
        """
        # The memory that each value is in; what is given is on the host.
        memories: dict[int, str] = {}
        count: Dim = 0
        types: dict[int, Type] = {}
        for step in self.steps:
            kind, own = step.region.device.kind, step.region.device.id
            here = CPU if kind == CPU or step.region.backend == HOST else own
            for place, value in zip(step.inputs, step.region.inputs, strict=True):
                sides = {here, memories.get(place, CPU)}
                count = count + _bytes(value.type) * len(sides - {CPU}) * (len(sides) > 1)
            types |= zip(step.outputs, (v.type for v in step.region.graph.outputs), strict=True)
            memories |= dict.fromkeys(step.outputs, here)
        for place in self.outputs:
            if memories.get(place, CPU) != CPU:
                count = count + _bytes(types[place])
        return count if isinstance(count, int) else None

    def outside(self, backends: Collection[str]) -> list[int]:
        """List the numbers of the steps that run on other backends, in whole or in part."""
        return [at for at, step in enumerate(self.steps) if not _is_within(step, backends)]

    def crossings(self) -> int:
        """Count the tensors that one backend hands over to another."""
        makers: dict[int, str] = {}
        count = 0
        for step in self.steps:
            name = step.region.backend
            count += sum(makers.get(place, name) != name for place in step.inputs)
            makers |= dict.fromkeys(step.outputs, name)
            count += sum(body.crossings() for body in step.bodies.values())
        return count


def is_truth(value: Value) -> bool:
    """Tell whether a value has booleans, whose bytes engines compute with."""
    return isinstance(value.type, TensorType) and value.type.dtype is bool_


def _is_within(step: Step, backends: Collection[str]) -> bool:
    if step.region.backend != HOST:
        return step.region.backend in backends
    # The host drives control flow; what takes time are its bodies.
    inner = [region.backend for body in step.bodies.values() for region in body.regions()]
    return all(name == HOST or name in backends for name in inner)


def _bytes(type_: Type) -> Dim:
    return type_.size * type_.dtype.itemsize if isinstance(type_, TensorType) else 0
