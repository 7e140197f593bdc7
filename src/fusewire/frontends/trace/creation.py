"""NumPy's functions that create arrays, and those that use only types and shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import dtype as dtype_of
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.sizes import Size, dim_of
from fusewire.frontends.trace.table import Table, axis_of, strong, xp
from fusewire.frontends.trace.views import counted, widened
from fusewire.ir.dims import ceildiv
from fusewire.ops.inference import broadcast_shapes
from fusewire.ops.operand import Traced

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

TABLE = Table()


@TABLE.row(np.array, takes_known=True)
def _array(
    trace: Recording,
    object_: Any,
    dtype: Any = None,
    *,
    copy: bool | None = True,
    ndmin: int = 0,
    **more: Any,
) -> Any:
    x = _asarray(trace, object_, dtype)
    if copy and x is object_:
        x = xp.copy(x)
    return x.reshape((1,) * (ndmin - x.ndim) + x.shape) if x.ndim < ndmin else x


@TABLE.row(
    np.asarray,
    np.asanyarray,
    np.asarray_chkfinite,
    np.require,
    takes_known=True,
)
def _asarray(trace: Recording, a: Any, dtype: Any = None, *args: Any, **more: Any) -> Any:
    x = strong(trace, a)
    if x.is_scalar:
        x = trace.wrap(x.value, is_scalar=False)
    if more.get("copy"):
        x = xp.copy(x)
    return x if dtype is None else xp.astype(x, np.dtype(dtype), copy=False)


@TABLE.row(np.ascontiguousarray, takes_known=True)
def _ascontiguousarray(trace: Recording, a: Any, dtype: Any = None, **more: Any) -> Any:
    x = _asarray(trace, a, dtype)
    layout = x.lens.layout
    x = x if layout is None or layout.flags.c_contiguous else x.copy()
    return x if x.ndim else x.reshape(1)


@TABLE.row(np.asfortranarray, takes_known=True)
def _asfortranarray(trace: Recording, a: Any, dtype: Any = None, **more: Any) -> Any:
    x = _asarray(trace, a, dtype)
    layout = x.lens.layout
    return x if layout is None or layout.flags.f_contiguous else x.copy("F")


def filled(trace: Recording, shape: Any, value: Any, dtype: Any) -> Tracer:
    """Make an array of one repeated element: known, unless its shape or the element is not."""
    dims = trace.shape(shape)
    x = trace.array(value)
    of = dtype_of(x.dtype if dtype is None else dtype)
    if x.known is not None and all(isinstance(dim, int) for dim in dims):
        return trace.known(xp.full(dims, x.known, of.numpy))
    return trace.wrap(widened(trace.value(x, of), dims, trace.measure), is_scalar=False)


@TABLE.row(np.zeros, np.empty)
def _zeros(trace: Recording, shape: Any, dtype: Any = float, *args: Any, **more: Any) -> Any:
    return filled(trace, shape, 0, dtype or float)


@TABLE.row(np.ones)
def _ones(trace: Recording, shape: Any, dtype: Any = None, *args: Any, **more: Any) -> Any:
    return filled(trace, shape, 1, dtype or float)


@TABLE.row(np.full)
def _full(
    trace: Recording, shape: Any, fill_value: Any, dtype: Any = None, *args: Any, **more: Any
) -> Any:
    return filled(trace, shape, fill_value, dtype)


def _like(trace: Recording, a: Any, value: Any, dtype: Any, shape: Any) -> Any:
    x = strong(trace, a)
    made = filled(trace, x.shape if shape is None else shape, value, dtype or x.dtype)
    return made if shape is not None else trace.like(made, x)


@TABLE.row(np.zeros_like, np.empty_like, takes_known=True)
def _zeros_like(
    trace: Recording,
    a: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    return _like(trace, a, 0, dtype, shape)


@TABLE.row(np.ones_like, takes_known=True)
def _ones_like(
    trace: Recording,
    a: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    return _like(trace, a, 1, dtype, shape)


@TABLE.row(np.full_like, takes_known=True)
def _full_like(
    trace: Recording,
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    return _like(trace, a, fill_value, dtype, shape)


@TABLE.row(np.arange)
def _arange(
    trace: Recording, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, **more: Any
) -> Any:
    start, stop = (0, start) if stop is None else (start, stop)
    low, high, each = (dim_of(x) for x in (start, stop, step))
    if low is None or high is None or each is None:
        raise refusal(
            "np.arange needs ends that are known while tracing, or sizes taken from shapes: its "
            "length would be known only when the program runs."
        )
    places = trace.wrap(counted(ceildiv(high - low, each), trace.measure))
    return (places * step + start).astype(dtype or np.int64)


@TABLE.row(np.linspace)
def _linspace(
    trace: Recording,
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    low, high = strong(trace, start) * 1.0, strong(trace, stop) * 1.0
    numpy = trace.rebinder(np)
    count = numpy.maximum(num - 1, 1) if endpoint else num
    step = (high - low) / count
    places = numpy.arange(num).reshape((-1,) + (1,) * xp.ndim(step))
    found = places * step + low
    if endpoint:
        found = xp.where(
            (places == num - 1) & (num > 1 if isinstance(num, int) else True), high, found
        )
    found = xp.moveaxis(found, 0, axis)
    found = found if dtype is None else found.astype(dtype)
    return (found, step) if retstep else found


def _diagonals(trace: Recording, N: Any, M: Any) -> Any:
    """Return the diagonal of each place of a matrix."""
    down, across = (
        trace.wrap(counted(trace.dim(n), trace.measure)) for n in (N, N if M is None else M)
    )
    return across - down[:, None]


@TABLE.row(np.eye)
def _eye(
    trace: Recording, N: Any, M: Any = None, k: int = 0, dtype: Any = float, **more: Any
) -> Any:
    return (_diagonals(trace, N, M) == k).astype(dtype)


@TABLE.row(np.tri)
def _tri(
    trace: Recording, N: Any, M: Any = None, k: int = 0, dtype: Any = float, **more: Any
) -> Any:
    return (_diagonals(trace, N, M) <= k).astype(dtype)


@TABLE.row(np.shape, takes_known=True)
def _shape(trace: Recording, a: Any) -> Any:
    return trace.array(a).shape


@TABLE.row(np.ndim, takes_known=True)
def _ndim(trace: Recording, a: Any) -> int:
    return trace.array(a).ndim


@TABLE.row(np.size, takes_known=True)
def _size(trace: Recording, a: Any, axis: Any = None) -> Any:
    x = trace.array(a)
    return x.size if axis is None else x.shape[axis_of(axis, x.ndim)]


@TABLE.row(np.isscalar, takes_known=True)
def _isscalar(trace: Recording, element: Any) -> bool:
    return element.is_scalar if hasattr(element, "is_scalar") else np.isscalar(element)


@TABLE.row(np.broadcast_shapes)
def _broadcast_shapes(trace: Recording, *args: Any) -> tuple[Any, ...]:
    shapes = [trace.shape(shape) for shape in args]
    return tuple(trace.size(dim) for dim in trace.checked(broadcast_shapes, *shapes))


def _by_types(function: Any) -> Any:
    """Answer from the dtypes of arrays, by NumPy's own function."""

    def handler(trace: Recording, *args: Any, **options: Any) -> Any:
        return function(*map(_kind, args), **options)

    return handler


def _kind(x: Any) -> Any:
    if isinstance(x, Size):
        return 0
    is_array = isinstance(x, Traced)
    return x if not is_array else x.weak(0) if x.weak else x.dtype


for _function in (np.result_type, np.can_cast, np.promote_types, np.min_scalar_type):
    TABLE.row(_function, takes_known=True)(_by_types(_function))
