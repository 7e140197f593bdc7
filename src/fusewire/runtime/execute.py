"""Run plans: steps in order, bodies of control flow by plans of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from fusewire.backend import Done, Event, Executable, Held
from fusewire.host import POOL
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import Dim, Symbol
from fusewire.ir.graph import Graph
from fusewire.ir.types import type_symbols
from fusewire.ir.verify import attr_symbols
from fusewire.ops.interpret import Interpreter
from fusewire.ops.sample import HostValue
from fusewire.runtime.plan import HOST, Plan, Step
from fusewire.runtime.regions import Build, RegionRunner, Rescue
from fusewire.runtime.transfer import to_host

# Plans a body of control flow once sizes of the graph around it are known.
Replan = Callable[[Graph], Plan]


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
        """Let go of everything, and of memory that waits to be used again."""
        for runner in self._runners:
            runner.close()
        POOL.clear()
