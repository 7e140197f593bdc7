"""Find the first wrong node of a graph that an engine gets wrong, and the least that shows it.

Prefixes of the graph are run on the engine, with what they hand on as outputs: about as many as
the logarithm of the number of nodes. The node at which they turn wrong is then run alone, on the
oracle's own values rounded to what is stored. Where it is right alone, the engine makes the mistake
when it runs it together with others: nodes before it are added until the mistake is there, and
left out again one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusewire.choosing.judge import Judge, Judgement, Run, answers
from fusewire.contract.backend import Config, Device, Refusal
from fusewire.errors import EngineError, FusewireError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.numerics.bound import bindings_of
from fusewire.numerics.judge import Alone
from fusewire.numerics.oracle import Oracle
from fusewire.numerics.spread import Expected
from fusewire.ops.interpret import Interpreter
from fusewire.ops.sample import HostValue
from fusewire.planning.partition import Cutter
from fusewire.process.guard import BY_CODE
from fusewire.process.isolate import Contact, first_contact, rerun
from fusewire.process.limits import ChildLimits

# Compiles a graph on an engine; what runs it raises EngineError where the engine does not.
Build = Callable[[Graph], Run]
# Runs of an oracle: a fault that is worth looking for is larger than what more would tell.
_RUNS = 4
# Nodes of the largest region that is tried where no node is wrong alone.
_MOST_NODES = 32
# Prefixes of which the oracle learns at once what they hand on.
_AT_ONCE = 15
# After so many prefixes that the engine does not run, the search ends where it is.
_MOST_SILENT = 8


@dataclass(frozen=True, eq=False)
class Culprit:
    """The first wrong node, by its place in the graph, and the least region that is wrong.

    ``alone``: the region is that node. ``region`` has ``inputs`` as stored; ``expected`` is what
    it must give. ``steps`` counts what the engine compiled for this.
    """

    place: int
    op: str
    source: str
    alone: bool
    judged: Judgement
    region: Graph
    inputs: tuple[HostValue, ...]
    expected: tuple[Expected, ...]
    steps: int

    def to_data(self) -> dict[str, Any]:
        """Give it as what JSON has."""
        return {
            "place": self.place,
            "op": self.op,
            "source": self.source,
            "alone": self.alone,
            "nodes": [node.op for node in self.region.nodes],
            "judged": self.judged.to_data(),
            "steps": self.steps,
        }


def engine(
    reference: str,
    device: Device,
    config: Config,
    limits: ChildLimits = ChildLimits(),
    *,
    isolate: bool = True,
) -> Build:
    """Compile on the backend that "module:Class" names, in a child."""

    def build(region: Graph) -> Run:
        met: list[Contact] = []

        def run(inputs: Sequence[HostValue]) -> list[HostValue]:
            found = (
                rerun(met[0], inputs, limits)
                if met
                else first_contact(
                    reference, region, device, config, inputs, limits, isolate=isolate
                )
            )
            if isinstance(found, Refusal):
                raise BY_CODE[found.code](found.reason, found.suggestion)
            if not isinstance(found, Contact):
                return found
            met.append(found)
            return found.outputs

        return run

    return build


def find_culprit(
    graph: Graph, inputs: Sequence[HostValue], build: Build, *, deadline: float | None = None
) -> Culprit | None:
    """Find what an engine gets wrong in a graph on inputs; None where it gets nothing wrong.

    ``deadline`` is a time of ``time.monotonic()``: what is found by then is given, or None.
    """
    inquest = _Inquest(graph, inputs, build, math.inf if deadline is None else deadline)
    count = inquest.least_wrong()
    return None if count is None else inquest.culprit(count)


class _Inquest:
    def __init__(
        self, graph: Graph, inputs: Sequence[HostValue], build: Build, deadline: float
    ) -> None:
        self._graph = bind_symbols(graph, dict(bindings_of(graph, inputs)))
        self._given = dict(zip(self._graph.inputs, inputs, strict=True))
        other = Judge(self._graph, inputs).other()
        self._other = None if other is None else dict(zip(self._graph.inputs, other, strict=True))
        self._oracle = Oracle(self._graph, inputs, runs=_RUNS)
        self._build = build
        self._deadline = deadline
        self._steps = 0
        self._values: dict[Value, HostValue] = {}
        # For each prefix that was run, the nodes of which it hands on wrong values.
        self._wrong: dict[int, set[Node]] = {}

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def least_wrong(self) -> int | None:
        """Bisect; the length of a prefix that is wrong, while one node less is right."""
        right, wrong = 0, len(self._graph.nodes)
        known = self._known(right, wrong)
        # Prefixes that the engine does not run say nothing.
        silent: set[int] = set()
        if not self._is_wrong(wrong):
            return None
        while wrong - right > 1 and len(silent) < _MOST_SILENT and not self._is_late:
            inside = [k for k in known if right < k < wrong and k not in silent]
            if not inside:
                new = self._known(right, wrong)
                known, inside = [*known, *new], [k for k in new if k not in silent]
                if not inside:
                    break
            count = min(inside, key=lambda k: abs(k - (right + wrong) // 2))
            verdict = self._is_wrong(count)
            if verdict is None:
                silent.add(count)
            else:
                right, wrong = (right, count) if verdict else (count, wrong)
        return None if self._is_late else wrong

    def _known(self, right: int, wrong: int) -> list[int]:
        """Choose prefixes, and have the oracle learn what all of them hand on at once."""
        step = max(1.0, (wrong - right) / (_AT_ONCE + 1))
        places = {round(right + step * i) for i in range(1, _AT_ONCE + 1)}
        found = sorted(k for k in places if right < k < wrong)
        handed = [v for k in (*found, wrong) for v in self._prefix(k)[2]]
        self._oracle.values(handed)
        return found

    def _prefix(self, count: int) -> tuple[Graph, list[Value], list[Value]]:
        """Cut a prefix out; give the values that it takes, and those that it hands on."""
        nodes = self._graph.nodes
        return Cutter(self._graph, [nodes[:count], nodes[count:]]).region(0, "prefix")

    def _is_wrong(self, count: int) -> bool | None:
        cut, taken, made = self._prefix(count)
        if not made:
            return False
        self._steps += 1
        inputs = [self._given[v] for v in taken]
        other = None if self._other is None else [self._other[v] for v in taken]
        wrong: set[Node] = set()
        try:
            for answer in answers(self._build(cut), inputs, other):
                for value, x in zip(made, answer, strict=True):
                    if value.node and self._oracle.judge_value(value, x).status == "wrong":
                        wrong.add(value.node)
        except EngineError:
            return None
        self._wrong[count] = wrong
        return bool(wrong)

    def culprit(self, count: int) -> Culprit:
        """Take the least region around a node that is wrong: the node, a few, or all before it."""
        # Mostly it is the last of the prefix; but where the engine is wrong only about what it
        # keeps to itself, the last node is the one that no longer asks for a value.
        node = next(node for node in self._graph.nodes if node in self._wrong[count])
        before = _nearest(node)[:_MOST_NODES]
        self._learn({value for other in before for value in other.operands})
        size = 1
        found = self._tried(node, before[:size])
        while found is None and size < len(before) and not self._is_late:
            size *= 2
            found = self._tried(node, before[:size])
        kept = list(before[:size])
        # From the far end: what is left out there leaves the rest connected.
        for other in reversed(before[1:size]) if found is not None else ():
            fewer = [n for n in kept if n is not other]
            less = None if self._is_late else self._tried(node, fewer)
            if less is not None:
                kept, found = fewer, less
        region, inputs, judged = found or self._whole(count)
        return Culprit(
            self._graph.nodes.index(node),
            node.op,
            node.source or "",
            len(region.nodes) == 1,
            judged,
            region,
            inputs,
            tuple(Alone(region, inputs).expected),
            self._steps,
        )

    def _judged(
        self, region: Graph, inputs: Sequence[HostValue], *, alone: bool
    ) -> Judgement | None:
        self._steps += 1
        try:
            judge = Judge(region, inputs, runs=_RUNS, only=("given",), alone=alone)
            return judge.judge(self._build(region))
        except EngineError:
            return None

    def _tried(
        self, node: Node, nodes: Sequence[Node]
    ) -> tuple[Graph, tuple[HostValue, ...], Judgement] | None:
        """Run nodes on the oracle's values; give the region if it is wrong."""
        reach = Graph(self._graph.inputs, node.outputs)
        inside = set(nodes)
        ordered = [n for n in reach.nodes if n in inside]
        rest = [n for n in reach.nodes if n not in inside]
        region, taken, _ = Cutter(reach, [ordered, rest]).region(0, node.op)
        inputs = tuple(self._read(value) for value in taken)
        try:
            judged = self._judged(region, inputs, alone=True)
        except (FusewireError, ValueError):
            # Values that were rounded to what is stored may be none that the region takes.
            return None
        is_wrong = judged is not None and judged.status == "wrong"
        return (region, inputs, judged) if judged is not None and is_wrong else None

    def _whole(self, count: int) -> tuple[Graph, tuple[HostValue, ...], Judgement]:
        region, taken, _ = self._prefix(count)
        inputs = tuple(self._given[v] for v in taken)
        judged = self._judged(region, inputs, alone=False)
        return region, inputs, judged or Judgement("not judged")

    def _read(self, value: Value) -> HostValue:
        """Give what the oracle has for a value, rounded to what is stored."""
        if value in self._given:
            return self._given[value]
        if value not in self._values:
            self._learn({value})
        return self._values[value]

    def _learn(self, wanted: set[Value]) -> None:
        inputs = list(self._given.values())
        self._values |= _stored_values(self._graph, inputs, wanted)


def _nearest(node: Node) -> list[Node]:
    """List a node and those it needs, the nearest first."""
    found = dict.fromkeys([node])
    waiting: Iterable[Node] = [node]
    while waiting := [
        v.node for n in waiting for v in n.operands if v.node is not None and v.node not in found
    ]:
        found |= dict.fromkeys(waiting)
    return list(found)


def _stored_values(
    graph: Graph, inputs: Sequence[HostValue], wanted: set[Value]
) -> dict[Value, HostValue]:
    """Run in float64 and keep values as they would be stored."""
    kept: dict[Value, HostValue] = {}

    def keep(node: Node, outputs: list[HostValue]) -> list[HostValue]:
        for value, x in zip(node.outputs, outputs, strict=True):
            if value in wanted:
                of = value.type
                kept[value] = x.astype(of.dtype.numpy) if isinstance(of, TensorType) else x
        return outputs

    Interpreter(graph, wide=True, observe=keep)(inputs)
    return kept
