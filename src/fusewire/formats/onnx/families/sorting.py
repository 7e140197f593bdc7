"""Order: TopK sorts all, and keeps the order of equals; only NaN needs help."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.dtypes import bool_, int64, uint8
from fusewire.errors import FormatError
from fusewire.formats.onnx.emitter import Emitter, Ref
from fusewire.formats.onnx.families.convolution import require_filled
from fusewire.formats.onnx.families.pieces import choose, compare, indices, number, operand
from fusewire.ir.graph import Node
from fusewire.ops.inference import axis_of


def _places(e: Emitter, node: Node, x: Ref) -> Ref:
    """Find the places of elements in order; NaN is the largest, larger than infinity."""
    value, descending = operand(node, 0).tensor, bool(node.attrs["descending"])
    axis = axis_of(node.attrs["axis"], value.rank)  # type: ignore[arg-type]  # an int
    count = e.size(value.shape[axis])
    if not x.dtype.is_float:
        return _top(e, x, count, axis, descending)[1]
    broken = e("IsNaN", x, dtype=bool_)
    numbers = choose(e, broken, number(e, np.inf, x), x)
    order = _top(e, numbers, count, axis, descending)[1]
    # Sorted once more by whether they are numbers, which moves NaN past infinities only.
    flags = e("GatherElements", e.cast(broken, uint8), order, axis=axis)
    again = _top(e, flags, count, axis, descending)[1]
    return e("GatherElements", order, again, axis=axis)


def _top(e: Emitter, x: Ref, count: Ref, axis: int, largest: bool) -> list[Ref]:
    return e.many("TopK", x, count, made=[x.dtype, int64], axis=axis, largest=int(largest))


def sort(e: Emitter, node: Node, x: Ref) -> Ref:
    """Order the elements."""
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    return e("GatherElements", x, _places(e, node, x), axis=axis)


def top_k(e: Emitter, node: Node, x: Ref, k: Ref | None = None) -> list[Ref]:
    """Take the largest or smallest few."""
    attrs: Any = node.attrs
    axis = axis_of(attrs["axis"], operand(node, 0).tensor.rank)
    count = e.size(attrs["k"]) if k is None else e("Reshape", indices(e, k), e.integers(1))
    return _top(e, x, count, axis, bool(attrs["largest"]))


def unique(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Keep one of each."""
    attrs: Any = node.attrs
    require_filled(node)
    made = [x.dtype, int64, int64, int64]
    return e.many("Unique", x, made=made, axis=attrs["axis"], sorted=int(attrs["sorted"]))


def searchsorted(e: Emitter, node: Node, row: Ref, x: Ref) -> Ref:
    """Halve the row until the place is found; its size tells how often."""
    (count,) = operand(node, 0).tensor.shape
    if not isinstance(count, int):
        raise FormatError("A search of a row whose size only the run tells cannot be unrolled.")
    zero = e.constant(np.int64(0))
    shape = e("Shape", x, dtype=int64)
    low = e("Expand", zero, shape)
    if count == 0:
        return low
    high = e("Expand", e.constant(np.int64(count)), shape)
    last, half, one = (e.constant(np.int64(n)) for n in (count - 1, 2, 1))
    op = "LessOrEqual" if node.attrs["right"] else "Less"
    for _ in range(count.bit_length()):
        middle = e("Div", e("Add", low, high), half)
        seen = e("Gather", row, e("Min", middle, last), axis=0)
        open_ = compare(e, "Less", low, high)
        above = e("And", compare(e, op, seen, x), open_)
        low = choose(e, above, e("Add", middle, one), low)
        high = choose(e, above, high, middle)
    return low


WRITERS = {
    "sort": sort,
    "argsort": _places,
    "top_k": top_k,
    "dynamic_top_k": top_k,
    "unique": unique,
    "searchsorted": searchsorted,
}
