"""Functions of NumPy that combine elements over axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import bool_, dtype
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.table import (
    Table,
    axes_of,
    axis_of,
    is_given,
    result_dtype,
    strong,
    xp,
)  # fmt: skip

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

TABLE = Table()
_NONE: Any = np._NoValue


def _reduced(
    trace: Recording, op: Any, combine: Any, x: Tracer, axis: Any, keepdims: Any,
    initial: Any = _NONE, where: Any = True, neutral: Any = None,
) -> Any:  # fmt: skip
    """Reduce; what the mask leaves out counts as the neutral element."""
    if where is not True and is_given(where):
        x = xp.where(where, x, np.array(initial if neutral is None else neutral, x.dtype))
    axes = axes_of(axis, x.ndim)
    if neutral is None and not is_given(initial) and any(x.type.shape[a] == 0 for a in axes):
        name = combine.__name__
        raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    found = trace.op(op, x, axes=axes, keepdims=is_given(keepdims) and bool(keepdims))
    return combine(found, np.array(initial, x.dtype)) if is_given(initial) else found


@TABLE.row(np.sum)
def _sum(
    trace: Recording, a: Any, axis: Any = None, dtype: Any = None, keepdims: Any = _NONE,
    initial: Any = _NONE, where: Any = True,
) -> Any:  # fmt: skip
    x = strong(trace, a)
    x = x.astype(result_dtype(np.sum, x, dtype=dtype).numpy, copy=False)
    if x.type.dtype is bool_:
        return _any(trace, x, axis, keepdims, where)
    return _reduced(trace, ops.reduce_sum, xp.add, x, axis, keepdims, initial, where, 0)


@TABLE.row(np.prod)
def _prod(
    trace: Recording, a: Any, axis: Any = None, dtype: Any = None, keepdims: Any = _NONE,
    initial: Any = _NONE, where: Any = True,
) -> Any:  # fmt: skip
    x = strong(trace, a)
    x = x.astype(result_dtype(np.prod, x, dtype=dtype).numpy, copy=False)
    if x.type.dtype is bool_:
        return _all(trace, x, axis, keepdims, where)
    return _reduced(trace, ops.reduce_prod, xp.multiply, x, axis, keepdims, initial, where, 1)


@TABLE.row(np.max, np.amax)
def _max(
    trace: Recording, a: Any, axis: Any = None, keepdims: Any = _NONE, initial: Any = _NONE,
    where: Any = True,
) -> Any:  # fmt: skip
    x = strong(trace, a)
    return _reduced(trace, ops.reduce_max, xp.maximum, x, axis, keepdims, initial, where)


@TABLE.row(np.min, np.amin)
def _min(
    trace: Recording, a: Any, axis: Any = None, keepdims: Any = _NONE, initial: Any = _NONE,
    where: Any = True,
) -> Any:  # fmt: skip
    x = strong(trace, a)
    return _reduced(trace, ops.reduce_min, xp.minimum, x, axis, keepdims, initial, where)


@TABLE.row(np.all)
def _all(
    trace: Recording, a: Any, axis: Any = None, keepdims: Any = _NONE, where: Any = True
) -> Any:
    x = truth(strong(trace, a))
    return _reduced(trace, ops.reduce_all, None, x, axis, keepdims, _NONE, where, True)


@TABLE.row(np.any)
def _any(
    trace: Recording, a: Any, axis: Any = None, keepdims: Any = _NONE, where: Any = True
) -> Any:
    x = truth(strong(trace, a))
    return _reduced(trace, ops.reduce_any, None, x, axis, keepdims, _NONE, where, False)


def truth(x: Tracer) -> Tracer:
    """Tell where elements are not 0."""
    return x if x.type.dtype is bool_ else xp.not_equal(x, 0)


def terms(x: Tracer, axis: Any) -> Any:
    """Count the elements that are combined into one."""
    count: Any = 1
    for at in axes_of(axis, x.ndim):
        count = count * x.shape[at]
    return count


@TABLE.row(np.mean)
def _mean(
    trace: Recording, a: Any, axis: Any = None, dtype: Any = None, keepdims: Any = _NONE,
    where: Any = True,
) -> Any:  # fmt: skip
    x = strong(trace, a)
    of = result_dtype(np.mean, x, dtype=dtype)
    if where is not True and is_given(where):
        counted = xp.broadcast_to(where, x.shape)
        total = xp.sum(x, axis, of.numpy, keepdims=keepdims, where=where)
        return total / xp.sum(counted, axis, keepdims=keepdims).astype(of.numpy)
    x = x.astype(of.numpy, copy=False)
    if of.is_complex:
        return xp.sum(x, axis, keepdims=keepdims) / terms(x, axis)
    return _reduced(trace, ops.reduce_mean, None, x, axis, keepdims, neutral=0)


@TABLE.row(np.var)
def _var(
    trace: Recording, a: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0,
    keepdims: Any = _NONE, where: Any = True, mean: Any = _NONE, correction: Any = _NONE,
) -> Any:  # fmt: skip
    x = strong(trace, a)
    correction = correction if is_given(correction) else ddof
    of = result_dtype(np.mean, x, dtype=dtype)
    x = x.astype(of.numpy, copy=False)
    plain = not is_given(mean) and (where is True or not is_given(where)) and not of.is_complex
    if plain and int(correction) == correction:
        keep = is_given(keepdims) and bool(keepdims)
        axes = axes_of(axis, x.ndim)
        return trace.op(ops.variance, x, axes=axes, keepdims=keep, correction=int(correction))
    center = mean if is_given(mean) else xp.mean(x, axis, keepdims=True, where=where)
    away = xp.abs(x - center) if of.is_complex else x - center
    total = xp.sum(away * away, axis, keepdims=keepdims, where=where)
    counted = xp.sum(xp.broadcast_to(where, x.shape), axis, keepdims=keepdims)
    return total / (counted - correction).astype(total.dtype)


@TABLE.row(np.std)
def _std(trace: Recording, a: Any, *args: Any, **options: Any) -> Any:
    return xp.sqrt(_var(trace, a, *args, **options))


def _position(trace: Recording, op: Any, a: Any, axis: Any, keepdims: Any) -> Any:
    x = strong(trace, a)
    keep = is_given(keepdims) and bool(keepdims)
    if axis is None:
        found = trace.op(op, x.ravel(), axis=0, keepdims=False)
        return found.reshape((1,) * x.ndim) if keep else found
    return trace.op(op, x, axis=axis_of(axis, x.ndim), keepdims=keep)


@TABLE.row(np.argmax)
def _argmax(trace: Recording, a: Any, axis: Any = None, *, keepdims: Any = _NONE) -> Any:
    return _position(trace, ops.argmax, a, axis, keepdims)


@TABLE.row(np.argmin)
def _argmin(trace: Recording, a: Any, axis: Any = None, *, keepdims: Any = _NONE) -> Any:
    return _position(trace, ops.argmin, a, axis, keepdims)


def cumulated(trace: Recording, op: Any, x: Tracer, axis: Any) -> Any:
    """Combine along an axis, keeping what was found so far; all elements in a row without one."""
    if axis is None:
        x, axis = x.ravel(), 0
    return trace.op(op, x, axis=axis_of(axis, x.ndim))


@TABLE.row(np.cumsum)
def _cumsum(trace: Recording, a: Any, axis: Any = None, dtype: Any = None) -> Any:
    x = strong(trace, a)
    x = x.astype(result_dtype(np.cumsum, x, dtype=dtype).numpy, copy=False)
    return cumulated(trace, ops.cumsum, x, axis)


@TABLE.row(np.cumprod)
def _cumprod(trace: Recording, a: Any, axis: Any = None, dtype: Any = None) -> Any:
    x = strong(trace, a)
    x = x.astype(result_dtype(np.cumprod, x, dtype=dtype).numpy, copy=False)
    return cumulated(trace, ops.cumprod, x, axis)


@TABLE.row(np.count_nonzero)
def _count_nonzero(trace: Recording, a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return xp.sum(truth(strong(trace, a)), axis, np.int64, keepdims=keepdims)


@TABLE.row(np.average)
def _average(
    trace: Recording, a: Any, axis: Any = None, weights: Any = None, returned: bool = False,
    *, keepdims: Any = _NONE,
) -> Any:  # fmt: skip
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


@TABLE.row(np.median)
def _median(
    trace: Recording, a: Any, axis: Any = None, overwrite_input: bool = False,
    keepdims: Any = False,
) -> Any:  # fmt: skip
    x = strong(trace, a)
    of = result_dtype(np.median, x).numpy
    found = _quantile(trace, x.astype(of, copy=False), 0.5, axis, keepdims=keepdims)
    return found.astype(of, copy=False)


@TABLE.row(np.percentile)
def _percentile(trace: Recording, a: Any, q: Any, axis: Any = None, *args: Any, **more: Any) -> Any:
    return _quantile(trace, a, xp.true_divide(q, 100), axis, *args, **more)


@TABLE.row(np.quantile)
def _quantile(
    trace: Recording, a: Any, q: Any, axis: Any = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: Any = False,
) -> Any:  # fmt: skip
    x = strong(trace, a)
    chosen = q.known if hasattr(q, "known") else np.asarray(q)
    if chosen is None:
        raise refusal("Quantiles must be known while tracing: np.quantile(x, 0.9).")
    of = result_dtype(np.quantile, x, float(chosen) if not chosen.ndim else chosen)
    x = x.astype(of.numpy, copy=False)
    axes = axes_of(axis, x.ndim)
    rest = [at for at in range(x.ndim) if at not in axes]
    flat = x.transpose([*rest, *axes]).reshape([*(x.shape[at] for at in rest), -1])
    count = flat.shape[-1]
    if not isinstance(count, int):
        raise refusal("Quantiles over an axis need its size while tracing. Give the dim a number.")
    ranked = xp.sort(flat, -1)
    place = chosen * (count - 1)
    low = {"higher": np.ceil(place), "nearest": np.round(place)}.get(method, np.floor(place))
    high = {"lower": low, "higher": low, "nearest": low}.get(method, np.ceil(place))
    part = np.asarray(0.5 * (high > low) if method == "midpoint" else place - low, of.numpy)
    below, above = (xp.take(ranked, np.asarray(p, np.int64), -1) for p in (low, high))
    found = xp.where(part < 0.5, below + (above - below) * part,
                     above - (above - below) * (1 - part))  # fmt: skip
    last = ranked[(..., -1, *[None] * chosen.ndim)]
    found = xp.where(xp.isnan(last), last, found)
    found = xp.moveaxis(found, [*range(len(rest), found.ndim)], [*range(chosen.ndim)])
    if keepdims is True:
        kept = [1 if at in axes else dim for at, dim in enumerate(x.shape)]
        return found.reshape([*chosen.shape, *kept])
    return found if found.ndim else found[()]


def _replaced(trace: Recording, a: Any, value: float) -> tuple[Tracer, Any]:
    """Put a number in place of NaN; also tell where there was one."""
    x = strong(trace, a)
    if not x.type.dtype.is_inexact:
        return x, None
    return xp.where(xp.isnan(x), np.array(value, x.dtype), x), xp.isnan(x)


@TABLE.row(np.nansum)
def _nansum(trace: Recording, a: Any, *args: Any, **options: Any) -> Any:
    return xp.sum(_replaced(trace, a, 0)[0], *args, **options)


@TABLE.row(np.nanprod)
def _nanprod(trace: Recording, a: Any, *args: Any, **options: Any) -> Any:
    return xp.prod(_replaced(trace, a, 1)[0], *args, **options)


def _nan_extreme(trace: Recording, reduce: Any, a: Any, limit: float, axis: Any, more: Any) -> Any:
    x, missing = _replaced(trace, a, limit)
    found = reduce(x, axis, **more)
    if missing is None:
        return found
    keep = {key: value for key, value in more.items() if key == "keepdims"}
    return xp.where(xp.all(missing, axis, **keep), np.array(np.nan, x.dtype), found)


@TABLE.row(np.nanmax)
def _nanmax(trace: Recording, a: Any, axis: Any = None, **more: Any) -> Any:
    return _nan_extreme(trace, xp.max, a, -np.inf, axis, more)


@TABLE.row(np.nanmin)
def _nanmin(trace: Recording, a: Any, axis: Any = None, **more: Any) -> Any:
    return _nan_extreme(trace, xp.min, a, np.inf, axis, more)


@TABLE.row(np.nanargmax)
def _nanargmax(trace: Recording, a: Any, axis: Any = None, **more: Any) -> Any:
    return xp.argmax(_replaced(trace, a, -np.inf)[0], axis, **more)


@TABLE.row(np.nanargmin)
def _nanargmin(trace: Recording, a: Any, axis: Any = None, **more: Any) -> Any:
    return xp.argmin(_replaced(trace, a, np.inf)[0], axis, **more)


@TABLE.row(np.nanmean)
def _nanmean(trace: Recording, a: Any, *args: Any, **options: Any) -> Any:
    x = strong(trace, a)
    return xp.mean(x, *args, **options, **_present(x))


@TABLE.row(np.nanvar)
def _nanvar(trace: Recording, a: Any, *args: Any, **options: Any) -> Any:
    x = strong(trace, a)
    return xp.var(x, *args, **options, **_present(x))


@TABLE.row(np.nanstd)
def _nanstd(trace: Recording, a: Any, *args: Any, **options: Any) -> Any:
    return xp.sqrt(_nanvar(trace, a, *args, **options))


def _present(x: Tracer) -> dict[str, Any]:
    return {"where": ~xp.isnan(x)} if x.type.dtype.is_inexact else {}


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
    if not x.type.dtype.is_inexact:
        if decimals >= 0:
            return x
        scale = np.array(10**-decimals, x.dtype)
        return (xp.rint(x / scale) * scale).astype(dtype(x.dtype).numpy)
    if decimals == 0:
        return xp.rint(x)
    scale = 10.0 ** abs(decimals)
    return xp.rint(x * scale) / scale if decimals > 0 else xp.rint(x / scale) * scale
