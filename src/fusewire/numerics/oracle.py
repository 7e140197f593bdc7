"""The oracle of a whole graph: the float64 run, and the tolerance that the model allows.

Bounds of ops chained through a deep graph explode. The spread among a few runs in stored
precision, with inputs and every rounding moved in the last place, does not. No engine takes part.

Some models decide by a computation that takes sizes only, and land on the edge: T5 puts distances
in buckets by a rounded logarithm, which is a whole number for some. Whoever decides as the model's
own dtypes do is right there (`_decided`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from fusewire.errors import GraphError, ShapeMismatchError
from fusewire.ir.graph import Array, Graph, HostValue, Node, Value
from fusewire.numerics.bound import Leaf, value_leaves
from fusewire.numerics.judge import Verdict, judge_leaves, summary
from fusewire.numerics.noise import Noise, felt_inputs
from fusewire.numerics.scale import Scales, bindings_of
from fusewire.numerics.spread import SCOUT, Expected, Runs, expect
from fusewire.ops import limits
from fusewire.ops.declare import Trait
from fusewire.ops.interpret import Interpreter
from fusewire.ops.table import get_op

SCOUTS = 2
_COMPARING = 4
# A right engine's largest error is about 5 spreads, that of a fast convolution several times more.
MULTIPLE = 45.0
# An error of fewer tolerances may be rounding that the runs did not show: a doubt, not a fault.
CERTAIN = 10.0
# Where the reference itself is off, an engine may be off by so many times as much.
ALIKE = 2.0
# An input with at most this many distinct numbers, among those looked at, is blank.
_FEW, _LOOKED_AT = 4, 2**16


class Oracle:
    """The answers of a graph for given inputs, and how far a right engine may be from them.

    >>> import numpy as np
    >>> from fusewire import ops
    >>> from fusewire.ops.interpret import graph_of
    >>> graph, inputs = graph_of(ops.exp, [np.ones(3, np.float32)], {})
    >>> oracle = Oracle(graph, inputs)
    >>> oracle.judge([np.exp(inputs[0])]).status
    'right'
    >>> oracle.judge([np.float32([2.718, 2.718, 2.718])]).status
    'wrong'
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[HostValue],
        *,
        runs: int = 8,
        seed: int = 0,
    ) -> None:
        if runs < 2:
            raise ValueError(f"An oracle needs at least 2 runs to measure a spread, found {runs}.")
        self.graph = graph
        self._inputs = list(inputs)
        self._runs = runs
        self._seed = seed
        self._bindings = bindings_of(graph, inputs)
        self._expected: dict[Value, list[Expected]] = {}
        self._reference: list[Verdict] | None = None
        # What is computed without elements of inputs, where that is taken as given.
        self._given: dict[Value, HostValue] = {}

    @property
    def outputs(self) -> list[Array]:
        """The exact answers, floats in float64; the elements of a sequence one by one."""
        return [e.wide for e in self._expect_outputs()]

    @property
    def tolerance(self) -> list[Array]:
        """How far each element of the outputs may be from the exact answer."""
        return [e.tolerance for e in self._expect_outputs()]

    def judge(self, got: Sequence[HostValue]) -> Verdict:
        """Judge the outputs of a run from end to end, strictly by the tolerance."""
        return self._decided_verdict(summary(self._judge_outputs(got)), got)

    def verdict(self, got: Sequence[HostValue]) -> Verdict:
        """Judge the outputs of a run as ``judge`` does, but call wrong only what is certain.

        Noise that is drawn for each element does not show every rounding error. What the reference
        does in the model's own dtypes is right by definition: where it is off, the tolerance is too
        narrow for these inputs. Another error is certain from ten tolerances on, if an element is
        off. A dtype, a shape, a NaN or an infinity that the oracle does not have is always wrong.
        """
        verdicts = self._judge_outputs(got)
        if all(verdict.status != "wrong" for verdict in verdicts):
            return self._decided_verdict(summary(verdicts), got)
        if self._reference is None:
            self._reference = self._judge_outputs(Interpreter(self.graph)(self._inputs))
        return summary(list(map(_weighed, verdicts, self._reference)))

    def _decided_verdict(self, verdict: Verdict, got: Sequence[HostValue]) -> Verdict:
        """Judge again where nothing can be said, with what sizes alone decide taken as given."""
        if verdict.status != "cannot say" or self._decided is None:
            return verdict
        again = summary(self._decided._judge_outputs(got))
        return again if again.status == "right" else verdict

    @cached_property
    def _decided(self) -> Oracle | None:
        """The same oracle with what no input takes part in as the model's own dtypes have it."""
        nodes = set() if self._given else _nodes_of_sizes(self.graph)
        if not any(get_op(node.op).is_(Trait.DISCONTINUOUS) for node in nodes):
            return None
        given: dict[Value, HostValue] = {}

        def catch(node: Node, outputs: list[HostValue]) -> list[HostValue]:
            if node in nodes:
                given.update(zip(node.outputs, outputs, strict=True))
            return outputs

        Interpreter(self.graph, observe=catch)(self._inputs)
        oracle = Oracle(self.graph, self._inputs, runs=self._runs, seed=self._seed)
        oracle._given = given
        return oracle

    def _judge_outputs(self, got: Sequence[HostValue]) -> list[Verdict]:
        if len(got) != len(self.graph.outputs):
            raise ShapeMismatchError(
                f"The graph {self.graph.name} has {len(self.graph.outputs)} outputs, "
                f"found {len(got)}."
            )
        self.values(self.graph.outputs)
        return [
            self.judge_value(value, found, name)
            for name, value, found in zip(
                self.graph.output_names, self.graph.outputs, got, strict=True
            )
        ]

    def judge_value(self, value: Value, got: HostValue, name: str | None = None) -> Verdict:
        """Judge any value of the graph, as a run from end to end computed it."""
        found = value_leaves(name or value.name or "value", value.type, got)
        return judge_leaves(self.values([value])[value], found)

    def values(self, wanted: Sequence[Node | Value]) -> dict[Value, list[Expected]]:
        """Return what is expected of values, or of all outputs of nodes, from one set of runs."""
        values = [v for w in wanted for v in (w.outputs if isinstance(w, Node) else (w,))]
        missing = dict.fromkeys(v for v in values if v not in self._expected)
        if missing:
            self._learn(missing)
        return {v: self._expected[v] for v in values}

    def _expect_outputs(self) -> list[Expected]:
        known = self.values(self.graph.outputs)
        return [e for v in self.graph.outputs for e in known[v]]

    def _learn(self, wanted: dict[Value, None]) -> None:
        caught: dict[Value, HostValue] = {}

        def catch(node: Node, outputs: list[HostValue]) -> list[HostValue]:
            outputs = self._as_given(node, outputs)
            caught.update((v, x) for v, x in zip(node.outputs, outputs, strict=True) if v in wanted)
            return outputs

        fixed = self._fixed(wanted)
        scales = Scales(self.graph, self._bindings)
        expansions: dict[Node, Graph] = {}
        exact = Interpreter(
            self.graph, wide=True, observe=catch, before=scales.learn, expansions=expansions
        )
        exact(self._inputs)
        wide = self._collect(wanted, caught | fixed)
        if (meter := limits.meter()) is not None:
            # Every run is kept, and comparing them takes about as much as a few more.
            kept = sum(x.nbytes for found in wide.values() for _, _, x in found)
            meter.need(kept * (self._runs + SCOUTS + _COMPARING))
        noise = Noise(self._seed, scales)
        felt = felt_inputs(self.graph)
        noisy = Interpreter(
            self.graph,
            observe=lambda node, outputs: catch(node, noise.observe(node, outputs)),
            expansions=expansions,
        )
        runs = []
        for run in range(self._runs + SCOUTS):
            noise.start(run, 1.0 if run < self._runs else SCOUT)
            noisy(noise.inputs(felt, self._inputs))
            runs.append(self._collect(wanted, caught | fixed))
        varied = _are_varied(self._inputs)
        for value, found in wide.items():
            self._expected[value] = [
                expect(name, of, x, self._same(runs, value, index), MULTIPLE, slices=varied)
                for index, (name, of, x) in enumerate(found)
            ]

    def _as_given(self, node: Node, outputs: list[HostValue]) -> list[HostValue]:
        """Put what is given in the place of what a node computed, in the dtype of this run."""
        if not self._given or node.outputs[0] not in self._given:
            return outputs
        return [_like(self._given[v], x) for v, x in zip(node.outputs, outputs, strict=True)]

    def _fixed(self, wanted: dict[Value, None]) -> dict[Value, HostValue]:
        """Find those wanted that no node makes."""
        fixed = dict(zip(self.graph.inputs, self._inputs, strict=True))
        fixed |= {v: v.constant.array for v in wanted if v.constant is not None}
        known = fixed.keys() | {v for node in self.graph.nodes for v in node.outputs}
        for value in wanted:
            if value not in known:
                raise GraphError(f"{value!r} is not a value of the graph {self.graph.name}.")
        return fixed

    def _collect(
        self, wanted: dict[Value, None], caught: dict[Value, HostValue]
    ) -> dict[Value, list[Leaf]]:
        return {v: value_leaves(v.name or "value", v.type, caught[v]) for v in wanted}

    def _same(self, runs: list[dict[Value, list[Leaf]]], value: Value, index: int) -> Runs:
        """Gather one tensor from all runs; a sequence that is shorter in one has jumped."""
        found = [r[value][index][2] if index < len(r[value]) else np.zeros(0) for r in runs]
        return Runs(found[: self._runs], found[self._runs :])


def _nodes_of_sizes(graph: Graph) -> set[Node]:
    """Find the nodes that compute with constants and sizes, and with no element of an input."""
    nodes: set[Node] = set()
    known: set[Value] = set()
    for node in graph.nodes:
        op = get_op(node.op)
        if op.is_(Trait.RANDOM) or op.is_(Trait.CONTROL):
            continue
        if op.is_(Trait.SHAPE) or all(v.constant is not None or v in known for v in node.operands):
            nodes.add(node)
            known.update(node.outputs)
    return nodes


def _like(x: HostValue, computed: HostValue) -> HostValue:
    """Give a value the dtype that this run has it in."""
    if isinstance(x, np.ndarray) and isinstance(computed, np.ndarray):
        return x.astype(computed.dtype)
    return x


def _weighed(verdict: Verdict, reference: Verdict) -> Verdict:
    """Weigh the verdict on an output, knowing that on the reference."""
    own = max(reference.error, 1.0)
    if verdict.status != "wrong":
        return verdict
    if own > 1.0 and verdict.error <= ALIKE * own:
        reason = (
            f"The tolerance is too narrow for these inputs: the NumPy reference is off by "
            f"{own:.2f} times as much, this answer by {verdict.error:.2f} times; {verdict.reason}"
        )
        return replace(verdict, status="cannot say", reason=reason)
    if math.isinf(verdict.error) or (verdict.off and verdict.error >= CERTAIN * own):
        return verdict
    about = f"less than {CERTAIN:g} times the tolerance" if verdict.off else "no element is off"
    return replace(
        verdict, status="doubtful", reason=f"{verdict.reason} It may be rounding: {about}."
    )


def _are_varied(inputs: Sequence[HostValue]) -> bool:
    """Return whether inputs differ from place to place.

    With blank inputs an engine rounds the same way everywhere, and the errors add up, while noise,
    which is drawn for each element, cancels.
    """
    floats = [x for x in inputs if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size > 1]
    counts = [(x.size, len(np.unique(x.reshape(-1)[:_LOOKED_AT]))) for x in floats]
    return not counts or any(found > min(_FEW, size // 2) for size, found in counts)
