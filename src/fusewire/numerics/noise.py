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
from fusewire.ir.dims import Symbol, evaluate, size
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ir.types import TensorType, substitute_type, tensor_of
from fusewire.ops.declare import Op
from fusewire.ops.sample import HostValue
from fusewire.ops.table import get_op

# Terms of a sum whose length nobody knows before the run.
UNKNOWN_TERMS = 64.0


class Noise:
    """The noise of runs of one graph; the same seed and run give the same noise."""

    def __init__(self, seed: int, bindings: Mapping[Symbol, int] | None = None) -> None:
        self._seed = seed
        self._bindings = bindings or {}
        self._factors: dict[Node, tuple[float, float] | None] = {}
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
        if node not in self._factors:
            self._factors[node] = self._factors_of(node)
        factors = self._factors[node]
        if factors is None:
            return outputs
        return [
            self.moved(x, v.type.dtype, *factors) if isinstance(v.type, TensorType) else x
            for x, v in zip(outputs, node.outputs, strict=True)
        ]

    def _factors_of(self, node: Node) -> tuple[float, float] | None:
        op = get_op(node.op)
        kind = op.tolerance.kind
        if op.is_composite or kind in ("exact", "codes"):
            return None
        if kind == "linear":
            # A running sum is rounded at each term, also where the terms then cancel.
            walk = 0.15 * terms_of(op, node, self._bindings) ** 0.5
            return max(1.0, walk), walk
        return 1.0, (1.0 if kind == "scaled" else 0.0)

    def moved(self, array: Array, of: DType, factor: float = 1.0, pooled: float = 0.0) -> Array:
        """Move by up to ``factor`` last places of each value and ``pooled`` of the rms of all."""
        if not of.is_inexact or of.is_narrow or not array.size:
            return array
        work = np.promote_types(array.dtype, np.float32)
        x = array.astype(work, copy=False)
        magnitude = np.abs(x)
        finite = np.isfinite(magnitude)
        scale = magnitude * factor
        if pooled:
            scale = np.maximum(scale, pooled * rms(magnitude[finite]))
        step = np.where(finite, scale * (of.eps * self._amount), 0.0).astype(magnitude.dtype)
        moved: Array = (x + step * self._draw(array.shape, work)).astype(array.dtype)
        return moved

    def _draw(self, shape: tuple[int, ...], work: np.dtype[Any]) -> Array:
        drawn: Array = self._rng.random(shape, np.float32) * 2 - 1
        if work.kind == "c":
            drawn = drawn + 1j * (self._rng.random(shape, np.float32) * 2 - 1)
        return drawn.astype(work)


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
    read = {v for node in graph.nodes if not is_exact(node) for v in node.operands}
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


def terms_of(op: Op[Any], node: Node, bindings: Mapping[Symbol, int]) -> float:
    """Count the operations that make one element of a node's outputs."""
    if not callable(op.flops):
        return float(op.flops or 1)
    known = dict(bindings)
    inputs = [None if v is None else substitute_type(v.type, known) for v in node.inputs]
    outputs = [substitute_type(t, known) for t in node.types]
    try:
        total = evaluate(op.flops(inputs, outputs, node.attrs), known)
        made = sum(evaluate(size(t.shape), known) for t in outputs if isinstance(t, TensorType))
    except DimError:
        return UNKNOWN_TERMS
    return max(1.0, total / max(made, 1))


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
