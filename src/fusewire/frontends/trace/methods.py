"""Methods of ufuncs: reduce, accumulate, outer and at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.frontends.trace import indexing
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.reductions import cumulated
from fusewire.frontends.trace.table import xp

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording

_REDUCES: dict[str, Any] = {
    "add": np.sum,
    "multiply": np.prod,
    "maximum": np.max,
    "minimum": np.min,
    "logical_and": np.all,
    "logical_or": np.any,
}
_ACCUMULATES: dict[str, Any] = {"add": np.cumsum, "multiply": np.cumprod}
_SCATTERS = {"add": "add", "multiply": "multiply", "maximum": "max", "minimum": "min"}


def call(
    recording: Recording, ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Any
) -> Any:
    """Apply a method of a ufunc."""
    table: dict[str, Any] = {
        "reduce": reduce,
        "accumulate": accumulate,
        "outer": outer,
        "at": write_at,
    }
    if method not in table:
        raise refusal(
            f"np.{ufunc.__name__}.{method} cannot be traced. Methods that can: "
            f"{', '.join(table)}. For segment sums use np.add.at or a matrix product."
        )
    out = options.pop("out", None)
    out = out[0] if isinstance(out, tuple) else out
    found = table[method](recording, ufunc, *inputs, **options)
    if out is None:
        return found
    recording.array(out).assign(found)
    return out


def reduce(
    recording: Recording,
    ufunc: np.ufunc,
    x: Any,
    axis: Any = 0,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    **more: Any,
) -> Any:
    """Combine along axes."""
    x = recording.array(x)
    more = {key: value for key, value in more.items() if value is not np._NoValue}
    if dtype is not None and ufunc.__name__ not in ("add", "multiply"):
        x, dtype = x.astype(dtype), None
    function = _REDUCES.get(ufunc.__name__)
    if function is not None:
        more |= {} if dtype is None else {"dtype": dtype}
        return function(x, axis=axis, keepdims=keepdims, **more)
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    total: Any = x
    for at in sorted((a % x.ndim for a in axes), reverse=True):
        rows = list(xp.moveaxis(total, at, 0))
        if not rows:
            raise refusal(f"np.{ufunc.__name__}.reduce over an axis of size 0 cannot be traced.")
        total = rows[0]
        for row in rows[1:]:
            total = ufunc(total, row)
        total = xp.expand_dims(total, at) if keepdims else total
    return total


def accumulate(
    recording: Recording, ufunc: np.ufunc, x: Any, axis: int = 0, dtype: Any = None, **more: Any
) -> Any:
    """Combine along an axis, keeping intermediate results."""
    x = recording.array(x)
    if ufunc.__name__ in _ACCUMULATES:
        return _ACCUMULATES[ufunc.__name__](x, axis=axis, dtype=dtype)
    x = x if dtype is None else x.astype(dtype)
    if ufunc.__name__ in ("maximum", "minimum") and x.known is None:
        return cumulated(recording, getattr(ops, f"cum{ufunc.__name__[:3]}"), x, axis)
    rows = list(xp.moveaxis(x, axis, 0))
    for i in range(1, len(rows)):
        rows[i] = ufunc(rows[i - 1], rows[i])
    return xp.stack(rows, axis)


def outer(recording: Recording, ufunc: np.ufunc, x: Any, y: Any, **options: Any) -> Any:
    """Apply to every pair."""
    x, y = recording.array(x), recording.array(y)
    return ufunc(x[(..., *[None] * y.ndim)], y, **options)


def write_at(recording: Recording, ufunc: np.ufunc, x: Any, key: Any, y: Any = None) -> None:
    """Apply in place at indices, once per occurrence of an index."""
    x = recording.array(x)
    name = ufunc.__name__
    if name == "subtract":
        ufunc, y, name = np.add, xp.negative(recording.array(y)), "add"
    if name not in _SCATTERS:
        raise refusal(
            f"np.{name}.at cannot be traced. Supported: {', '.join([*_SCATTERS, 'subtract'])}."
        )
    part = recording.value(y, x.type.dtype)
    if not indexing.combine(x, key, part, _SCATTERS[name]):
        x[key] = ufunc(x[key], y)
