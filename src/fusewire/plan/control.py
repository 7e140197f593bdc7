"""Run control flow that no backend takes whole: the host drives it, its bodies have plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from fusewire.contract.backend import Held
from fusewire.events import EVENTS
from fusewire.host_memory import owned
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import Dim, Symbol
from fusewire.ir.graph import Graph, HostValue
from fusewire.ir.types import type_symbols
from fusewire.ir.verify import attr_symbols
from fusewire.ops.interpret import Interpreter
from fusewire.plan.plan import Plan, Step
from fusewire.plan.regions import RegionBuilder
from fusewire.plan.transfer import fetched

if TYPE_CHECKING:
    from fusewire.plan.execute import PlanRunner


@final
class HostRunner:
    """A control-flow node that the host drives; its bodies have plans of their own.

    ``prepare`` makes the plan of a body ready to run.
    """

    def __init__(
        self,
        step: Step,
        builder: RegionBuilder,
        prepare: Callable[[Plan, RegionBuilder], PlanRunner],
    ) -> None:
        self._builder, self._prepare = builder, prepare
        self._region = step.region
        self._interpreter = Interpreter(step.region.graph, run_body=self._body)
        (node,) = step.region.graph.nodes
        self._plans = {body: step.bodies[key] for key, body in node.graphs()}
        self._mentioned = {body: mentioned_symbols(body) for body in self._plans}
        self._runners: dict[tuple[Graph, tuple[int, ...]], PlanRunner] = {}

    def run(self, inputs: Sequence[Held]) -> list[Held]:
        """Run the node with the interpreter."""
        region = self._region
        arrays = [fetched(value) for value in inputs]
        with EVENTS.span("region", region.title, backend=region.backend, device="cpu"):
            outputs = self._interpreter(arrays)
        # A loop that never ran returns what it was given.
        taken = [x for x in arrays if isinstance(x, np.ndarray)]
        return [owned(x, taken) for x in outputs]

    def _body(
        self, graph: Graph, inputs: Sequence[HostValue], outer: dict[Symbol, int]
    ) -> list[HostValue]:
        known = {s: outer[s] for s in self._mentioned[graph] if s in outer}
        key = (graph, tuple(known.values()))
        runner = self._runners.get(key)
        if runner is None:
            sizes: dict[Symbol, Dim] = dict(known)
            plan = self._plans[graph]
            if known:
                assert self._builder.plan_body is not None, "its plan has control flow"
                plan = self._builder.plan_body(bind_symbols(graph, sizes))
            runner = self._runners[key] = self._prepare(plan, self._builder)
        return runner.run(inputs)

    def close(self) -> None:
        """Close the runners of the bodies."""
        # A copy: a running call may add to them.
        for runner in [*self._runners.values()]:
            runner.close()


def mentioned_symbols(graph: Graph) -> list[Symbol]:
    """List the symbols of a graph, each once, in the order of their first mention."""
    symbols: dict[Symbol, None] = {}
    for node in graph.nodes:
        attrs = map(attr_symbols, node.attrs.values())
        for part in (*attrs, *map(type_symbols, node.types)):
            symbols |= dict.fromkeys(part)
    return list(symbols)
