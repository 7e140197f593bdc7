"""Find the first node that an engine gets wrong, and the smallest region that shows the fault.

The engine runs prefixes of the graph, whose outputs are the values that the rest needs; a bisection
takes about as many as the logarithm of the number of nodes. The node at which prefixes turn wrong
then runs alone, on the oracle's values rounded to the dtype that they are stored in. If it is right
alone, the engine is wrong only when it runs the node together with others: nodes before it are
added until the fault appears, and then removed one by one.
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
from fusewire.ir.graph import Graph, HostValue, Node, Value
from fusewire.ir.types import TensorType
from fusewire.numerics.judge import Alone
from fusewire.numerics.oracle import Oracle
from fusewire.numerics.scale import bindings_of
from fusewire.numerics.spread import Expected
from fusewire.ops.interpret import Interpreter
from fusewire.planning.partition import Cutter
from fusewire.process.guard import BY_CODE
from fusewire.process.isolate import Contact, first_contact, rerun
from fusewire.process.limits import ChildLimits

# Compiles a graph on an engine; the run raises EngineError if the engine fails.
Build = Callable[[Graph], Run]
# Runs of an oracle: a fault worth looking for exceeds what further runs would show.
_RUNS = 4
# Nodes of the largest region to try if no node is wrong alone.
_MOST_NODES = 32
# Prefixes whose outputs the oracle computes in one go.
_AT_ONCE = 15
# The search ends after so many prefixes that the engine does not run.
_MOST_SILENT = 8


@dataclass(frozen=True, eq=False)
class Culprit:
    """The first wrong node, by its place in the graph, and the smallest region that is wrong.

    ``alone``: the region is that node. The region takes ``inputs`` and must return ``expected``.
    ``steps`` counts the graphs that the engine compiled during the search.
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
        """Convert to plain data for JSON."""
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
    """Return a function that compiles on a backend, named by "module:Class", in a child."""

    def build(region: Graph) -> Run:
        contacts: list[Contact] = []

        def run(inputs: Sequence[HostValue]) -> list[HostValue]:
            answer = (
                rerun(contacts[0], inputs, limits)
                if contacts
                else first_contact(
                    reference, region, device, config, inputs, limits, isolate=isolate
                )
            )
            if isinstance(answer, Refusal):
                raise BY_CODE[answer.code](answer.reason, answer.suggestion)
            if not isinstance(answer, Contact):
                return answer
            contacts.append(answer)
            return answer.outputs

        return run

    return build


def find_culprit(
    graph: Graph, inputs: Sequence[HostValue], build: Build, *, deadline: float | None = None
) -> Culprit | None:
    """Find what an engine gets wrong in a graph on these inputs; None if it is right.

    ``deadline`` is a time of ``time.monotonic()``; past it, returns the smallest region so far, or
    None.
    """
    search = _Search(graph, inputs, build, math.inf if deadline is None else deadline)
    count = search.least_wrong()
    return None if count is None else search.culprit(count)


class _Search:
    def __init__(
        self, graph: Graph, inputs: Sequence[HostValue], build: Build, deadline: float
    ) -> None:
        self._graph = bind_symbols(graph, dict(bindings_of(graph, inputs)))
        self._inputs = dict(zip(self._graph.inputs, inputs, strict=True))
        other = Judge(self._graph, inputs).other()
        self._other = None if other is None else dict(zip(self._graph.inputs, other, strict=True))
        self._oracle = Oracle(self._graph, inputs, runs=_RUNS)
        self._build = build
        self._deadline = deadline
        self._steps = 0
        self._values: dict[Value, HostValue] = {}
        # For each prefix that was run, the nodes whose values it returned wrong.
        self._wrong: dict[int, set[Node]] = {}

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def least_wrong(self) -> int | None:
        """Bisect; return the length of a wrong prefix that is right with one node less."""
        right, wrong = 0, len(self._graph.nodes)
        known = self._known(right, wrong)
        # Prefixes that the engine does not run show nothing.
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
        """Choose prefixes, and have the oracle compute the outputs of all of them at once."""
        step = max(1.0, (wrong - right) / (_AT_ONCE + 1))
        places = {round(right + step * i) for i in range(1, _AT_ONCE + 1)}
        counts = sorted(k for k in places if right < k < wrong)
        outputs = [v for k in (*counts, wrong) for v in self._prefix(k)[2]]
        self._oracle.values(outputs)
        return counts

    def _prefix(self, count: int) -> tuple[Graph, list[Value], list[Value]]:
        """Cut out a prefix; return it with the values that it takes and those that it makes."""
        nodes = self._graph.nodes
        return Cutter(self._graph, [nodes[:count], nodes[count:]]).region(0, "prefix")

    def _is_wrong(self, count: int) -> bool | None:
        prefix, takes, makes = self._prefix(count)
        if not makes:
            return False
        self._steps += 1
        inputs = [self._inputs[v] for v in takes]
        other = None if self._other is None else [self._other[v] for v in takes]
        wrong: set[Node] = set()
        try:
            for answer in answers(self._build(prefix), inputs, other):
                for value, x in zip(makes, answer, strict=True):
                    if value.node and self._oracle.judge_value(value, x).status == "wrong":
                        wrong.add(value.node)
        except EngineError:
            return None
        self._wrong[count] = wrong
        return bool(wrong)

    def culprit(self, count: int) -> Culprit:
        """Find the smallest wrong region around the node: it alone, a few, or all before it."""
        # Mostly it is the last node of the prefix. But if the engine is wrong only about a value
        # that it need not return, the last node is the one with which the value became internal.
        node = next(node for node in self._graph.nodes if node in self._wrong[count])
        before = _nearest(node)[:_MOST_NODES]
        self._learn({value for other in before for value in other.operands})
        size = 1
        smallest = self._wrong_region(node, before[:size])
        while smallest is None and size < len(before) and not self._is_late:
            size *= 2
            smallest = self._wrong_region(node, before[:size])
        kept = list(before[:size])
        # From the far end, so that the remaining nodes stay connected.
        for other in reversed(before[1:size]) if smallest is not None else ():
            fewer = [n for n in kept if n is not other]
            smaller = None if self._is_late else self._wrong_region(node, fewer)
            if smaller is not None:
                kept, smallest = fewer, smaller
        region, inputs, judged = smallest or self._whole(count)
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

    def _judge(
        self, region: Graph, inputs: Sequence[HostValue], *, alone: bool
    ) -> Judgement | None:
        self._steps += 1
        try:
            judge = Judge(region, inputs, runs=_RUNS, only=("given",), alone=alone)
            return judge.judge(self._build(region))
        except EngineError:
            return None

    def _wrong_region(
        self, node: Node, nodes: Sequence[Node]
    ) -> tuple[Graph, tuple[HostValue, ...], Judgement] | None:
        """Run nodes on the oracle's values; return their region if it is wrong."""
        reach = Graph(self._graph.inputs, node.outputs)
        inside = set(nodes)
        ordered = [n for n in reach.nodes if n in inside]
        rest = [n for n in reach.nodes if n not in inside]
        region, takes, _ = Cutter(reach, [ordered, rest]).region(0, node.op)
        inputs = tuple(self._read(value) for value in takes)
        try:
            judged = self._judge(region, inputs, alone=True)
        except (FusewireError, ValueError):
            # The region may not take values that were rounded to the stored dtype.
            return None
        is_wrong = judged is not None and judged.status == "wrong"
        return (region, inputs, judged) if judged is not None and is_wrong else None

    def _whole(self, count: int) -> tuple[Graph, tuple[HostValue, ...], Judgement]:
        region, takes, _ = self._prefix(count)
        inputs = tuple(self._inputs[v] for v in takes)
        judged = self._judge(region, inputs, alone=False)
        return region, inputs, judged or Judgement("not judged")

    def _read(self, value: Value) -> HostValue:
        """Return the oracle's value, rounded to the dtype that it is stored in."""
        if value in self._inputs:
            return self._inputs[value]
        if value not in self._values:
            self._learn({value})
        return self._values[value]

    def _learn(self, wanted: set[Value]) -> None:
        inputs = list(self._inputs.values())
        self._values |= _stored_values(self._graph, inputs, wanted)


def _nearest(node: Node) -> list[Node]:
    """List a node and the nodes it depends on, the nearest first."""
    nodes = dict.fromkeys([node])
    waiting: Iterable[Node] = [node]
    while waiting := [
        v.node for n in waiting for v in n.operands if v.node is not None and v.node not in nodes
    ]:
        nodes |= dict.fromkeys(waiting)
    return list(nodes)


def _stored_values(
    graph: Graph, inputs: Sequence[HostValue], wanted: set[Value]
) -> dict[Value, HostValue]:
    """Run in float64 and return values rounded to the dtypes that they are stored in."""
    kept: dict[Value, HostValue] = {}

    def keep(node: Node, outputs: list[HostValue]) -> list[HostValue]:
        for value, x in zip(node.outputs, outputs, strict=True):
            if value in wanted:
                type_ = value.type
                kept[value] = x.astype(type_.dtype.numpy) if isinstance(type_, TensorType) else x
        return outputs

    Interpreter(graph, wide=True, observe=keep)(inputs)
    return kept
