"""Functions of NumPy that move elements: most of them give views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fusewire import ops
from fusewire.dtypes import dtype
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.table import Table, axes_of, axis_of, is_given, promoted, strong, xp
from fusewire.frontends.trace.views import Part, ReadOnly, Reshape, Transpose
from fusewire.ir.dims import Dim, Shape
from fusewire.ops.inference import broadcast_shapes
from fusewire.ops.movement import resolve_shape

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

TABLE = Table()


def shaped(x: Tracer, shape: Shape) -> Tracer:
    """Give an array another shape: a view where NumPy could make one, else a copy."""
    if x.is_scalar:
        x = x.recording.wrap(x.value, is_scalar=False)
    layout = x.layout
    if layout is None:
        is_view = all(isinstance(step, Reshape) for step in x.steps)
    else:
        try:
            np.reshape(layout, shape, copy=False)  # type: ignore[arg-type]  # static here
            is_view = True
        except ValueError:
            is_view = False
    return (x if is_view else x.snapshot()).see(Reshape(shape))


@TABLE.row(np.reshape, takes_known=True)
def _reshape(
    trace: Recording, a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None
) -> Tracer:
    x = strong(trace, a)
    dims = trace.shape(shape)
    if order == "F":
        return xp.transpose(xp.reshape(xp.transpose(x), dims[::-1]))
    return shaped(x.snapshot() if copy else x, trace.checked(resolve_shape, dims, x.type.size))


@TABLE.row(np.ravel, takes_known=True)
def _ravel(trace: Recording, a: Any, order: str = "C") -> Tracer:
    x = strong(trace, a)
    # Unlike reshape, it copies whatever does not lie in memory as it is read.
    apart = x.layout is not None and order != "F" and not x.layout.flags.c_contiguous
    return _reshape(trace, x, -1, order, copy=apart)


@TABLE.row(np.transpose, takes_known=True)
def _transpose(trace: Recording, a: Any, axes: Any = None) -> Tracer:
    x = strong(trace, a)
    perm = axes_of(None if axes is None else tuple(axes), x.ndim)
    return transposed(x, perm[::-1] if axes is None else perm)


def transposed(x: Tracer, perm: Sequence[int]) -> Tracer:
    """Reorder axes, as a view."""
    if sorted(perm) != list(range(x.ndim)):
        raise ValueError(f"axes {tuple(perm)} don't match an array of {x.ndim} axes")
    return x.see(Transpose(tuple(x.type.shape[axis] for axis in perm), tuple(perm)))


@TABLE.row(np.swapaxes, takes_known=True)
def _swapaxes(trace: Recording, a: Any, axis1: int, axis2: int) -> Tracer:
    x = strong(trace, a)
    first, second = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    perm = list(range(x.ndim))
    perm[first], perm[second] = second, first
    return transposed(x, perm)


@TABLE.row(np.matrix_transpose, np.linalg.matrix_transpose, takes_known=True)
def _matrix_transpose(trace: Recording, x: Any, /) -> Tracer:
    return _swapaxes(trace, x, -1, -2)


@TABLE.row(np.moveaxis, takes_known=True)
def _moveaxis(trace: Recording, a: Any, source: Any, destination: Any) -> Tracer:
    x = strong(trace, a)
    moved, places = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    perm = [axis for axis in range(x.ndim) if axis not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        perm.insert(place, axis)
    return transposed(x, perm)


@TABLE.row(np.squeeze, takes_known=True)
def _squeeze(trace: Recording, a: Any, axis: Any = None) -> Tracer:
    x = strong(trace, a)
    shape = x.type.shape
    gone = axes_of(axis, x.ndim) if axis is not None else [i for i, d in enumerate(shape) if d == 1]
    if any(isinstance(shape[i], int) and shape[i] != 1 for i in gone):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return shaped(x, tuple(dim for i, dim in enumerate(shape) if i not in gone))


@TABLE.row(np.expand_dims, takes_known=True)
def _expand_dims(trace: Recording, a: Any, axis: Any) -> Tracer:
    x = strong(trace, a)
    count = len(axis) if isinstance(axis, tuple | list) else 1
    shape = list(x.type.shape)
    for place in sorted(axes_of(axis, x.ndim + count)):
        shape.insert(place, 1)
    return shaped(x, tuple(shape))


@TABLE.row(np.broadcast_to, takes_known=True)
def _broadcast_to(trace: Recording, array: Any, shape: Any, subok: bool = False) -> Tracer:
    return spread(strong(trace, array), trace.shape(shape))


def spread(x: Tracer, shape: Shape) -> Tracer:
    """Broadcast, as a view that nobody may write."""
    x.recording.checked(ops.broadcast_to.infer, [x.type], {"shape": shape})
    static: Any = shape
    return x.see(
        ReadOnly(
            shape,
            "broadcast",
            lambda array: np.broadcast_to(array, static),
            lambda value: ops.broadcast_to(value, shape=shape),
        )
    )


@TABLE.row(np.broadcast_arrays, takes_known=True)
def _broadcast_arrays(trace: Recording, *args: Any, subok: bool = False) -> tuple[Tracer, ...]:
    arrays = [strong(trace, x) for x in args]
    shape = trace.checked(broadcast_shapes, *(x.type.shape for x in arrays))
    return tuple(spread(x, shape) for x in arrays)


@TABLE.row(np.diagonal, np.linalg.diagonal, takes_known=True)
def _diagonal(trace: Recording, a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tracer:
    x = strong(trace, a)
    where = {"offset": offset, "axis1": axis_of(axis1, x.ndim), "axis2": axis_of(axis2, x.ndim)}
    (type_,) = trace.checked(ops.diagonal.infer, [x.type], where)
    look = {"offset": offset, "axis1": axis1, "axis2": axis2}
    return x.see(
        ReadOnly(
            type_.shape,
            "diagonal",
            lambda array: np.diagonal(array, **look),
            lambda value: ops.diagonal(value, **where),
        )
    )


@TABLE.row(np.real, takes_known=True)
def _real(trace: Recording, val: Any) -> Tracer:
    x = strong(trace, val)
    return x.see(Part(x.type.shape, "real")) if x.type.dtype.is_complex else x


@TABLE.row(np.imag, takes_known=True)
def _imag(trace: Recording, val: Any) -> Any:
    x = strong(trace, val)
    return x.see(Part(x.type.shape, "imag")) if x.type.dtype.is_complex else xp.zeros_like(x)


@TABLE.row(np.array_split, takes_known=True)
def _array_split(
    trace: Recording, ary: Any, indices_or_sections: Any, axis: int = 0
) -> list[Tracer]:
    x = strong(trace, ary)
    axis = axis_of(axis, x.ndim)
    dim = x.type.shape[axis]
    given = indices_or_sections
    if isinstance(given, Sequence | np.ndarray) or (getattr(given, "ndim", 0) > 0):
        cuts = [None, *trace.shape(list(given)), None]
    elif isinstance(dim, int):
        each, extra = divmod(dim, trace.dim(given))
        ends = [each * i + min(i, extra) for i in range(1, trace.dim(given))]
        cuts = [None, *ends, None]
    else:
        count = trace.dim(given)
        cuts = [None, *(trace.size(dim // count) * i for i in range(1, count)), None]
    before = (slice(None),) * axis
    pairs = zip(cuts, cuts[1:], strict=False)
    return [x[(*before, slice(low, high))] for low, high in pairs]


@TABLE.row(np.split, takes_known=True)
def _split(trace: Recording, ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Tracer]:
    x = strong(trace, ary)
    dim = x.type.shape[axis_of(axis, x.ndim)]
    if isinstance(indices_or_sections, int) and isinstance(dim, int) and dim % indices_or_sections:
        raise ValueError("array split does not result in an equal division")
    return _array_split(trace, x, indices_or_sections, axis)


@TABLE.row(np.concatenate)
def concatenate(
    trace: Recording, arrays: Any, /, axis: Any = 0, *, dtype: Any = None, casting: str = ""
) -> Tracer:
    """Join along an axis; all elements in a row without one."""
    xs = [strong(trace, x) for x in arrays]
    if axis is None:
        xs, axis = [x.ravel() for x in xs], 0
    return joined(trace, ops.concat, xs, axis, dtype)


@TABLE.row(np.stack)
def _stack(
    trace: Recording, arrays: Any, axis: int = 0, *, dtype: Any = None, casting: str = ""
) -> Tracer:
    return joined(trace, ops.stack, [strong(trace, x) for x in arrays], axis, dtype)


def joined(trace: Recording, op: Any, xs: Sequence[Tracer], axis: int, of: Any) -> Tracer:
    """Join arrays of one dtype, which they are brought to."""
    common = promoted(xs) if of is None else dtype(of)
    return trace.op(op, *(trace.value(x, common) for x in xs), axis=axis)


@TABLE.row(np.tile)
def _tile(trace: Recording, A: Any, reps: Any) -> Tracer:
    x, counts = strong(trace, A), list(trace.shape(reps))
    rank = max(x.ndim, len(counts))
    counts = [1] * (rank - len(counts)) + counts
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
        raise refusal("np.repeat needs counts that are known while tracing, or one for all.")
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
            alone = [(0, 0)] * x.ndim
            alone[axis] = (width, 0) if side == 0 else (0, width)
            value = _scalar(trace, fills[axis, side], x)
            x = trace.op(ops.pad, x, value, padding=tuple(alone))
    return x


def _scalar(trace: Recording, fill: Any, x: Tracer) -> Any:
    return trace.value(trace.array(fill).reshape(()), x.type.dtype)


def _pairs(trace: Recording, width: Any, rank: int) -> tuple[tuple[Dim, Dim], ...]:
    """Bring a width of padding to (low, high) for each axis."""
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
    return tuple((rows * rank)[:rank] if len(rows) == 1 else rows)  # type: ignore[arg-type]


@TABLE.row(np.diag)
def _diag(trace: Recording, v: Any, k: int = 0) -> Any:
    x = strong(trace, v)
    if x.ndim == 2:
        return xp.diagonal(x, k).copy()
    size = x.shape[0] + abs(k)
    here = trace.rebinder(np).eye(size, k=k, dtype=bool)
    rows = xp.pad(x, (0, abs(k)) if k >= 0 else (abs(k), 0))
    return xp.where(here, rows[:, None], np.zeros((), x.dtype))


@TABLE.row(np.diagflat)
def _diagflat(trace: Recording, v: Any, k: int = 0) -> Any:
    return _diag(trace, strong(trace, v).ravel(), k)


@TABLE.row(np.tril)
def _tril(trace: Recording, m: Any, k: int = 0) -> Tracer:
    return trace.op(ops.tril, strong(trace, m), offset=k)


@TABLE.row(np.triu)
def _triu(trace: Recording, m: Any, k: int = 0) -> Tracer:
    return trace.op(ops.triu, strong(trace, m), offset=k)


@TABLE.row(np.copy, takes_known=True)
def _copy(trace: Recording, a: Any, order: str = "K", subok: bool = False) -> Tracer:
    x = strong(trace, a)
    known = x.known
    return trace.wrap(x.value, is_scalar=False) if known is None else trace.known(known.copy())


@TABLE.row(np.astype, takes_known=True)
def _astype(
    trace: Recording, x: Any, dtype_: Any, /, *, copy: bool = True, device: Any = None
) -> Any:
    array, of = strong(trace, x), dtype(dtype_)
    if array.type.dtype is of:
        return _copy(trace, array) if copy and not array.is_scalar else array
    known = array.known
    if known is not None:
        return trace.lift(known.astype(of.numpy))
    return trace.wrap(trace.value(array, of), is_scalar=array.is_scalar)


@TABLE.row(np.ndarray.view, takes_known=True)
def _view(trace: Recording, x: Any, of: Any = None) -> Any:
    array = strong(trace, x)
    if of is None or dtype(of) is array.type.dtype:
        return array.see(Reshape(array.type.shape))
    if array.known is not None:
        return trace.known(array.known.view(dtype(of).numpy))
    return trace.op(ops.bitcast, array, dtype=dtype(of))


@TABLE.row(sliding_window_view)
def _windows(trace: Recording, x: Any, window_shape: Any, axis: Any = None, **more: Any) -> Any:
    array = strong(trace, x)
    widths, axes = trace.shape(window_shape), axes_of(axis, array.ndim)
    numpy, found = trace.rebinder(np), array
    for width, at in zip(widths, axes, strict=True):
        count = found.shape[at] - trace.size(width) + 1
        places = numpy.arange(count)[:, None] + numpy.arange(trace.size(width))
        # The axis of the windows goes last, in the order given.
        found = xp.moveaxis(xp.take(found, places, at), at + 1, -1)
    return found


@TABLE.row(np.array_repr, np.array_str, np.array2string)
def _text(trace: Recording, a: Any, *args: Any, **options: Any) -> str:
    return repr(trace.array(a)) if is_given(a) else ""
