"""Order: sorting and the largest few, with NaN as the largest."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset16 as ops

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
    stored,
    turned,
)
from fusewire.backends.openvino.lowering.movement import attr, axis_of
from fusewire.dtypes import uint32
from fusewire.ir.graph import Node


def _ordered(node: Node, x: Ov, count: Ov, axis: int, largest: bool) -> Pair:
    """Take so many in order, with their places; equal ones in the order they are in."""
    of = node.operands[0].tensor.dtype
    mode = "max" if largest else "min"
    if of is uint32:
        values, places = _top(turned(x), count, axis, mode)
        return turned(values), places
    if of.kind == "bool":
        values, places = _top(convert(x, "f32"), count, axis, mode)
        return convert(values, "boolean"), places
    if not of.is_float:
        values, places = _top(ints(x), count, axis, mode)
        return stored(values, of), places
    # The engine has no place for NaN: they go where infinities are, then to the end of those.
    nan = ops.is_nan(x)
    whole = ops.squeeze(dim_of(x, axis), const([0]))
    _, first = _top(ops.select(nan, number(np.inf, x), x), whole, axis, mode)
    flags = ops.gather_elements(convert(nan, "f32"), first, axis)
    _, second = _top(flags, count, axis, mode)
    places = ops.gather_elements(first, second, axis)
    return ops.gather_elements(x, places, axis), places


def _top(x: Ov, count: Ov, axis: int, mode: str) -> Pair:
    found = ops.topk(x, count, axis, mode, "value", "i32", True)
    return found.output(0), found.output(1)


def _sorted(s: Any, node: Node, x: Ov) -> Pair:
    axis = axis_of(node, rank_of(x))
    count = ops.squeeze(dim_of(x, axis), const([0]))
    return _ordered(node, x, count, axis, bool(attr(node, "descending")))


def _top_k(s: Any, node: Node, x: Ov) -> list[Ov]:
    axis = axis_of(node, rank_of(x))
    return list(_ordered(node, x, s.scalar(attr(node, "k")), axis, bool(attr(node, "largest"))))


def _dynamic_top_k(s: Any, node: Node, x: Ov, count: Ov) -> list[Ov]:
    axis = axis_of(node, rank_of(x))
    return list(_ordered(node, x, count, axis, bool(attr(node, "largest"))))


TABLE: Table = {
    "sort": Entry(lambda s, node, x: _sorted(s, node, x)[0], "fiub"),
    "argsort": Entry(lambda s, node, x: _sorted(s, node, x)[1], "fiub"),
    "top_k": Entry(_top_k, "fiub"),
    "dynamic_top_k": Entry(_dynamic_top_k, "fiub"),
}
