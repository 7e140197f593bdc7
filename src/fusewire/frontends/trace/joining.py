"""NumPy's functions that join, repeat, shift and pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fusewire import ops
from fusewire.dtypes import dtype
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.movement import shaped
from fusewire.frontends.trace.table import Table, axes_of, axis_of, promoted, strong, xp
from fusewire.ir.dims import Dim

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

TABLE = Table()


@TABLE.row(np.concatenate)
def concatenate(
    trace: Recording, arrays: Any, /, axis: Any = 0, *, dtype: Any = None, casting: str = ""
) -> Any:
    """Join along an axis; without one, join the flattened arrays."""
    xs = [strong(trace, x) for x in arrays]
    if axis is None:
        xs, axis = [x.ravel() for x in xs], 0
    return joined(trace, ops.concat, xs, axis, dtype)


@TABLE.row(np.stack)
def _stack(
    trace: Recording, arrays: Any, axis: int = 0, *, dtype: Any = None, casting: str = ""
) -> Any:
    return joined(trace, ops.stack, [strong(trace, x) for x in arrays], axis, dtype)


def joined(trace: Recording, op: Any, xs: Sequence[Tracer], axis: int, of: Any) -> Any:
    """Cast arrays to one dtype and join them."""
    common = promoted(xs) if of is None else dtype(of)
    return trace.op(op, *(trace.value(x, common) for x in xs), axis=axis)


@TABLE.row(np.tile)
def _tile(trace: Recording, A: Any, reps: Any) -> Any:
    x, counts = strong(trace, A), trace.shape(reps)
    rank = max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    return trace.op(ops.tile, shaped(x, (1,) * (rank - x.ndim) + x.type.shape), repeats=counts)


@TABLE.row(np.repeat)
def _repeat(trace: Recording, a: Any, repeats: Any, axis: Any = None) -> Any:
    x = strong(trace, a)
    if axis is None:
        x, axis = x.ravel(), 0
    counts = trace.array(repeats)
    if counts.size == 1:
        count = trace.dim(repeats if counts.ndim == 0 else counts[0])
        return trace.op(ops.repeat, x, count=count, axis=axis_of(axis, x.ndim))
    dim = x.type.shape[axis]
    if counts.known is None or not isinstance(dim, int):
        raise refusal("np.repeat needs counts that are known while tracing, or a single count.")
    return xp.take(x, np.repeat(np.arange(dim), counts.known), axis)


@TABLE.row(np.roll)
def _roll(trace: Recording, a: Any, shift: Any, axis: Any = None) -> Any:
    x = strong(trace, a)
    if axis is None:
        return xp.roll(x.ravel(), shift, 0).reshape(x.shape)
    axes = axes_of(axis, x.ndim)
    shifts = trace.array(shift)
    if shifts.known is not None:
        given = np.broadcast_to(shifts.known, (len(axes),)).tolist()
        if len(set(axes)) == len(axes):
            return trace.op(ops.roll, x, shifts=tuple(given), axes=axes)
        for one, each in zip(given, axes, strict=True):
            x = xp.roll(x, one, each)
        return x
    for i, each in enumerate(axes):
        dim = x.shape[each]
        places = trace.rebinder(np).arange(dim) - (shifts[i] if shifts.ndim else shifts)
        x = xp.take(x, places % dim, each)
    return x


@TABLE.row(np.pad)
def _pad(trace: Recording, array: Any, pad_width: Any, mode: Any = "constant", **more: Any) -> Any:
    x = strong(trace, array)
    names = {"constant", "edge", "reflect", "symmetric", "wrap"}
    if mode not in names or more.get("reflect_type", "even") != "even":
        raise refusal(f"np.pad with mode {mode!r} cannot be traced. Use one of {sorted(names)}.")
    padding = _pairs(trace, pad_width, x.ndim)
    if mode != "constant":
        return trace.op(ops.pad, x, None, padding=padding, mode=mode)
    fill = trace.array(more.get("constant_values", 0))
    if fill.size == 1:
        return trace.op(ops.pad, x, _scalar(trace, fill, x), padding=padding)
    fills = xp.broadcast_to(fill, (x.ndim, 2))
    for axis, ends in enumerate(padding):
        for side, width in enumerate(ends):
            alone: list[tuple[Dim, Dim]] = [(0, 0)] * x.ndim
            alone[axis] = (width, 0) if side == 0 else (0, width)
            value = _scalar(trace, fills[axis, side], x)
            x = trace.op(ops.pad, x, value, padding=tuple(alone))
    return x


def _scalar(trace: Recording, fill: Any, x: Tracer) -> Any:
    return trace.value(trace.array(fill).reshape(()), x.type.dtype)


def _pairs(trace: Recording, width: Any, rank: int) -> tuple[tuple[Dim, Dim], ...]:
    """Normalize a padding width to (low, high) for each axis."""
    if isinstance(width, dict):
        full: list[Any] = [(0, 0)] * rank
        for axis, item in width.items():
            full[axis] = item if isinstance(item, Sequence) else (item, item)
        width = full
    if isinstance(width, Sequence) and any(isinstance(item, Sequence) for item in width):
        rows = [trace.shape(item) for item in width]
    elif isinstance(width, Sequence):
        rows = [trace.shape(width)]
    else:
        known = trace.array(width).known
        rows = [tuple(row) for row in np.atleast_2d(known).tolist()] if known is not None else []
        rows = rows or [(trace.dim(width),)]
    rows = [row if len(row) == 2 else row * 2 for row in rows]
    pairs: Any = rows * rank if len(rows) == 1 else rows
    return tuple(pairs)


@TABLE.row(np.diag)
def _diag(trace: Recording, v: Any, k: int = 0) -> Any:
    x = strong(trace, v)
    if x.ndim == 2:
        return xp.diagonal(x, k).copy()
    size = x.shape[0] + abs(k)
    here = trace.rebinder(np).eye(size, k=k, dtype=bool)
    rows = xp.pad(x, (0, abs(k)) if k >= 0 else (abs(k), 0))
    return xp.where(here, rows[:, None], np.zeros((), x.dtype))


@TABLE.row(np.tril)
def _tril(trace: Recording, m: Any, k: int = 0) -> Any:
    return trace.op(ops.tril, strong(trace, m), offset=k)


@TABLE.row(np.triu)
def _triu(trace: Recording, m: Any, k: int = 0) -> Any:
    return trace.op(ops.triu, strong(trace, m), offset=k)


@TABLE.row(sliding_window_view)
def _windows(trace: Recording, x: Any, window_shape: Any, axis: Any = None, **more: Any) -> Any:
    array = strong(trace, x)
    widths, axes = trace.shape(window_shape), axes_of(axis, array.ndim)
    numpy, found = trace.rebinder(np), array
    for width, at in zip(widths, axes, strict=True):
        size = found.type.shape[at]
        if isinstance(size, int) and isinstance(width, int) and width > size:
            raise ValueError("window shape cannot be larger than input array shape")
        count = found.shape[at] - trace.size(width) + 1
        places = numpy.arange(count)[:, None] + numpy.arange(trace.size(width))
        # The axis of the windows goes last, in the order given.
        found = xp.moveaxis(xp.take(found, places, at), at + 1, -1)
    return found


@TABLE.row(np.array_repr, np.array_str, np.array2string)
def _text(trace: Recording, a: Any, *args: Any, **options: Any) -> str:
    return repr(trace.array(a))
