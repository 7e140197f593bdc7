"""Sorting and top-k, with NaN as the largest."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Pair,
    Table,
    const,
    convert,
    dim_of,
    ints,
    number,
    rank_of,
    select,
    stored,
    turned,
)
from fusewire.backends.openvino.lowering.indexing import limited
from fusewire.backends.openvino.lowering.movement import attr, axis_of
from fusewire.dtypes import uint32
from fusewire.ir.graph import Node


def _ordered(node: Node, x: Ov, count: Ov, axis: int, largest: bool) -> Pair:
    """Take so many in order, with their places; equal ones in the order they are in."""
    of = node.operands[0].tensor.dtype
    mode = "max" if largest else "min"
    if of is uint32:
        values, places = top(turned(x), count, axis, mode)
        return turned(values), places
    if of.kind == "bool":
        values, places = top(convert(x, "f32"), count, axis, mode)
        return convert(values, "boolean"), places
    if not of.is_float:
        values, places = top(ints(x), count, axis, mode)
        return stored(values, of), places
    # The engine has no place for NaN: they go where infinities are, then to the end of those.
    nan = ops.is_nan(x)
    whole = ops.squeeze(dim_of(x, axis), const([0]))
    _, first = top(select(nan, number(np.inf, x), x), whole, axis, mode)
    flags = ops.gather_elements(convert(nan, "f32"), first, axis)
    _, second = top(flags, count, axis, mode)
    places = ops.gather_elements(first, second, axis)
    return ops.gather_elements(x, places, axis), places


def top(x: Ov, count: Ov, axis: int, mode: str) -> Pair:
    """Take so many in order as the engine does, with their places."""
    found = ops.topk(x, count, axis, mode, "value", "i32", True)
    return found.output(0), found.output(1)


def _sorted(s: Any, node: Node, x: Ov) -> Pair:
    axis = axis_of(node, rank_of(x))
    count = ops.squeeze(dim_of(x, axis), const([0]))
    return _ordered(node, x, count, axis, bool(attr(node, "descending")))


def _top_k(s: Any, node: Node, x: Ov) -> list[Ov]:
    axis, count = axis_of(node, rank_of(x)), attr(node, "k")
    if not isinstance(count, int) or count == 0:
        return _dynamic_top_k(s, node, x, s.scalar(count))
    return list(_ordered(node, x, s.scalar(count), axis, bool(attr(node, "largest"))))


def _dynamic_top_k(s: Any, node: Node, x: Ov, count: Ov) -> list[Ov]:
    axis = axis_of(node, rank_of(x))
    count = limited(count, const(0), ops.squeeze(dim_of(x, axis), const([0])))
    # Of none, the engine fails or ends the process (2026.4.1).
    some = ops.maximum(count, const(1))
    found = _ordered(node, x, some, axis, bool(attr(node, "largest")))
    first, end = const([0]), ops.reshape(count, const([1]), False)
    return [ops.slice(made, first, end, const([1]), const([axis])) for made in found]


def _searchsorted(s: Any, node: Node, row: Ov, x: Ov) -> Ov:
    of = node.operands[0].tensor.dtype
    right = bool(attr(node, "right"))
    flat = ops.reshape(x, const([-1]), False)
    if of is uint32:
        row, flat = turned(row), turned(flat)
    found = convert(ops.search_sorted(ints(row), ints(flat), right), "i32")
    if of.is_float:
        # NaN is larger than all; in the engine's search it is neither larger nor smaller.
        real = convert(ops.logical_not(ops.is_nan(row)), "f32")
        count = convert(ops.reduce_sum(real, const([0]), True), "i32")
        end = dim_of(row, 0) if right else count
        found = select(ops.is_nan(flat), end, ops.minimum(found, count))
    return ops.reshape(found, s.shape(node.operands[1].tensor.shape), False)


def _refuses_search(node: Node) -> str | None:
    (count,) = node.operands[0].tensor.shape
    if isinstance(count, int) and 0 < count < 1 << 24:
        return None
    return "OpenVINO searches a row of nothing beyond its memory, and this one may be empty."


def _unique(s: Any, node: Node, x: Ov) -> list[Ov]:
    of, axis = node.operands[0].tensor.dtype, attr(node, "axis")
    along = None if axis is None else const([axis % rank_of(x)])
    given = convert(x, "i32") if of.kind == "bool" else ints(x)
    values, *rest = ops.unique(given, along, bool(attr(node, "sorted")), "i32", "i32").outputs()
    kept = convert(values, "boolean") if of.kind == "bool" else stored(values, of)
    return [kept, *rest]


def _refuses_unique(node: Node) -> str | None:
    x = node.operands[0].tensor
    if x.dtype.is_float:
        return "OpenVINO's Unique gives wrong places where there is a NaN."
    if 0 in x.shape:
        return "OpenVINO's Unique needs at least one element."
    return None


TABLE: Table = {
    "sort": Entry(lambda s, node, x: _sorted(s, node, x)[0], "fiub"),
    "argsort": Entry(lambda s, node, x: _sorted(s, node, x)[1], "fiub"),
    "top_k": Entry(_top_k, "fiub"),
    "dynamic_top_k": Entry(_dynamic_top_k, "fiub"),
    "searchsorted": Entry(_searchsorted, "fiub", refuses=_refuses_search),
    "unique": Entry(_unique, "ib", refuses=_refuses_unique),
}
