"""NumPy's functions that sort, search and count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.table import (
    Table,
    axes_of,
    axis_of,
    flag,
    promoted,
    result_dtype,
    strong,
    xp,
)
from fusewire.ir.dims import unbacked

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording

TABLE = Table()


def _sorted(trace: Recording, op: Any, a: Any, axis: Any) -> Any:
    x = strong(trace, a)
    if axis is None:
        x, axis = x.ravel(), 0
    return trace.op(op, x, axis=axis_of(axis, x.ndim))


@TABLE.row(np.sort)
def _sort(trace: Recording, a: Any, axis: Any = -1, *args: Any, **more: Any) -> Any:
    return _sorted(trace, ops.sort, a, axis)


@TABLE.row(np.argsort)
def _argsort(trace: Recording, a: Any, axis: Any = -1, *args: Any, **more: Any) -> Any:
    return _sorted(trace, ops.argsort, a, axis)


@TABLE.row(np.partition)
def _partition(trace: Recording, a: Any, kth: Any, axis: Any = -1, *args: Any, **more: Any) -> Any:
    return _sorted(trace, ops.sort, a, axis)


@TABLE.row(np.argpartition)
def _argpartition(
    trace: Recording, a: Any, kth: Any, axis: Any = -1, *args: Any, **more: Any
) -> Any:
    return _sorted(trace, ops.argsort, a, axis)


@TABLE.row(np.lexsort)
def _lexsort(trace: Recording, keys: Any, axis: int = -1) -> Any:
    rows = [strong(trace, key) for key in keys]
    found = xp.argsort(rows[0], axis)
    for row in rows[1:]:
        ranked = xp.argsort(xp.take_along_axis(row, found, axis), axis)
        found = xp.take_along_axis(found, ranked, axis)
    return found


@TABLE.row(np.searchsorted)
def _searchsorted(trace: Recording, a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    row, x = strong(trace, a), trace.array(v)
    if sorter is not None:
        row = xp.take(row, sorter)
    of = promoted([row, x])
    values = (trace.value(y, of) for y in (row, x))
    return trace.op(ops.searchsorted, *values, right=side == "right")


@TABLE.row(np.unique)
def _unique(
    trace: Recording,
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,  # noqa: A002
) -> Any:
    x = strong(trace, ar)
    flat = x.ravel() if axis is None else x
    found = trace.op(ops.unique, flat, axis=None if axis is None else axis_of(axis, x.ndim))
    values, first, inverse, counts = found
    inverse = inverse.reshape(x.shape) if axis is None else inverse
    wanted = (
        (True, values),
        (return_index, first),
        (return_inverse, inverse),
        (return_counts, counts),
    )
    kept = tuple(array for asked, array in wanted if asked)
    return kept if len(kept) > 1 else values


@TABLE.row(np.bincount)
def _bincount(trace: Recording, x: Any, /, weights: Any = None, minlength: Any = 0) -> Any:
    places = strong(trace, x).astype(np.int64)
    length = xp.maximum(xp.max(places, initial=-1) + 1, minlength).reshape(1)
    of = np.int64 if weights is None else np.float64
    none = trace.op(ops.dynamic_full, np.zeros((), of), length, dims=(unbacked(),))
    xp.add.at(none, places, np.ones((), of) if weights is None else weights)
    return none


@TABLE.row(np.histogram)
def _histogram(
    trace: Recording,
    a: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002
    density: Any = None,
    weights: Any = None,
) -> Any:
    x = strong(trace, a).ravel()
    if isinstance(bins, str):
        raise refusal("np.histogram needs a number of bins, or their edges.")
    edges = trace.array(bins)
    if edges.ndim == 0:
        low, high = (xp.min(x), xp.max(x)) if range is None else range
        flat = xp.equal(low, high)
        ends = xp.where(flat, low - 0.5, low), xp.where(flat, high + 0.5, high)
        of = np.result_type(x.dtype, np.float64 if x.dtype.kind in "biu" else x.dtype)
        edges = trace.array(trace.rebinder(np).linspace(*ends, trace.dim(bins) + 1, dtype=of))
    last = edges.shape[0] - 1
    place = xp.searchsorted(edges, x, side="right") - 1
    place = xp.where(x == edges[last], last - 1, place)
    inside = (x >= edges[0]) & (x <= edges[last])
    of = np.dtype(np.int64) if weights is None else strong(trace, weights).dtype
    total = trace.rebinder(np).zeros(last, of)
    share = inside.astype(of) if weights is None else xp.where(inside, weights, np.zeros((), of))
    xp.add.at(total, xp.clip(place, 0, last - 1), share.ravel())
    if density:
        total = total / xp.diff(edges) / xp.sum(total)
    return total, edges


@TABLE.row(np.median)
def _median(
    trace: Recording, a: Any, axis: Any = None, overwrite_input: bool = False, keepdims: Any = False
) -> Any:
    x = strong(trace, a)
    of = result_dtype(np.median, x).numpy
    if any(x.type.shape[at] == 0 for at in axes_of(axis, x.ndim)):
        # NumPy takes the mean of nothing, which is NaN.
        return xp.mean(x, axis, of, keepdims=flag(keepdims))
    found = xp.quantile(x.astype(of, copy=False), 0.5, axis, keepdims=flag(keepdims))
    return found.astype(of, copy=False)


@TABLE.row(np.percentile)
def _percentile(trace: Recording, a: Any, q: Any, *args: Any, **more: Any) -> Any:
    return xp.quantile(strong(trace, a), xp.true_divide(q, 100), *args, **more)


@TABLE.row(np.quantile)
def _quantile(
    trace: Recording,
    a: Any,
    q: Any,
    axis: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: Any = False,
) -> Any:
    x, part = strong(trace, a), trace.array(q).known
    if part is None:
        raise refusal("Quantiles must be known while tracing: np.quantile(x, 0.9).")
    of = result_dtype(np.quantile, x, float(part) if not part.ndim else part).numpy
    axes = axes_of(axis, x.ndim)
    rest = [at for at in range(x.ndim) if at not in axes]
    flat = x.astype(of, copy=False).transpose([*rest, *axes])
    sizes = [x.shape[at] for at in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise refusal("Quantiles over an axis need its size while tracing. Give the dim a number.")
    ranked = xp.sort(flat.reshape([*(x.shape[at] for at in rest), math.prod(sizes)]), -1)
    found = _between(ranked, part * (ranked.shape[-1] - 1), method, of)
    last = ranked[(..., -1, *[None] * part.ndim)]
    found = xp.where(xp.isnan(last), last, found)
    found = xp.moveaxis(found, [*range(len(rest), found.ndim)], [*range(part.ndim)])
    if flag(keepdims):
        kept = [1 if at in axes else dim for at, dim in enumerate(x.shape)]
        return found.reshape([*part.shape, *kept])
    return found


def _between(ranked: Any, place: Any, method: str, of: Any) -> Any:
    """Interpolate between elements by one of NumPy's methods."""
    low = {"higher": np.ceil(place), "nearest": np.round(place)}.get(method, np.floor(place))
    high = {"lower": low, "higher": low, "nearest": low}.get(method, np.ceil(place))
    share = np.asarray(0.5 * (high > low) if method == "midpoint" else place - low, of)
    below, above = (xp.take(ranked, np.asarray(at, np.int64), -1) for at in (low, high))
    # From the nearer end, as NumPy does, so that both ends are exact.
    near = below + (above - below) * share
    return xp.where(share < 0.5, near, above - (above - below) * (1 - share))
