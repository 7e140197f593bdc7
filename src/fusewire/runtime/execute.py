"""Run plans. The fast road is one region: a call of its executable and little else."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy import ndarray

from fusewire.backend import Buffer, Done, Event, Exchange, Executable, Held
from fusewire.errors import EngineError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import Dim, Symbol
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ir.verify import attr_symbols
from fusewire.ops.interpret import Interpreter, bind
from fusewire.ops.sample import HostValue
from fusewire.process.guard import guarded, guarded_run
from fusewire.runtime.plan import HOST, Outline, Plan, Step
from fusewire.runtime.transfer import hand_over, to_host

# Makes a region ready to run: given it, its graph for these sizes, and inputs to try it on.
Build = Callable[[Outline, Callable[[], Graph], Sequence[Held]], tuple[Executable, Exchange]]
# Finds another home for a region whose engine failed while running; raises where none is allowed.
Rescue = Callable[[Outline, Graph, EngineError], tuple[Executable, Exchange]]
# Plans a body of control flow once sizes of the graph around it are known.
Replan = Callable[[Graph], Plan]


@final
class Loaded:
    """An executable; ``parts`` is what a call needs to know, in one place.

    After a model that fills the caches, all that a call touches comes from far away.
    """

    __slots__ = ("__weakref__", "parts")

    def __init__(self, executable: Executable, exchange: Exchange) -> None:
        run: Callable[[Sequence[Held]], Event] = executable.run
        is_host = exchange.memory == "host"
        # All that such an engine asks of an array is that its elements lie in a row.
        is_plain = exchange.alignment <= 1 and not exchange.needs_writable
        turn = None if executable.is_reentrant else threading.Lock()
        self.parts = (run, exchange, is_host, is_plain, turn)
        # Not before the last run has ended, which holds this object; nor at the end of all.
        weakref.finalize(self, _close, executable).atexit = False


def _close(executable: Executable) -> None:
    """Have an engine let go; whoever is told of a problem then can do nothing about it."""
    with contextlib.suppress(EngineError):
        guarded("engine", "run", "a region", executable.close)


@final
class RegionRunner:
    """A region and its executables: one, or one per size for an engine that needs sizes."""

    def __init__(
        self, region: Outline, build: Build, rescue: Rescue, is_last: bool = False
    ) -> None:
        """``is_last``: the caller gets what it gives, on the host."""
        self._region = region
        self._is_last = is_last
        self._name = region.backend
        self._build = build
        self._rescue = rescue
        self._symbols = {s for v in region.inputs for s in type_symbols(v.type)}
        self._per_size = region.shapes != "dynamic" and bool(self._symbols)
        self._made: dict[tuple[tuple[int, ...], ...], Loaded] = {}
        self._lock = threading.RLock()

    def run(self, inputs: Sequence[Held], is_rescued: bool = False) -> list[Held]:
        """Run on values from anywhere. What stays on a device is not waited for."""
        # Every call of a program comes this way: loops that end early, and few calls.
        key = tuple(map(shape_of, inputs)) if self._per_size else ()
        loaded = self._made.get(key) or self._make(key, inputs)
        run, exchange, is_host, is_plain, turn = loaded.parts
        name, taken = self._name, inputs
        try:
            for value in inputs:
                if type(value) is ndarray and is_plain and value.flags.c_contiguous:
                    continue
                taken = guarded(name, "run", "a region", _hand_over, inputs, exchange)
                break
            if turn is None:
                found = guarded_run(name, run, taken, is_host)
            else:
                with turn:
                    found = guarded_run(name, run, taken, True)
            if self._is_last:
                for value in found:
                    if type(value) is not ndarray:
                        return guarded(name, "run", "a region", _to_host, found)
            return found
        except EngineError as error:
            if is_rescued:
                raise
            with self._lock:
                made = self._rescue(self._region, self._graph(inputs), error)
                self._made[key] = Loaded(*made)
            return self.run(inputs, is_rescued=True)

    def call(self, inputs: Sequence[Held]) -> list[Any]:
        """Run as the last of a program."""
        return self.run(inputs)

    def _make(self, key: tuple[tuple[int, ...], ...], inputs: Sequence[Held]) -> Loaded:
        with self._lock:
            found = self._made.get(key)
            if found is None:
                made = self._build(self._region, lambda: self._graph(inputs), inputs)
                found = self._made[key] = Loaded(*made)
        return found

    def _graph(self, inputs: Sequence[Held]) -> Graph:
        return self._sized(inputs) if self._per_size else self._region.region.graph

    def _sized(self, inputs: Sequence[Held]) -> Graph:
        sizes: dict[Symbol, int] = {}
        for value, given in zip(self._region.inputs, inputs, strict=True):
            assert isinstance(value.type, TensorType)
            bind(value.type, shape_of(given), sizes, f"The input {value.name}")
        known: dict[Symbol, Dim] = dict(sizes)
        return bind_symbols(self._region.region.graph, known)

    def close(self) -> None:
        """Let go of the executables; one at work is closed when it is done."""
        self._made.clear()


def _hand_over(values: Sequence[Held], exchange: Exchange) -> list[Held]:
    return [hand_over(value, exchange) for value in values]


def _to_host(values: Sequence[Held]) -> list[Held]:
    return [to_host(value) for value in values]


def shape_of(value: Held) -> tuple[int, ...]:
    """Give the shape of an array or a buffer; other values have none."""
    if isinstance(value, np.ndarray | np.generic):
        return tuple(value.shape)
    if not isinstance(value, Buffer):
        return ()
    return tuple(dim for dim in value.type.shape if isinstance(dim, int))


class HostRunner:
    """A control-flow node that the host drives; its bodies run by plan."""

    def __init__(self, step: Step, build: Build, rescue: Rescue, replan: Replan) -> None:
        self._build = build
        self._rescue = rescue
        self._replan = replan
        self._interpreter = Interpreter(step.region.graph, run_body=self._body)
        (node,) = step.region.graph.nodes
        self._plans = {body: step.bodies[key] for key, body in node.graphs()}
        self._mentioned = {body: mentioned_symbols(body) for body in self._plans}
        self._runners: dict[tuple[Graph, tuple[int, ...]], PlanRunner] = {}

    def run(self, inputs: Sequence[Held]) -> list[Held]:
        """Run the node by its own meaning."""
        return self._interpreter([to_host(value) for value in inputs])

    def _body(
        self, graph: Graph, inputs: Sequence[HostValue], outer: dict[Symbol, int]
    ) -> list[HostValue]:
        known = {s: outer[s] for s in self._mentioned[graph] if s in outer}
        key = (graph, tuple(known.values()))
        runner = self._runners.get(key)
        if runner is None:
            sizes: dict[Symbol, Dim] = dict(known)
            plan = self._replan(bind_symbols(graph, sizes)) if known else self._plans[graph]
            runner = self._runners[key] = PlanRunner(plan, self._build, self._rescue, self._replan)
        return runner.run(inputs).wait()

    def close(self) -> None:
        """Let go of the bodies."""
        for runner in self._runners.values():
            runner.close()


def mentioned_symbols(graph: Graph) -> list[Symbol]:
    """List the symbols of a graph, each once, in the order of their first mention."""
    found: dict[Symbol, None] = {}
    for node in graph.nodes:
        attrs = map(attr_symbols, node.attrs.values())
        for part in (*attrs, *map(type_symbols, node.types)):
            found |= dict.fromkeys(part)
    return list(found)


@final
class PlanRunner(Executable):
    """A plan made ready to run."""

    def __init__(self, plan: Plan, build: Build, rescue: Rescue, replan: Replan) -> None:
        self._plan = plan
        whole = plan.is_whole
        self._runners = [
            HostRunner(step, build, rescue, replan)
            if step.region.backend == HOST
            else RegionRunner(step.region.outline, build, rescue, whole)
            for step in plan.steps
        ]
        # Runs to the end and gives what the caller gets: values on the host.
        self.call: Callable[[Sequence[Held]], list[Any]] = (
            self._runners[0].run if whole else self._stepwise
        )

    @property
    def is_reentrant(self) -> bool:
        """Every run has its own values; executables that cannot take turns by themselves do."""
        return True

    def run(
        self,
        inputs: Sequence[Held],
        outputs: Sequence[Held] | None = None,
        stream: object | None = None,
    ) -> Event:
        """Run the steps in order, to the end."""
        return Done(self.call(inputs))

    def _stepwise(self, inputs: Sequence[Held]) -> list[Any]:
        plan = self._plan
        values: list[Any] = [*inputs, *(constant.array for constant in plan.constants)]
        borrowed = len(values)
        values += [None] * (plan.places - borrowed)
        for step, runner in zip(plan.steps, self._runners, strict=True):
            found = runner.run([values[place] for place in step.inputs])
            for place, value in zip(step.outputs, found, strict=True):
                values[place] = value
            for place in step.frees:
                values[place] = None
        # What came in or is a constant is not ours to give away, and nothing is given twice.
        given = []
        taken = set(range(borrowed))
        for place in plan.outputs:
            value = to_host(values[place])
            given.append(value.copy() if place in taken else value)
            taken.add(place)
        return given

    def close(self) -> None:
        """Let go of everything."""
        for runner in self._runners:
            runner.close()
