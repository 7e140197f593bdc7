"""Read and write at indices given by operands; negative ones count from the end.

The engine checks the indices of a Gather, and gives zeros. It does not check those of other nodes
(2026.4.1): what a plan has not proven or checked would read and write memory of the process. So
they are limited here, whatever a plan says: a wrong proof takes a wrong row, and nothing else. Of
what is empty there is none: the engine does not run, and what its memory held before would be the
answer. It is zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    convert,
    dim_of,
    ints,
    number,
    port_of,
    rank_of,
    select,
    shape_of,
    stored,
)
from fusewire.backends.openvino.lowering.movement import as_numbers, attr, axis_of
from fusewire.backends.openvino.lowering.padding import filled
from fusewire.ir.graph import Array, Node, Value

REDUCTIONS = {"set": "none", "add": "sum", "multiply": "prod", "max": "max", "min": "min"}


def counted(s: Any, x: Ov, axes: Sequence[int], value: Value, indices: Ov) -> Ov:
    """Count places along axes of ``x`` from the front, and keep them inside.

    One axis is for all, or one for each place along the last axis. The sizes are the engine's own.
    """
    node = value.node
    if node is not None and node.op == "broadcast_to" and len(axes) == 1:
        # Before they are repeated there are fewer.
        (source,) = node.operands
        places = counted(s, x, axes, source, s.index(source))
        return ops.broadcast(places, s.shape(value.tensor.shape))
    shape = port_of(x).get_partial_shape()
    dims = [shape[axis] for axis in axes]
    size = const([dim.get_length() for dim in dims]) if all(d.is_static for d in dims) else None
    if size is not None and value.constant is not None:
        sizes: Array = np.array([dim.get_length() for dim in dims])
        at = value.constant.array
        if (-sizes <= at).all() and (at < sizes).all():
            return const(np.where(at < 0, at + sizes, at))
    size = ops.gather(shape_of(x), const(list(axes)), const(0)) if size is None else size
    below = ops.bitwise_right_shift(indices, const(31))
    places = ops.add(indices, ops.bitwise_and(below, size))
    return limited(places, const(0), ops.subtract(size, const(1)))


def limited(x: Ov, low: Ov, high: Ov) -> Ov:
    """Bring int32 to between two numbers."""
    return ops.maximum(ops.minimum(x, high), low)


def zeros_of_nothing(x: Ov, made: Ov) -> Ov:
    """Give what is made of a tensor, or zeros if that has no elements."""
    dims = list(port_of(x).get_partial_shape())
    if all(dim.is_static and dim.get_length() for dim in dims):
        return made
    zero = number(0, made)
    if any(dim.is_static and not dim.get_length() for dim in dims):
        return ops.broadcast(zero, shape_of(made))
    none = ops.equal(ops.reduce_min(shape_of(x), const([0])), const(0))
    return select(none, zero, made)


def _gather(s: Any, node: Node, x: Ov, indices: Ov) -> Ov:
    axis = 0 if node.op == "embedding" else axis_of(node, rank_of(x))
    return zeros_of_nothing(x, ops.gather(x, indices, const(axis)))


def _gather_elements(s: Any, node: Node, x: Ov, indices: Ov) -> Ov:
    axis = axis_of(node, rank_of(x))
    places = counted(s, x, [axis], node.operands[1], indices)
    data, at = (value.tensor.shape for value in node.operands)
    others = [i for i, (a, b) in enumerate(zip(data, at, strict=True)) if i != axis and a != b]
    for other in others:
        # The engine wants what the indices do not reach cut off; a Slice before it, which would
        # do that, it takes away again (2026.4.1).
        end = ops.squeeze(dim_of(indices, other), const([0]))
        x = ops.gather(x, ops.range(const(0), end, const(1), "i32"), const(other))
    return zeros_of_nothing(x, ops.gather_elements(x, places, axis))


def _gather_nd(s: Any, node: Node, x: Ov, indices: Ov) -> Ov:
    batch = int(attr(node, "batch_dims"))
    depth = node.operands[1].tensor.shape[-1]
    assert isinstance(depth, int), "its type rule asks for it"
    if depth == 0:
        return ops.broadcast(x, s.shape(node.outputs[0].tensor.shape))
    places = counted(s, x, range(batch, batch + depth), node.operands[1], indices)
    return zeros_of_nothing(x, ops.gather_nd(x, places, batch))


def _scatter_elements(s: Any, node: Node, x: Ov, indices: Ov, updates: Ov) -> Ov:
    axis = axis_of(node, rank_of(x))
    places = counted(s, x, [axis], node.operands[1], indices)
    return _written(
        node,
        x,
        updates,
        lambda a, b, how: ops.scatter_elements_update(a, places, b, const(axis), reduction=how),
    )


def _scatter_nd(s: Any, node: Node, x: Ov, indices: Ov, updates: Ov) -> Ov:
    depth = node.operands[1].tensor.shape[-1]
    assert isinstance(depth, int), "its type rule asks for it"
    places = counted(s, x, range(depth), node.operands[1], indices)
    return _written(
        node, x, updates, lambda a, b, how: ops.scatter_nd_update(a, places, b, reduction=how)
    )


def _written(node: Node, x: Ov, updates: Ov, write: Any) -> Ov:
    of, kind = node.outputs[0].tensor.dtype, attr(node, "reduction")
    how = REDUCTIONS[kind]
    if of.kind == "bool":
        return convert(write(convert(x, "u8"), convert(updates, "u8"), how), "boolean")
    if of.is_integer:
        return stored(write(ints(x), ints(updates), how), of)
    if kind not in ("max", "min"):
        return write(x, updates, how)
    # The engine compares without minding NaN, so that those are followed apart.
    worst = ops.convert_like(const(-np.inf if kind == "max" else np.inf, "f32"), x)
    sides = [(side, ops.is_nan(side)) for side in (x, updates)]
    flags = [convert(flag, "f32") for _, flag in sides]
    met = ops.greater(write(*flags, REDUCTIONS["max"]), const(0.0, "f32"))
    found = write(*(ops.select(flag, worst, side) for side, flag in sides), how)
    return ops.select(met, ops.convert_like(const(np.nan, "f32"), x), found)


def _refuses_scatter(node: Node) -> str | None:
    of, how = node.outputs[0].tensor.dtype, attr(node, "reduction")
    if how == "set":
        return None
    if of.is_integer:
        return f"OpenVINO scatters {how} of integers with saturation, not wrapping around."
    return None


def _update(s: Any, node: Node, x: Ov, update: Ov, starts: Ov) -> Ov:
    """Write a block by choosing from it, grown to the size of the whole."""
    rank = rank_of(x)
    if not rank:
        return update
    last = ops.subtract(shape_of(x), shape_of(update))
    first = ops.minimum(ops.maximum(starts, const([0] * rank)), last)
    after = ops.subtract(last, first)
    inside = filled(ops.broadcast(const(1.0, "f32"), shape_of(update)), first, after, None)
    chosen = ops.equal(inside, const(1.0, "f32"))
    return select(chosen, filled(update, first, after, None), x)


def _nonzero(s: Any, node: Node, x: Any) -> Ov:
    of, pieces = node.operands[0].tensor, x if isinstance(x, tuple) else (x,)
    if of.size == 0:
        # The engine finds a place where there is none (2026.4.1).
        return ops.broadcast(const(0), const([of.rank, 0]))
    if of.dtype.kind != "bool":
        pieces = tuple(ops.not_equal(piece, number(0, piece)) for piece in pieces)
    flags = convert(pieces[0] if len(pieces) == 1 else ops.logical_or(*pieces), "u8")
    if rank_of(flags):
        return ops.non_zero(flags, "i32")
    # The places of a scalar have no axes: as many columns, and no rows.
    found = ops.non_zero(ops.unsqueeze(flags, const([0])), "i32")
    return ops.slice(found, const([0]), const([0]), const([1]), const([0]))


MOVES = {
    "gather": _gather,
    "embedding": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "dynamic_update_slice": _update,
}
TABLE: Table = {
    **{name: Entry(as_numbers(function)) for name, function in MOVES.items()},
    "scatter_elements": Entry(_scatter_elements, "fiub", refuses=_refuses_scatter),
    "scatter_nd": Entry(_scatter_nd, "fiub", refuses=_refuses_scatter),
    "nonzero": Entry(_nonzero, "fiub", _nonzero, _nonzero),
}
