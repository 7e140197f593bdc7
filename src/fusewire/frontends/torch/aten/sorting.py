"""Orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusewire.dtypes import bool_, uint8
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall, at_least_1d, axis_in
from fusewire.ir.graph import Value
from fusewire.ops import indexing, logic, reduction, sorting
from fusewire.ops.conversion import cast
from fusewire.ops.movement import reshape

ROWS = Rows()


def _numbers(x: Value) -> Value:
    """Booleans as numbers, and a scalar as a row."""
    return at_least_1d(cast(x, dtype=uint8) if x.tensor.dtype is bool_ else x)


def _sorted(call: AtenCall, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    axis, row = axis_in(dim, x.tensor.rank), _numbers(x)
    places = sorting.argsort(row, axis=axis, descending=descending)
    if call.uses(1):
        values = indexing.gather_elements(row, places, axis=axis)
    else:
        values = sorting.sort(row, axis=axis, descending=descending)
    shape = x.tensor.shape
    return reshape(call.value(values, x.tensor.dtype), shape=shape), reshape(places, shape=shape)


@ROWS.add("sort", ops="sort, argsort")
def _sort(call: AtenCall, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return _sorted(call, x, dim, descending)


@ROWS.add("sort.stable", ops="sort, argsort")
def _sort_stable(
    call: AtenCall, x: Value, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return _sorted(call, x, dim, descending)


@ROWS.add("argsort", ops="argsort")
def _argsort(call: AtenCall, x: Value, dim: int = -1, descending: bool = False) -> Value:
    axis = axis_in(dim, x.tensor.rank)
    places = sorting.argsort(_numbers(x), axis=axis, descending=descending)
    return reshape(places, shape=x.tensor.shape)


@ROWS.add("argsort.stable", ops="argsort")
def _argsort_stable(
    call: AtenCall, x: Value, stable: bool, dim: int = -1, descending: bool = False
) -> Value:
    return _argsort(call, x, dim, descending)


@ROWS.add("topk", ops="top_k")
def _topk(
    call: AtenCall, x: Value, k: Any, dim: int = -1, largest: bool = True, in_order: bool = True
) -> tuple[Value, Value]:
    axis = axis_in(dim, x.tensor.rank)
    values, places = sorting.top_k(at_least_1d(x), k=k, axis=axis, largest=largest)
    return reshape(values, shape=call.shape), reshape(places, shape=call.shape)


@ROWS.add("kthvalue", ops="sort, argsort")
def _kthvalue(
    call: AtenCall, x: Value, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Value, Value]:
    return _at(call, x, dim, k - 1)


@ROWS.add("median.dim", ops="sort, argsort")
def _median(call: AtenCall, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower of the middle two."""
    row = at_least_1d(x)
    count = call.number(row.tensor.shape[axis_in(dim, x.tensor.rank)], "the size of the axis")
    return _at(call, x, dim, (count - 1) // 2, _first_nan)


@ROWS.add("median", ops="sort")
def _median_all(call: AtenCall, x: Value) -> Value:
    count = call.number(x.tensor.size, "the number of elements")
    flat = reshape(x, shape=(count,))
    return _at(call, flat, 0, (count - 1) // 2, _first_nan)[0]


def _first_nan(row: Value, axis: int, order: Value) -> Value:
    """Take the first NaN of rows that have one."""
    if not row.tensor.dtype.is_float:
        return order
    is_nan = cast(logic.isnan(row), dtype=uint8)
    first = reduction.argmax(is_nan, axis=axis, keepdims=True)
    found = indexing.gather_elements(is_nan, first, axis=axis)
    return logic.where(cast(found, dtype=bool_), first, order)


def _at(
    call: AtenCall,
    x: Value,
    dim: int,
    place: int,
    unless: Callable[[Value, int, Value], Value] = lambda row, axis, order: order,
) -> tuple[Value, Value]:
    """Take the element at a place of each sorted row, and where it was."""
    from fusewire.ops.slicing import slice_axis

    axis, row = axis_in(dim, x.tensor.rank), _numbers(x)
    order = slice_axis(sorting.argsort(row, axis=axis), axis, slice(place, place + 1))
    order = unless(row, axis, order)
    values = indexing.gather_elements(row, order, axis=axis)
    return (
        reshape(call.value(values, x.tensor.dtype), shape=call.shape),
        reshape(order, shape=call.shape),
    )
