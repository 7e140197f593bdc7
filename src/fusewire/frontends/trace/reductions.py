"""NumPy's functions that combine elements over axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import bool_
from fusewire.frontends.trace.table import (
    Table,
    axes_of,
    axis_of,
    flag,
    is_given,
    result_dtype,
    strong,
    xp,
)

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

TABLE = Table()
_NONE: Any = np._NoValue


def truth(x: Tracer) -> Any:
    """Return where elements are not 0."""
    return x if x.type.dtype is bool_ else xp.not_equal(x, 0)


def terms(x: Tracer, axis: Any) -> Any:
    """Count the elements that one result combines."""
    count: Any = 1
    for at in axes_of(axis, x.ndim):
        count = count * x.shape[at]
    return count


def _reduction(function: Any, op: Any, combine: Any, neutral: Any = None) -> Any:
    """Add a row; masked elements count as the identity, or as the initial element."""
    is_logic, widens = combine is None, function in (np.sum, np.prod)

    @TABLE.row(function)
    def handler(
        trace: Recording,
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        *,
        keepdims: Any = False,
        initial: Any = _NONE,
        where: Any = True,
    ) -> Any:
        x = truth(strong(trace, a)) if is_logic else strong(trace, a)
        if widens:
            x = x.astype(result_dtype(function, x, dtype=dtype).numpy, copy=False)
            if x.type.dtype is bool_:
                test = xp.any if function is np.sum else xp.all
                return test(x, axis, keepdims=keepdims, where=where)
        if where is not True and is_given(where):
            x = xp.where(where, x, np.array(initial if neutral is None else neutral, x.dtype))
        axes = axes_of(axis, x.ndim)
        if neutral is None and not is_given(initial) and any(x.type.shape[i] == 0 for i in axes):
            name = combine.__name__
            raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
        found = trace.op(op, x, axes=axes, keepdims=flag(keepdims))
        return combine(found, np.array(initial, x.dtype)) if is_given(initial) else found

    return handler


_reduction(np.sum, ops.reduce_sum, xp.add, 0)
_reduction(np.prod, ops.reduce_prod, xp.multiply, 1)
_reduction(np.max, ops.reduce_max, xp.maximum)
_reduction(np.min, ops.reduce_min, xp.minimum)
_reduction(np.all, ops.reduce_all, None, True)
_reduction(np.any, ops.reduce_any, None, False)
TABLE.rows |= {np.amax: TABLE.rows[np.max], np.amin: TABLE.rows[np.min]}


@TABLE.row(np.mean)
def _mean(
    trace: Recording,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    *,
    keepdims: Any = False,
    where: Any = True,
) -> Any:
    x = strong(trace, a)
    of = result_dtype(np.mean, x, dtype=dtype)
    if where is not True and is_given(where):
        counted = xp.sum(xp.broadcast_to(where, x.shape), axis, keepdims=keepdims)
        return xp.sum(x, axis, of.numpy, keepdims=keepdims, where=where) / counted.astype(of.numpy)
    x = x.astype(of.numpy, copy=False)
    if of.is_complex:
        return xp.sum(x, axis, keepdims=keepdims) / terms(x, axis)
    return trace.op(ops.reduce_mean, x, axes=axes_of(axis, x.ndim), keepdims=flag(keepdims))


@TABLE.row(np.var)
def _var(
    trace: Recording,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    *,
    keepdims: Any = False,
    where: Any = True,
    mean: Any = _NONE,
    correction: Any = _NONE,
) -> Any:
    x = strong(trace, a)
    less = correction if is_given(correction) else ddof
    of = result_dtype(np.mean, x, dtype=dtype)
    x = x.astype(of.numpy, copy=False)
    is_masked = where is not True and is_given(where)
    if not (is_given(mean) or is_masked or of.is_complex) and int(less) == less:
        axes, keep = axes_of(axis, x.ndim), flag(keepdims)
        return trace.op(ops.variance, x, axes=axes, keepdims=keep, correction=int(less))
    away = x - (mean if is_given(mean) else xp.mean(x, axis, keepdims=True, where=where))
    away = xp.abs(away) if of.is_complex else away
    total = xp.sum(away * away, axis, keepdims=keepdims, where=where)
    counted = xp.sum(xp.broadcast_to(where, x.shape), axis, keepdims=keepdims)
    return total / (counted - less).astype(total.dtype)


@TABLE.row(np.std)
def _std(trace: Recording, a: Any, *args: Any, **options: Any) -> Any:
    return xp.sqrt(xp.var(strong(trace, a), *args, **options))


def _position(function: Any, op: Any) -> None:
    @TABLE.row(function)
    def handler(trace: Recording, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
        x = strong(trace, a)
        if any(x.type.shape[at] == 0 for at in axes_of(axis, x.ndim)):
            raise ValueError(f"attempt to get {function.__name__} of an empty sequence")
        if axis is None:
            found = trace.op(op, x.ravel(), axis=0, keepdims=False)
            return found.reshape((1,) * x.ndim) if flag(keepdims) else found
        return trace.op(op, x, axis=axis_of(axis, x.ndim), keepdims=flag(keepdims))


_position(np.argmax, ops.argmax)
_position(np.argmin, ops.argmin)


def cumulated(trace: Recording, op: Any, x: Tracer, axis: Any) -> Any:
    """Combine along an axis, keeping intermediate results; flattened without an axis."""
    if axis is None:
        x, axis = x.ravel(), 0
    return trace.op(op, x, axis=axis_of(axis, x.ndim))


def _cumulation(function: Any, op: Any) -> None:
    @TABLE.row(function)
    def handler(trace: Recording, a: Any, axis: Any = None, dtype: Any = None) -> Any:
        x = strong(trace, a)
        of = result_dtype(function, x, dtype=dtype).numpy
        return cumulated(trace, op, x.astype(of, copy=False), axis)


_cumulation(np.cumsum, ops.cumsum)
_cumulation(np.cumprod, ops.cumprod)


@TABLE.row(np.count_nonzero)
def _count_nonzero(trace: Recording, a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return xp.sum(truth(strong(trace, a)), axis, np.int64, keepdims=keepdims)


@TABLE.row(np.average)
def _average(
    trace: Recording,
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: Any = False,
) -> Any:
    x = strong(trace, a)
    if weights is None:
        found = xp.mean(x, axis, keepdims=keepdims)
        return (found, xp.full_like(found, terms(x, axis))) if returned else found
    w = strong(trace, weights)
    of = np.result_type(x.dtype, w.dtype, *(["f8"] if x.dtype.kind in "biu" else []))
    if w.ndim != x.ndim:
        w = w.reshape([d if i == axis_of(axis, x.ndim) else 1 for i, d in enumerate(x.shape)])
    scale = xp.sum(xp.broadcast_to(w, x.shape), axis, of, keepdims=keepdims)
    found = xp.sum(xp.multiply(x, w, dtype=of), axis, keepdims=keepdims) / scale
    return (found, xp.broadcast_to(scale, found.shape)) if returned else found


def _present(x: Tracer) -> Any:
    return ~xp.isnan(x) if x.type.dtype.is_inexact else True


def _without_nan(function: Any, plain: Any, instead: float) -> None:
    """Add a row for a function that replaces NaN by another number."""
    is_extreme = plain in (np.max, np.min)

    @TABLE.row(function)
    def handler(trace: Recording, a: Any, axis: Any = None, *args: Any, **more: Any) -> Any:
        x = strong(trace, a)
        here = _present(x)
        if here is True:
            return plain(x, axis, *args, **more)
        found = plain(xp.where(here, x, np.array(instead, x.dtype)), axis, *args, **more)
        if not is_extreme:
            return found
        some = xp.any(here, axis, keepdims=flag(more.get("keepdims")))
        return xp.where(some, found, np.array(np.nan, x.dtype))


_without_nan(np.nansum, xp.sum, 0)
_without_nan(np.nanprod, xp.prod, 1)
_without_nan(np.nanmax, xp.max, -np.inf)
_without_nan(np.nanmin, xp.min, np.inf)
_without_nan(np.nanargmax, xp.argmax, -np.inf)
_without_nan(np.nanargmin, xp.argmin, np.inf)


def _of_present(function: Any, plain: Any) -> None:
    """Add a row for a function that skips NaN."""

    @TABLE.row(function)
    def handler(trace: Recording, a: Any, *args: Any, **more: Any) -> Any:
        x = strong(trace, a)
        return plain(x, *args, where=_present(x), **more)


_of_present(np.nanmean, xp.mean)
_of_present(np.nanvar, xp.var)
_of_present(np.nanstd, xp.std)


@TABLE.row(np.allclose)
def _allclose(trace: Recording, a: Any, b: Any, *args: Any, **options: Any) -> Any:
    return xp.all(xp.isclose(a, b, *args, **options))


@TABLE.row(np.array_equal)
def _array_equal(trace: Recording, a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    x, y = strong(trace, a1), strong(trace, a2)
    if x.ndim != y.ndim or x.shape != y.shape:
        return False
    same = xp.equal(x, y)
    return xp.all(same | (xp.isnan(x) & xp.isnan(y)) if equal_nan else same)


@TABLE.row(np.round, np.around)
def _round(trace: Recording, a: Any, decimals: int = 0) -> Any:
    x = strong(trace, a)
    scale = 10 ** abs(decimals)
    if not x.type.dtype.is_inexact:
        return x if decimals >= 0 else (xp.rint(x / scale) * scale).astype(x.dtype)
    if decimals == 0:
        return xp.rint(x)
    return xp.rint(x * scale) / scale if decimals > 0 else xp.rint(x / scale) * scale
