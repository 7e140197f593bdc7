"""Last-place noise: put the freedom of any right engine into runs of the reference.

The output of every inexact node is moved at random by about its rounding error. Exact nodes are
left alone, so that equal values stay equal and moved elements keep their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import DType
from fusewire.ir.graph import Array, Graph, HostValue, Node, Value
from fusewire.ir.types import TensorType, tensor_of
from fusewire.numerics.scale import Scales, whole
from fusewire.ops.table import get_op

# Share of results that move to the number above, and of those that move to the one below: about
# as far as rounding moves them where noise adds up over a graph, and almost all in a single op.
MOVED = 0.15
MOVED_IN_OP = 0.4
# Elements moved at a time, so that the working set stays in a core's cache.
CHUNK = 1 << 15
# Random numbers of a run, at least and at most: tensors take theirs from random places in them.
FEWEST = 1 << 12
MOST = 1 << 17


class Noise:
    """The noise of runs of one graph; the same seed and run have the same noise."""

    def __init__(self, seed: int, scales: Scales, share: float = MOVED) -> None:
        self._seed = seed
        self._scales = scales
        self._share = share
        self.start(0)

    def start(self, run: int, amount: float = 1.0) -> None:
        """Begin a run with a multiple of the noise of one last place."""
        self._rng = np.random.default_rng([self._seed, run])
        self._amount = amount
        self._calls: dict[Node, int] = {}
        self._drawn: tuple[Array, Array] = (np.zeros(0), np.zeros(0))
        self._blocks: dict[tuple[float, float, float, np.dtype[Any]], Array] = {}

    def inputs(self, felt: Sequence[DType | None], arrays: Sequence[HostValue]) -> list[HostValue]:
        """Move inputs: those with a dtype in ``felt``."""
        pairs = zip(felt, arrays, strict=True)
        return [array if of is None else self.moved(array, of) for of, array in pairs]

    def observe(self, node: Node, outputs: list[HostValue]) -> list[HostValue]:
        """Move the outputs of an inexact primitive; for ``Interpreter``."""
        walk = self._scales.walk(node)
        if walk is None:
            return outputs
        call = self._calls[node] = self._calls.get(node, -1) + 1
        return [
            self.moved(x, v.type.dtype, walk, self._scales.scale(node, x, call))
            if isinstance(v.type, TensorType) and v.type.dtype.is_inexact
            else x
            for x, v in zip(outputs, node.outputs, strict=True)
        ]

    def moved(
        self, array: Array, of: DType, walk: float = 0.0, scale: Array | float | None = None
    ) -> Array:
        """Move some elements by a last place, and all by up to ``walk`` epsilons of a size.

        That is their own, or their ``scale`` where that is larger.
        """
        if not of.is_inexact or of.is_narrow or not array.size:
            return array
        work = np.promote_types(array.dtype, np.float32)
        flat = np.ascontiguousarray(array, work).reshape(-1)
        moved = np.empty_like(flat)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, CHUNK):
                part = slice(start, start + CHUNK)
                sizes = scale if scale is None or isinstance(scale, float) else scale[part]
                self._move(flat[part], moved[part], of.eps, walk, sizes)
        return moved.astype(array.dtype, copy=False).reshape(array.shape)

    def _move(
        self, x: Array, out: Array, eps: float, walk: float, scale: Array | float | None
    ) -> None:
        own = walk if scale is None else 0.0
        np.multiply(x, self._numbers(x.size, 1.0, own, eps, x.dtype), out=out)
        if scale is not None:
            size = np.maximum(np.abs(x), whole(scale))
            out += size * self._numbers(x.size, 0.0, walk, eps, x.dtype)
        out += x
        if not np.isfinite(out.sum()):
            np.copyto(out, x, where=~np.isfinite(x))

    def _numbers(
        self, count: int, places: float, walk: float, eps: float, work: np.dtype[Any]
    ) -> Array:
        """Draw random steps: of last places, and of up to ``walk`` epsilons."""
        if len(self._drawn[0]) < min(2 * count, MOST):
            room = min(max(FEWEST, 8 * count), MOST)
            drawn = self._rng.random((2, room), np.float32)
            last = (drawn[0] < self._share).astype(np.float32) - (drawn[0] > 1 - self._share)
            # Three quarters of an epsilon round to one last place, wherever the number lies.
            self._drawn = 0.75 * last, 2 * drawn[1] - 1
            self._blocks.clear()
        key = places, walk, eps, work
        block = self._blocks.get(key)
        if block is None:
            pairs = zip(self._drawn, (places, walk), strict=True)
            parts = [drawn * (share * eps * self._amount) for drawn, share in pairs if share]
            steps = parts[0] if len(parts) == 1 else parts[0] + parts[1]
            block = (steps + 1j * steps[::-1] if work.kind == "c" else steps).astype(work)
            self._blocks[key] = block
        start = int(self._rng.integers(len(block) - count + 1))
        return block[start : start + count]


def felt_inputs(graph: Graph) -> list[DType | None]:
    """List the dtypes of the tensors that feed an inexact node, None for other inputs."""
    given = set(graph.inputs)
    readers = [node for node in graph.nodes if not given.isdisjoint(node.operands)]
    read = {v for node in readers if not is_exact(node) for v in node.operands}
    return [
        v.type.dtype if v in read and isinstance(v.type, TensorType) else None for v in graph.inputs
    ]


def is_exact(node: Node) -> bool:
    """Return whether every right engine computes the same bits from the same operands."""
    op = get_op(node.op)
    if op.expand is not None:
        return op.tolerance.kind == "exact" or all(map(is_exact, op.expansion(node).nodes))
    if op.tolerance.kind != "exact":
        types = [v.type for v in (*node.operands, *node.outputs)]
        return not any(tensor_of(t).dtype.is_inexact for t in types)
    return all(is_exact(inner) for _, graph in node.graphs() for inner in graph.nodes)


def alone(node: Node) -> Graph:
    """Make a graph of one node; its inputs are the operands that are present."""
    values = [
        None if v is None else Value(v.type, v.name or f"operand{i}")
        for i, v in enumerate(node.inputs)
    ]
    copy = node.copy(values)
    names = [v.name or f"output{i}" for i, v in enumerate(copy.outputs)]
    return Graph(
        [v for v in values if v is not None], copy.outputs, [copy], name=node.op, output_names=names
    )
