"""Last-place noise: what any right engine may do differently, put into runs of the reference.

Every inexact node's output is moved at random by about what its rounding may change; exact nodes
are left alone, so that equal values stay equal and moved values stay the values they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import DType
from fusewire.errors import DimError
from fusewire.ir.dims import Symbol, evaluate
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ir.types import TensorType, substitute_type, tensor_of
from fusewire.ops.sample import HostValue
from fusewire.ops.table import get_op

# Share of results that move to the number above, and of those that move to the one below: about
# as far as rounding moves them where noise adds up over a graph, and almost all in a single op.
MOVED = 0.15
MOVED_IN_OP = 0.4
# Noise on a sum, in epsilons per root of its number of terms, as adding one by one gives.
WALK = 0.1
# Terms of a sum whose length nobody knows before the run.
UNKNOWN_TERMS = 64.0


class Noise:
    """The noise of runs of one graph; the same seed and run give the same noise."""

    def __init__(
        self, seed: int, bindings: Mapping[Symbol, int] | None = None, share: float = MOVED
    ) -> None:
        self._seed = seed
        self._share = share
        self._bindings = bindings or {}
        self._walks: dict[Node, tuple[float, float] | None] = {}
        self.start(0)

    def start(self, run: int, amount: float = 1.0) -> None:
        """Begin a run, with so many times the noise of one last place."""
        self._rng = np.random.default_rng([self._seed, run])
        self._amount = amount

    def inputs(self, felt: Sequence[DType | None], arrays: Sequence[HostValue]) -> list[HostValue]:
        """Move inputs: those with a dtype in ``felt``."""
        pairs = zip(felt, arrays, strict=True)
        return [array if of is None else self.moved(array, of) for of, array in pairs]

    def observe(self, node: Node, outputs: list[HostValue]) -> list[HostValue]:
        """Move the outputs of an inexact primitive; for ``Interpreter``."""
        if node not in self._walks:
            self._walks[node] = self._walk_of(node)
        walk = self._walks[node]
        if walk is None:
            return outputs
        return [
            self.moved(x, v.type.dtype, *walk) if isinstance(v.type, TensorType) else x
            for x, v in zip(outputs, node.outputs, strict=True)
        ]

    def _walk_of(self, node: Node) -> tuple[float, float] | None:
        """Tell by how many epsilons a result may be off beside rounding: its own, and the rms'."""
        op = get_op(node.op)
        kind = op.tolerance.kind
        if op.is_composite or kind in ("exact", "codes"):
            return None
        if kind == "linear":
            # A running sum is rounded at each term, also where the terms then cancel.
            walk = WALK * float(terms_of(node, self._bindings) ** 0.5)
            return walk, walk
        if kind == "ulps":
            return (op.tolerance.ulps / 4 if op.tolerance.ulps > 1 else 0.0), 0.0
        return 1.0, 1.0

    def moved(self, array: Array, of: DType, walk: float = 0.0, pooled: float = 0.0) -> Array:
        """Move some elements by a last place, and all by up to ``walk`` epsilons of their size."""
        if not of.is_inexact or of.is_narrow or not array.size:
            return array
        work = np.promote_types(array.dtype, np.float32)
        x = array.astype(work, copy=False)
        magnitude = np.abs(x)
        finite = np.isfinite(magnitude)
        size = np.where(finite, magnitude, 0.0)
        # Three quarters of an epsilon round to one last place, wherever the number lies.
        step = 0.75 * size * self._draw(array.shape, work, discrete=True)
        if walk or pooled:
            scale = np.maximum(walk * size, pooled * rms(magnitude[finite]) * finite)
            step = step + scale * self._draw(array.shape, work)
        moved: Array = (x + step * (of.eps * self._amount)).astype(array.dtype)
        return moved

    def _draw(self, shape: tuple[int, ...], work: np.dtype[Any], discrete: bool = False) -> Array:
        """Draw from -1 to 1, or one of -1, 0 and 1."""
        parts = []
        share = self._share
        for _ in range(2 if work.kind == "c" else 1):
            drawn = self._rng.random(shape, np.float32)
            if discrete:
                parts.append((drawn < share).astype(np.float32) - (drawn > 1 - share))
            else:
                parts.append(2 * drawn - 1)
        return (parts[0] + 1j * parts[1] if work.kind == "c" else parts[0]).astype(work)


def rms(array: Array) -> float:
    """Take the root of the mean square; 0 for nothing."""
    if not array.size:
        return 0.0
    largest = float(array.max())
    if largest == 0.0:
        return 0.0
    scaled = array / largest
    return largest * float(np.sqrt(np.mean(scaled * scaled)))


def felt_inputs(graph: Graph) -> list[DType | None]:
    """List the dtypes of the tensors that feed an inexact node, None for other inputs."""
    given = set(graph.inputs)
    readers = [node for node in graph.nodes if not given.isdisjoint(node.operands)]
    read = {v for node in readers if not is_exact(node) for v in node.operands}
    return [
        v.type.dtype if v in read and isinstance(v.type, TensorType) else None for v in graph.inputs
    ]


def is_exact(node: Node) -> bool:
    """Tell whether every right engine gives the same bits for the same operands."""
    op = get_op(node.op)
    if op.expand is not None:
        return op.tolerance.kind == "exact" or all(map(is_exact, op.expansion(node).nodes))
    if op.tolerance.kind != "exact":
        types = [v.type for v in (*node.operands, *node.outputs)]
        return not any(tensor_of(t).dtype.is_inexact for t in types)
    return all(is_exact(inner) for _, graph in node.graphs() for inner in graph.nodes)


def terms_of(node: Node, bindings: Mapping[Symbol, int]) -> float:
    """Count the operations that make one element of a node's outputs."""
    try:
        return max(1.0, _operations(node, bindings) / max(1, _elements(node, bindings)))
    except DimError:
        return UNKNOWN_TERMS


def _operations(node: Node, bindings: Mapping[Symbol, int]) -> int:
    op = get_op(node.op)
    if op.expand is not None and op.flops is None:
        return sum(_operations(inner, bindings) for inner in op.expansion(node).nodes)
    if callable(op.flops):
        inputs = [None if v is None else substitute_type(v.type, bindings) for v in node.inputs]
        outputs = [substitute_type(t, bindings) for t in node.types]
        return evaluate(op.flops(inputs, outputs, node.attrs), bindings)
    return (op.flops or 0) * _elements(node, bindings)


def _elements(node: Node, bindings: Mapping[Symbol, int]) -> int:
    sizes = [t.size for t in node.types if isinstance(t, TensorType)]
    return sum(evaluate(size, bindings) for size in sizes)


def alone(node: Node) -> Graph:
    """Make a graph of one node; its inputs are the operands that are present."""
    values = [
        None if v is None else Value(v.type, v.name or f"operand{i}")
        for i, v in enumerate(node.inputs)
    ]
    copy = node.copy(values)
    names = [v.name or f"output{i}" for i, v in enumerate(copy.outputs)]
    return Graph([v for v in values if v is not None], copy.outputs, [copy], name=node.op,
                 output_names=names)  # fmt: skip
