"""Sums, means, extremes and what accumulates along an axis."""

from __future__ import annotations

import math
from typing import Any

from fusewire.dtypes import bool_, int64, uint8
from fusewire.frontends.torch.aten.rows import Convert, Rows
from fusewire.frontends.torch.call import AtenCall, at_least_1d, axes_in, axis_in
from fusewire.ir.graph import Value
from fusewire.ops import cumulative, elementwise, logic, reduction, statistics
from fusewire.ops.conversion import cast
from fusewire.ops.declare import Op
from fusewire.ops.movement import reshape

ROWS = Rows()


def _over(call: AtenCall, op: Op[Value], x: Value, dims: Any, keepdim: bool, **attrs: Any) -> Value:
    return op(x, axes=axes_in(dims, x.tensor.rank), keepdims=keepdim, **attrs)


@ROWS.add("sum", ops="reduce_sum")
def _sum(call: AtenCall, x: Value, dtype: Any = None) -> Value:
    return reduction.reduce_sum(call.value(x))


@ROWS.add("sum.dim_IntList", ops="reduce_sum")
def _sum_dims(call: AtenCall, x: Value, dims: Any, keepdim: bool = False, *rest: Any) -> Value:
    return _over(call, reduction.reduce_sum, call.value(x), dims, keepdim)


@ROWS.add("mean", ops="reduce_mean")
def _mean(call: AtenCall, x: Value, dtype: Any = None) -> Value:
    return statistics.reduce_mean(call.value(x))


@ROWS.add("mean.dim", ops="reduce_mean")
def _mean_dims(call: AtenCall, x: Value, dims: Any, keepdim: bool = False, *rest: Any) -> Value:
    return _over(call, statistics.reduce_mean, call.value(x), dims, keepdim)


@ROWS.add("prod", ops="reduce_prod")
def _prod(call: AtenCall, x: Value, dtype: Any = None) -> Value:
    return reduction.reduce_prod(call.value(x))


@ROWS.add("prod.dim_int", ops="reduce_prod")
def _prod_dim(call: AtenCall, x: Value, dim: int, keepdim: bool = False, *rest: Any) -> Value:
    return _over(call, reduction.reduce_prod, call.value(x), dim, keepdim)


def _extreme(x: Value, op: Op[Value], of_bools: Op[Value], axes: Any, keepdim: bool) -> Value:
    return (of_bools if x.tensor.dtype is bool_ else op)(x, axes=axes, keepdims=keepdim)


_EXTREMES = {
    "max": (reduction.reduce_max, reduction.reduce_any, reduction.argmax),
    "min": (reduction.reduce_min, reduction.reduce_all, reduction.argmin),
}


def _whole(op: Op[Value], of_bools: Op[Value]) -> Convert:
    return lambda call, x: _extreme(x, op, of_bools, None, False)


def _along(op: Op[Value], of_bools: Op[Value], find: Op[Value]) -> Convert:
    def convert(call: AtenCall, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        axes = axes_in(dim, x.tensor.rank)
        return _extreme(x, op, of_bools, axes, keepdim), _found(find, x, dim, keepdim)

    return convert


def _over_axes(op: Op[Value], of_bools: Op[Value]) -> Convert:
    def convert(call: AtenCall, x: Value, dims: Any = (), keepdim: bool = False) -> Value:
        return _extreme(x, op, of_bools, axes_in(dims, x.tensor.rank), keepdim)

    return convert


def _found(find: Op[Value], x: Value, dim: int, keepdim: bool) -> Value:
    rank = x.tensor.rank
    numbers = cast(x, dtype=uint8) if x.tensor.dtype is bool_ else x
    place = find(at_least_1d(numbers), axis=axis_in(dim, rank), keepdims=keepdim)
    return reshape(place, shape=()) if rank == 0 else place


for _name, (_op, _of_bools, _find) in _EXTREMES.items():
    ROWS.add(_name, ops=_op.name)(_whole(_op, _of_bools))
    ROWS.add(f"{_name}.dim", ops=f"{_op.name}, {_find.name}")(_along(_op, _of_bools, _find))
    ROWS.add(f"a{_name}", ops=_op.name)(_over_axes(_op, _of_bools))


def _arg(find: Op[Value]) -> Convert:
    def convert(call: AtenCall, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is None:
            flat = reshape(x, shape=(x.tensor.size,))
            return reshape(_found(find, flat, 0, False), shape=call.shape)
        return _found(find, x, dim, keepdim)

    return convert


ROWS.add("argmax", ops="argmax")(_arg(reduction.argmax))
ROWS.add("argmin", ops="argmin")(_arg(reduction.argmin))


def _truth(op: Op[Value], has_dims: bool) -> Convert:
    def convert(call: AtenCall, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
        axes = axes_in(dims, x.tensor.rank) if has_dims else None
        return call.value(op(call.value(x, bool_), axes=axes, keepdims=keepdim))

    return convert


for _name, _op in (("any", reduction.reduce_any), ("all", reduction.reduce_all)):
    ROWS.add(_name, ops=_op.name)(_truth(_op, has_dims=False))
    ROWS.add(f"{_name}.dim", f"{_name}.dims", ops=_op.name)(_truth(_op, has_dims=True))


@ROWS.add("aminmax", ops="reduce_min, reduce_max")
def _aminmax(
    call: AtenCall, x: Value, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, ...]:
    axes = axes_in(dim, x.tensor.rank)
    return tuple(_extreme(x, *_EXTREMES[name][:2], axes, keepdim) for name in ("min", "max"))


def _correction(call: AtenCall, correction: Any) -> int:
    if correction is None:
        return 1
    if float(correction).is_integer() and correction >= 0:
        return int(correction)
    raise call.refusal(f"the correction must be a whole number from 0 up, found {correction}.")


def _spread(op: Op[Value]) -> Convert:
    def convert(
        call: AtenCall, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False
    ) -> Value:
        by = _correction(call, correction)
        if x.tensor.dtype.is_complex:
            raise call.refusal("there is no variance of complex numbers. Use that of both parts.")
        return _over(call, op, x, dims, keepdim, correction=by)

    return convert


def _spread_unbiased(op: Op[Value]) -> Convert:
    spread = _spread(op)

    def convert(
        call: AtenCall, x: Value, dims: Any, unbiased: bool = True, keepdim: bool = False
    ) -> Value:
        found: Value = spread(call, x, dims, int(unbiased), keepdim)
        return found

    return convert


for _name, _op in (("var", statistics.variance), ("std", statistics.standard_deviation)):
    ROWS.add(f"{_name}.correction", ops=_op.name)(_spread(_op))
    ROWS.add(f"{_name}.dim", ops=_op.name)(_spread_unbiased(_op))


def _spread_mean(op: Op[Value]) -> Convert:
    spread = _spread(op)

    def convert(
        call: AtenCall, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False
    ) -> tuple[Value, Value]:
        mean = _over(call, statistics.reduce_mean, x, dims, keepdim)
        return spread(call, x, dims, correction, keepdim), mean

    return convert


ROWS.add("var_mean.correction", ops="variance, reduce_mean")(_spread_mean(statistics.variance))
ROWS.add("std_mean.correction", ops="standard_deviation, reduce_mean")(
    _spread_mean(statistics.standard_deviation)
)


@ROWS.add("logsumexp", ops="logsumexp")
def _logsumexp(call: AtenCall, x: Value, dims: Any, keepdim: bool = False) -> Value:
    return _over(call, reduction.logsumexp, call.value(x), dims, keepdim)


@ROWS.add("linalg_vector_norm", ops="norm_l2, norm_l1, reduce_max")
def vector_norm(
    call: AtenCall, x: Value, order: Any = 2, dims: Any = None, keepdim: bool = False, *rest: Any
) -> Value:
    """Take the p-norm over axes, of the result's dtype."""
    if x.tensor.dtype.is_complex:
        x = elementwise.abs_(x)
    value, axes = call.value(x), axes_in(dims, x.tensor.rank)
    simple = {2: reduction.norm_l2, 1: reduction.norm_l1}.get(order)
    if simple is not None:
        return simple(value, axes=axes, keepdims=keepdim)
    sizes = elementwise.abs_(value)
    if order in (math.inf, -math.inf):
        op = reduction.reduce_max if order > 0 else reduction.reduce_min
        return op(sizes, axes=axes, keepdims=keepdim)
    if order == 0:
        counted = call.value(logic.not_equal(value, 0))
        return reduction.reduce_sum(counted, axes=axes, keepdims=keepdim)
    total = reduction.reduce_sum(
        elementwise.power(sizes, call.value(order)), axes=axes, keepdims=keepdim
    )
    return elementwise.power(total, call.value(1.0 / order))


def _cumulated(op: Op[Value]) -> Convert:
    def convert(call: AtenCall, x: Value, dim: int, *rest: Any) -> Value:
        value = call.value(x)
        return value if x.tensor.rank == 0 else op(value, axis=axis_in(dim, x.tensor.rank))

    return convert


ROWS.add("cumsum", ops="cumsum")(_cumulated(cumulative.cumsum))
ROWS.add("cumprod", ops="cumprod")(_cumulated(cumulative.cumprod))
ROWS.add("logcumsumexp", ops="cumlogsumexp")(_cumulated(cumulative.cumlogsumexp))


def _cumulated_extreme(op: Op[Value], holds: Op[Value]) -> Convert:
    def convert(call: AtenCall, x: Value, dim: int) -> tuple[Value, Value | None]:
        rank = x.tensor.rank
        of = cast(x, dtype=uint8) if x.tensor.dtype is bool_ else x
        row, axis = at_least_1d(of), axis_in(dim, rank)
        best = op(row, axis=axis)
        found = call.value(reshape(best, shape=x.tensor.shape), x.tensor.dtype)
        if not call.uses(1):
            return found, None
        # The latest place at which an element is the best so far.
        from fusewire.ops.creation import iota

        places = iota.new(shape=row.tensor.shape, axis=axis, dtype=int64)
        is_best = holds(row, best)
        if row.tensor.dtype.is_float:
            is_best = logic.logical_or(is_best, logic.isnan(row))
        index = cumulative.cummax(logic.where(is_best, places, 0), axis=axis)
        return found, reshape(index, shape=x.tensor.shape)

    return convert


ROWS.add("cummax", ops="cummax")(_cumulated_extreme(cumulative.cummax, logic.greater_equal))
ROWS.add("cummin", ops="cummin")(_cumulated_extreme(cumulative.cummin, logic.less_equal))


@ROWS.add("count_nonzero.dim_IntList", "count_nonzero", ops="not_equal, reduce_sum")
def _count_nonzero(call: AtenCall, x: Value, dims: Any = None) -> Value:
    counted = cast(call.value(x, bool_), dtype=int64)
    return _over(call, reduction.reduce_sum, counted, dims, False)
