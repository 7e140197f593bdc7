"""NumPy's functions that return views, or copy an array as it is."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import dtype
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.table import Table, axes_of, axis_of, strong, xp
from fusewire.frontends.trace.views import ComplexPart, ReadOnly, Reshape, Transpose, widened
from fusewire.ir.dims import Shape
from fusewire.ops.inference import broadcast_shapes
from fusewire.ops.movement import resolve_shape

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

TABLE = Table()


def shaped(x: Tracer, shape: Shape) -> Tracer:
    """Reshape an array: a view if NumPy could make one, else a copy."""
    if x.is_scalar:
        x = x.recording.wrap(x.value, is_scalar=False)
    layout = x.lens.layout
    if layout is None:
        is_view = all(isinstance(step, Reshape) for step in x.lens.steps)
    else:
        try:
            xp.reshape(layout, shape, copy=False)
            is_view = True
        except ValueError:
            is_view = False
    return (x if is_view else x.snapshot()).see(Reshape(shape))


def _read_order(x: Tracer, order: str) -> str:
    """Return the order, C or F, in which elements are read: K and A depend on the layout."""
    layout = x.lens.layout
    if order in ("C", "F"):
        return order
    if layout is None and all(isinstance(step, Reshape) for step in x.lens.steps):
        return "C"
    if layout is not None and (layout.flags.c_contiguous or layout.flags.f_contiguous):
        return "C" if layout.flags.c_contiguous else "F"
    if layout is not None and order == "A":
        return "C"
    raise refusal(f"Reading in order {order!r} needs an array that is contiguous in memory.")


@TABLE.row(np.reshape, takes_known=True)
def _reshape(
    trace: Recording, a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None
) -> Any:
    x = strong(trace, a)
    dims = trace.shape(shape)
    if _read_order(x, order) == "F":
        return xp.transpose(xp.reshape(xp.transpose(x), dims[::-1]))
    return shaped(x.snapshot() if copy else x, trace.checked(resolve_shape, dims, x.type.size))


@TABLE.row(np.ravel, takes_known=True)
def _ravel(trace: Recording, a: Any, order: str = "C") -> Any:
    x = strong(trace, a)
    order = _read_order(x, order)
    # Unlike reshape, it copies whatever is not contiguous in the order of reading.
    layout = x.lens.layout
    apart = layout is not None and order != "F" and not layout.flags.c_contiguous
    return _reshape(trace, x, -1, order, copy=apart)


@TABLE.row(np.transpose, takes_known=True)
def _transpose(trace: Recording, a: Any, axes: Any = None) -> Any:
    x = strong(trace, a)
    perm = axes_of(None if axes is None else tuple(axes), x.ndim)
    return transposed(x, perm[::-1] if axes is None else perm)


def transposed(x: Tracer, perm: Sequence[int]) -> Tracer:
    """Reorder axes, as a view."""
    if sorted(perm) != list(range(x.ndim)):
        raise ValueError(f"axes {tuple(perm)} don't match an array of {x.ndim} axes")
    return x.see(Transpose(tuple(x.type.shape[axis] for axis in perm), tuple(perm)))


@TABLE.row(np.swapaxes, takes_known=True)
def _swapaxes(trace: Recording, a: Any, axis1: int, axis2: int) -> Any:
    x = strong(trace, a)
    first, second = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    perm = list(range(x.ndim))
    perm[first], perm[second] = second, first
    return transposed(x, perm)


@TABLE.row(np.matrix_transpose, np.linalg.matrix_transpose, takes_known=True)
def _matrix_transpose(trace: Recording, x: Any, /) -> Any:
    return _swapaxes(trace, x, -1, -2)


@TABLE.row(np.moveaxis, takes_known=True)
def _moveaxis(trace: Recording, a: Any, source: Any, destination: Any) -> Any:
    x = strong(trace, a)
    moved, places = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    perm = [axis for axis in range(x.ndim) if axis not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        perm.insert(place, axis)
    return transposed(x, perm)


@TABLE.row(np.squeeze, takes_known=True)
def _squeeze(trace: Recording, a: Any, axis: Any = None) -> Any:
    x = strong(trace, a)
    shape = x.type.shape
    gone = axes_of(axis, x.ndim) if axis is not None else [i for i, d in enumerate(shape) if d == 1]
    if any(isinstance(shape[i], int) and shape[i] != 1 for i in gone):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return shaped(x, tuple(dim for i, dim in enumerate(shape) if i not in gone))


@TABLE.row(np.broadcast_to, takes_known=True)
def _broadcast_to(trace: Recording, array: Any, shape: Any, subok: bool = False) -> Any:
    return spread(strong(trace, array), trace.shape(shape))


def spread(x: Tracer, shape: Shape) -> Tracer:
    """Broadcast, as a read-only view."""
    x.recording.checked(ops.broadcast_to.infer, [x.type], {"shape": shape})
    static: Any = shape
    return x.see(
        ReadOnly(
            shape,
            "broadcast",
            lambda array: np.broadcast_to(array, static),
            lambda value: widened(value, shape, x.recording.measure),
        )
    )


@TABLE.row(np.broadcast_arrays, takes_known=True)
def _broadcast_arrays(trace: Recording, *args: Any, subok: bool = False) -> Any:
    arrays = [strong(trace, x) for x in args]
    shape = trace.checked(broadcast_shapes, *(x.type.shape for x in arrays))
    return tuple(spread(x, shape) for x in arrays)


@TABLE.row(np.diagonal, np.linalg.diagonal, takes_known=True)
def _diagonal(trace: Recording, a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
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
def _real(trace: Recording, val: Any) -> Any:
    x = strong(trace, val)
    return x.see(ComplexPart(x.type.shape, "real")) if x.type.dtype.is_complex else x


@TABLE.row(np.imag, takes_known=True)
def _imag(trace: Recording, val: Any) -> Any:
    x = strong(trace, val)
    return x.see(ComplexPart(x.type.shape, "imag")) if x.type.dtype.is_complex else xp.zeros_like(x)


@TABLE.row(np.array_split, takes_known=True)
def _array_split(trace: Recording, ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    x, given = strong(trace, ary), indices_or_sections
    axis = axis_of(axis, x.ndim)
    size: Any = x.shape[axis]
    if isinstance(given, Sequence) or xp.ndim(given):
        ends = list(given)
    else:
        count = operator.index(given)
        # If the division is not even, the first parts are longer by one.
        sizes = ((size + count - 1 - i) // count for i in range(count - 1))
        ends = list(itertools.accumulate(sizes))
    before = (slice(None),) * axis
    cuts = itertools.pairwise([None, *ends, None])
    return [x[(*before, slice(low, high))] for low, high in cuts]


@TABLE.row(np.split, takes_known=True)
def _split(trace: Recording, ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    x = strong(trace, ary)
    dim = x.type.shape[axis_of(axis, x.ndim)]
    if isinstance(indices_or_sections, int) and isinstance(dim, int) and dim % indices_or_sections:
        raise ValueError("array split does not result in an equal division")
    return _array_split(trace, x, indices_or_sections, axis)


@TABLE.row(np.copy, takes_known=True)
def _copy(trace: Recording, a: Any, order: Any = "K", subok: bool = False) -> Any:
    x = strong(trace, a)
    known = x.known
    if known is not None:
        return trace.known(known.copy(order))
    made = trace.wrap(x.value, is_scalar=False)
    if order == "F":
        backwards = range(x.ndim)[::-1]
        return transposed(_copy(trace, transposed(x, backwards), "C"), backwards)
    return made if order == "C" else trace.like(made, x)


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
    made = trace.wrap(trace.value(array, of), is_scalar=array.is_scalar)
    return trace.like(made, array)


@TABLE.row(np.ndarray.view, takes_known=True)
def _view(trace: Recording, x: Any, of: Any = None) -> Any:
    array = strong(trace, x)
    if of is None or dtype(of) is array.type.dtype:
        return array.see(Reshape(array.type.shape))
    if array.known is not None:
        return trace.known(array.known.view(dtype(of).numpy))
    return trace.op(ops.bitcast, array, dtype=dtype(of))
