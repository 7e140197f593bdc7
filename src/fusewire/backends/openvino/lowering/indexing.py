"""Reading and writing at places that operands tell; negative ones count from the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset16 as ops

from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    convert,
    dim_of,
    ints,
    rank_of,
    shape_of,
    stored,
)
from fusewire.backends.openvino.lowering.movement import as_numbers, attr, axis_of
from fusewire.ir.graph import Node

REDUCTIONS = {"set": "none", "add": "sum", "multiply": "prod", "max": "max", "min": "min"}


def counted(indices: Ov, dims: Ov) -> Ov:
    """Count places from the front."""
    below = ops.less(indices, const(0))
    return ops.select(below, ops.add(indices, dims), indices)


def _gather(s: Any, node: Node, x: Ov, indices: Ov) -> Ov:
    axis = 0 if node.op == "embedding" else axis_of(node, rank_of(x))
    return ops.gather(x, counted(indices, dim_of(x, axis)) if rank_of(indices) else indices,
                      const(axis))  # fmt: skip


def _gather_elements(s: Any, node: Node, x: Ov, indices: Ov) -> Ov:
    axis = axis_of(node, rank_of(x))
    return ops.gather_elements(x, counted(indices, dim_of(x, axis)), axis)


def _gather_nd(s: Any, node: Node, x: Ov, indices: Ov) -> Ov:
    batch = int(attr(node, "batch_dims"))
    depth = node.operands[1].tensor.shape[-1]
    assert isinstance(depth, int), "its type rule asks for it"
    if depth == 0:
        return ops.broadcast(x, s.shape(node.outputs[0].tensor.shape))
    dims = ops.gather(shape_of(x), const(list(range(batch, batch + depth))), const(0))
    return ops.gather_nd(x, counted(indices, dims), batch)


def _scatter_elements(s: Any, node: Node, x: Ov, indices: Ov, updates: Ov) -> Ov:
    axis = axis_of(node, rank_of(x))
    how = REDUCTIONS[attr(node, "reduction")]
    places = counted(indices, dim_of(x, axis))
    return _written(
        node, x, updates,
        lambda a, b: ops.scatter_elements_update(a, places, b, const(axis), reduction=how),
    )  # fmt: skip


def _scatter_nd(s: Any, node: Node, x: Ov, indices: Ov, updates: Ov) -> Ov:
    depth = node.operands[1].tensor.shape[-1]
    assert isinstance(depth, int), "its type rule asks for it"
    dims = ops.gather(shape_of(x), const(list(range(depth))), const(0))
    how = REDUCTIONS[attr(node, "reduction")]
    places = counted(indices, dims)
    return _written(
        node, x, updates, lambda a, b: ops.scatter_nd_update(a, places, b, reduction=how)
    )


def _written(node: Node, x: Ov, updates: Ov, write: Any) -> Ov:
    of = node.outputs[0].tensor.dtype
    if of.kind == "bool":
        return convert(write(convert(x, "u8"), convert(updates, "u8")), "boolean")
    return stored(write(ints(x), ints(updates)), of) if of.is_integer else write(x, updates)


def _refuses_scatter(node: Node) -> str | None:
    of, how = node.outputs[0].tensor.dtype, attr(node, "reduction")
    if how == "set":
        return None
    if of.is_integer:
        return f"OpenVINO scatters {how} of integers with saturation, not wrapping around."
    if of.is_float and how in ("max", "min"):
        return f"OpenVINO scatters {how} of floats without minding NaN."
    return None


def _update(s: Any, node: Node, x: Ov, update: Ov, starts: Ov) -> Ov:
    rank = rank_of(x)
    if not rank:
        return update
    last = ops.subtract(shape_of(x), shape_of(update))
    first = ops.minimum(ops.maximum(starts, const([0] * rank)), last)
    axes = const(list(range(rank)))
    return ops.slice_scatter(
        x, update, first, ops.add(first, shape_of(update)), const([1] * rank), axes
    )


def _nonzero(s: Any, node: Node, x: Ov) -> Ov:
    if node.operands[0].tensor.dtype.kind == "bool":
        x = convert(x, "u8")
    if rank_of(x):
        return ops.non_zero(x, "i32")
    # The places of a scalar have no axes: as many columns, and no rows.
    found = ops.non_zero(ops.unsqueeze(x, const([0])), "i32")
    return ops.slice(found, const([0]), const([0]), const([1]), const([0]))


def _nonzero_pair(s: Any, node: Node, x: Any) -> Ov:
    some = [ops.not_equal(piece, ops.convert_like(const(0), piece)) for piece in x]
    return _nonzero_flags(node, ops.logical_or(*some))


def _nonzero_flags(node: Node, flags: Ov) -> Ov:
    return ops.non_zero(convert(flags, "u8"), "i32")


def _refuses_scalar_pair(node: Node) -> str | None:
    (x,) = node.operands
    if x.tensor.rank == 0 and x.tensor.dtype.is_complex:
        return "OpenVINO lists the places of a scalar only when it is real."
    return None


def one_hot(s: Any, node: Node, indices: Ov, values: Ov) -> Ov:
    """Compare places with a row of all places."""
    depth = s.scalar(attr(node, "depth"))
    axis = axis_of(node, rank_of(indices) + 1)
    off, on = (ops.gather(values, const(i), const(0)) for i in (0, 1))
    places = counted(indices, depth)
    return ops.one_hot(places, depth, on, off, axis)


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
    "nonzero": Entry(_nonzero, "fiub", _nonzero_pair, _nonzero_pair, _refuses_scalar_pair),
}
assert np.dtype("int32").itemsize == 4
