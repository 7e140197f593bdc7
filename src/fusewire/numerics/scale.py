"""What rounding errors are relative to: for each element, the size of its terms.

A sum is rounded at the size of its terms, which may cancel; a frame of silence is exactly silent
beside a loud one. Scales are learned once, in the wide run, and serve every run with noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.errors import DimError
from fusewire.ir.dims import Symbol, evaluate
from fusewire.ir.graph import Array, Graph, HostValue, Node
from fusewire.ir.types import TensorType, substitute_type
from fusewire.ops.declare import Trait
from fusewire.ops.interpret import Bindings, Interpreter, bind
from fusewire.ops.table import get_op

# Noise on a sum, in epsilons per root of its number of terms, as adding one by one gives.
WALK = 0.1
# Terms of a sum whose length is not known before the run.
UNKNOWN_TERMS = 64.0


class Scales:
    """How many epsilons nodes err beyond rounding, and relative to which size."""

    def __init__(self, graph: Graph, bindings: Mapping[Symbol, int] | None = None) -> None:
        self._bindings = bindings or {}
        self._wide = Interpreter(graph, wide=True)
        self._walks: dict[Node, float | None] = {}
        # The upper halves of float32: as precise as noise is, and half as large.
        self._halves: dict[Node, list[Array]] = {}

    def learn(self, node: Node, operands: list[HostValue], bound: Bindings) -> None:
        """Record the terms of a sum; for ``Interpreter``, in a wide run."""
        op = get_op(node.op)
        if op.is_composite or op.tolerance.kind != "linear":
            return
        self._walks.setdefault(node, _walk_of(node, bound))
        (type_,) = node.types
        if not isinstance(type_, TensorType) or not type_.dtype.is_inexact:
            return
        # The terms of a sum are products: those of squares are the squares of them.
        squares = [_square(x) for x in operands]
        (found,) = self._wide.primitive(op, node, squares, bound)
        size = np.sqrt(np.abs(np.reshape(found, -1))).astype(np.float32)
        size[~np.isfinite(size)] = 0.0
        halves = (size.view(np.uint32) >> 16).astype(np.uint16)
        self._halves.setdefault(node, []).append(halves)

    def walk(self, node: Node) -> float | None:
        """Return by how many epsilons of its scale a result may be off; None: not at all."""
        if node not in self._walks:
            self._walks[node] = _walk_of(node, self._bindings)
        return self._walks[node]

    def scale(self, node: Node, output: Array, call: int) -> Array | float | None:
        """Return the scale of an output, flat; None if it is the output's own size."""
        tolerance = get_op(node.op).tolerance
        if tolerance.kind == "linear":
            learned = self._halves.get(node, [])[call:][:1] or self._halves.get(node, [])[-1:]
            return learned[0] if learned and learned[0].size == output.size else None
        if tolerance.kind == "ranged":
            # Far from 0 every engine returns 0 itself.
            return 1.0 if np.all(output) else np.not_equal(output, 0).astype(np.float32).reshape(-1)
        if tolerance.kind == "ulps":
            return None
        axis: Any = node.attrs.get("axis")
        if tolerance.kind != "scaled" or not isinstance(axis, int):
            return rms(output)
        # A transform mixes the elements along its axis, and no others.
        squares = np.square(np.abs(np.where(np.isfinite(output), output, 0)))
        mixed = np.sqrt(squares.mean(axis=axis, keepdims=True))
        return np.broadcast_to(mixed, output.shape).astype(np.float32).reshape(-1)


def whole(scale: Array | float) -> Array | float:
    """Convert stored scales to numbers."""
    if isinstance(scale, float) or scale.dtype != np.uint16:
        return scale
    return (scale.astype(np.uint32) << 16).view(np.float32)


def _walk_of(node: Node, bindings: Mapping[Symbol, int]) -> float | None:
    op = get_op(node.op)
    kind, ulps = op.tolerance.kind, op.tolerance.ulps
    if op.is_composite or kind in ("exact", "codes"):
        return None
    if kind == "linear":
        # A running sum is rounded at each term, also where the terms then cancel.
        return WALK * float(terms_of(node, bindings) ** 0.5)
    if kind in ("ulps", "ranged"):
        return ulps / 4 if ulps > 1 or kind == "ranged" else 0.0
    return 1.0


def _square(x: HostValue) -> HostValue:
    if isinstance(x, np.ndarray) and x.dtype.kind in "fc":
        return np.square(np.abs(x))
    return x


def rms(array: Array) -> float:
    """Return the root mean square of finite elements; 0 if there are none."""
    sizes = np.abs(array)
    largest = float(sizes.max(initial=0.0))
    if not np.isfinite(largest):
        sizes = sizes[np.isfinite(sizes)]
        largest = float(sizes.max(initial=0.0))
    # Of nothing the largest is what stands for 0: float8_e8m0fnu has none, and gives NaN.
    if not sizes.size or largest == 0.0:
        return 0.0
    scaled = sizes / largest
    return largest * float(np.sqrt(np.mean(scaled * scaled)))


def terms_of(node: Node, bindings: Mapping[Symbol, int]) -> float:
    """Count the operations per element of a node's outputs."""
    try:
        return max(1.0, _operations(node, bindings) / max(1, _elements(node, bindings)))
    except DimError:
        return UNKNOWN_TERMS


def bindings_of(
    graph: Graph, inputs: Sequence[HostValue], given: Mapping[Symbol, int] | None = None
) -> dict[Symbol, int]:
    """Read the symbols of a graph's inputs from arrays."""
    known = dict(given or {})
    for value, array in zip(graph.inputs, inputs, strict=True):
        if isinstance(value.type, TensorType):
            bind(value.type, np.shape(array), known, f"The input {value.name}")
    return known


def work_of(graph: Graph, bindings: Mapping[Symbol, int]) -> float:
    """Count the operations of a graph, at least one per element; infinite if values decide them."""
    try:
        return sum(
            math.inf if get_op(node.op).is_(Trait.CONTROL) else node_work(node, bindings)
            for node in graph.nodes
        )
    except DimError:
        return math.inf


def node_work(node: Node, bindings: Mapping[Symbol, int]) -> int:
    """Count the operations of a node, at least one per element; DimError if values decide them."""
    return max(_operations(node, bindings), _elements(node, bindings))


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
