"""Sorting by TopK, which is stable; only NaN needs special care."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import bool_, int64, uint8
from fusewire.ir.builder import constant
from fusewire.ir.dims import Shape, unbacked
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType
from fusewire.onnx.ops.reading import cast, scalar, with_sizes
from fusewire.onnx.ops.rows import OnnxRow, readers, writers
from fusewire.onnx.ops.writing import attrs_of, choose, indices, number, operand, spelled
from fusewire.ops import sorting
from fusewire.ops.control import while_
from fusewire.ops.elementwise import add, minimum, subtract, truncate_divide
from fusewire.ops.indexing import gather
from fusewire.ops.inference import axis_of
from fusewire.ops.logic import isnan, less, logical_and, logical_not, logical_or, where
from fusewire.ops.movement import broadcast_to
from fusewire.ops.reduction import reduce_any
from fusewire.ops.shape import dim_of
from fusewire.ops.subgraph import subgraph

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


def _top(e: Emitter, x: Ref, count: Ref, axis: int, largest: bool) -> list[Ref]:
    return e.many("TopK", x, count, made=[x.dtype, int64], axis=axis, largest=int(largest))


def _read_top_k(call: OnnxCall) -> Converted:
    x = call[0]
    if call.opset < 10:
        k = constant(np.int64(call.needed("k")))
    else:
        (k,) = call.settled(cast(scalar(call[1]) or call[1], dtypes.int64))
    axis = axis_of(call.attr("axis", -1), x.tensor.rank)
    shape: Shape = (*x.tensor.shape[:axis], unbacked(), *x.tensor.shape[axis + 1 :])
    return with_sizes(
        call,
        sorting.dynamic_top_k,
        [x, k],
        shape,
        lambda s: {"count": s[axis]},
        axis=axis,
        largest=call.flag("largest", 1),
    )


def _write_top_k(e: Emitter, node: Node, x: Ref, k: Ref | None = None) -> list[Ref]:
    """Take the largest or smallest few."""
    attrs = attrs_of(node)
    axis = spelled(e, attrs["axis"], operand(node, 0).tensor.rank)
    count = e.size(attrs["k"]) if k is None else e("Reshape", indices(e, k), e.integers(1))
    return _top(e, x, count, axis, bool(attrs["largest"]))


def _write_places(e: Emitter, node: Node, x: Ref) -> Ref:
    """Find the places of elements in order."""
    value, descending = operand(node, 0).tensor, bool(node.attrs["descending"])
    axis = axis_of(node.attrs["axis"], value.rank)  # type: ignore[arg-type]  # an int
    return places_in_order(e, x, e.size(value.shape[axis]), axis, descending)


def places_in_order(e: Emitter, x: Ref, count: Ref, axis: int, descending: bool) -> Ref:
    """Order the ``count`` elements of an axis; NaN is the largest, larger than infinity."""
    if not x.dtype.is_float:
        return _top(e, x, count, axis, descending)[1]
    broken = e("IsNaN", x, dtype=bool_)
    numbers = choose(e, broken, number(e, np.inf, x), x)
    order = _top(e, numbers, count, axis, descending)[1]
    # Sorted once more by whether they are numbers, which moves NaN past infinities only.
    flags = e("GatherElements", e.cast(broken, uint8), order, axis=axis)
    again = _top(e, flags, count, axis, descending)[1]
    return e("GatherElements", order, again, axis=axis)


def _write_sort(e: Emitter, node: Node, x: Ref) -> Ref:
    """Order the elements."""
    axis = attrs_of(node)["axis"]
    return e("GatherElements", x, _write_places(e, node, x), axis=axis)


def _write_unique(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Keep one of each."""
    axis, shape = node.attrs["axis"], operand(node, 0).tensor.shape
    made = [x.dtype, int64, int64, int64]
    if isinstance(axis, int):
        others = [dim for i, dim in enumerate(shape) if i != axis % len(shape)]
        count = shape[axis]
        if 0 in others and isinstance(count, int):
            # Slices without elements are all alike.
            kept = tuple(
                min(count, 1) if i == axis % len(shape) else d for i, d in enumerate(shape)
            )
            lists = ([0] * min(count, 1), [0] * count, [count] * min(count, 1))
            return [e.nothing(TensorType(x.dtype, kept)), *(e.integers(*n) for n in lists)]
        if any(not isinstance(dim, int) for dim in others):
            e.caution("Engines stop at slices without elements, and these may have none.")
        return e.many("Unique", x, made=made, axis=axis, sorted=int(attrs_of(node)["sorted"]))
    if 0 in shape:
        return [e.nothing(TensorType(of, (0,))) for of in made]
    return e.many("Unique", x, made=made, sorted=int(attrs_of(node)["sorted"]))


def _write_searchsorted(e: Emitter, node: Node, row: Ref, x: Ref) -> Ref:
    """Halve the row until the place is found."""
    types = [operand(node, i).tensor for i in (0, 1)]
    right = bool(node.attrs["right"])
    graph = subgraph(lambda a, b: [_search(a, b, right)], *types)
    return e.run(graph, [row, x], inline=True)[0][0]


def _search(row: Value, x: Value, right: bool) -> Value:
    (count,), shape = row.tensor.shape, x.tensor.shape
    low = broadcast_to(constant(np.int64(0)), shape=shape)
    high = broadcast_to(dim_of(row, 0), shape=shape)
    # NaN is the largest.
    below = _below_or_nan if row.tensor.dtype.is_float else less

    def halve(low: Value, high: Value, row: Value, x: Value) -> list[Value]:
        middle = truncate_divide(add(low, high), 2)
        seen = gather(row, minimum(middle, subtract(dim_of(row, 0), 1)), axis=0)
        above = logical_not(below(x, seen)) if right else below(seen, x)
        above = logical_and(above, less(low, high))
        return [where(above, add(middle, 1), low), where(above, high, middle)]

    if isinstance(count, int):
        for _ in range(count.bit_length()):
            low, high = halve(low, high, row, x)
        return low
    types = [v.type for v in (low, high, row, x)]
    body = subgraph(halve, *types)
    test = subgraph(lambda low, high, row, x: [reduce_any(less(low, high))], *types)
    return while_(low, high, row, x, condition=test, body=body, carries=2)[0]


def _below_or_nan(x: Value, y: Value) -> Value:
    return logical_or(less(x, y), logical_and(isnan(y), logical_not(isnan(x))))


ROWS = (
    OnnxRow(
        sorting.unique,
        "Unique",
        {"axis": ("axis", None), "sorted": ("sorted", True)},
        writer=_write_unique,
    ),
)
READERS: Mapping[str, Read] = {**readers(ROWS), "TopK": _read_top_k}
WRITERS: Mapping[str, Write] = {
    **writers(ROWS),
    "sort": _write_sort,
    "argsort": _write_places,
    "top_k": _write_top_k,
    "dynamic_top_k": _write_top_k,
    "searchsorted": _write_searchsorted,
}
