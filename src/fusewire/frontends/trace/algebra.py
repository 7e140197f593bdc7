"""NumPy's functions for products, linear algebra and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import bool_
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.table import (
    Table,
    axes_of,
    axis_of,
    promoted,
    result_dtype,
    strong,
    xp,
)

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

TABLE = Table()


def _contracted(trace: Recording, op: Any, xs: Sequence[Tracer], **attrs: Any) -> Any:
    """Sum products in NumPy's dtype; for bools, whether any product holds."""
    of = promoted(xs)
    if of is bool_:
        counts = (x.astype(np.int32) for x in xs)
        return xp.not_equal(trace.op(op, *counts, **attrs), 0)
    return trace.op(op, *(trace.value(x, of) for x in xs), **attrs)


@TABLE.row(np.dot)
def _dot(trace: Recording, a: Any, b: Any) -> Any:
    x, y = strong(trace, a), strong(trace, b)
    if x.ndim == 0 or y.ndim == 0:
        return x * y
    if x.ndim <= 2 and y.ndim <= 2:
        return x @ y
    return xp.tensordot(x, y, ((-1,), (max(y.ndim - 2, 0),)))


@TABLE.row(np.vdot)
def _vdot(trace: Recording, a: Any, b: Any, /) -> Any:
    return xp.conj(strong(trace, a).ravel()) @ strong(trace, b).ravel()


@TABLE.row(np.inner)
def _inner(trace: Recording, a: Any, b: Any, /) -> Any:
    x, y = strong(trace, a), strong(trace, b)
    return x * y if x.ndim == 0 or y.ndim == 0 else xp.tensordot(x, y, ((-1,), (-1,)))


@TABLE.row(np.tensordot, np.linalg.tensordot)
def _tensordot(trace: Recording, a: Any, b: Any, axes: Any = 2) -> Any:
    x, y = strong(trace, a), strong(trace, b)
    if isinstance(axes, int):
        left, right = range(x.ndim - axes, x.ndim), range(axes)
    else:
        left, right = axes
    pairs = axes_of(_listed(left), x.ndim), axes_of(_listed(right), y.ndim)
    return _contracted(trace, ops.dot_general, (x, y), contract=pairs)


def _listed(axes: Any) -> Any:
    return tuple(axes) if isinstance(axes, range | Sequence) else axes


@TABLE.row(np.einsum)
def _einsum(
    trace: Recording, *operands: Any, optimize: Any = False, dtype: Any = None, **more: Any
) -> Any:
    equation, *arrays = operands
    if not isinstance(equation, str):
        raise refusal("np.einsum needs its equation first, as text: np.einsum('ij,jk->ik', a, b).")
    xs = [strong(trace, x) for x in arrays]
    xs = xs if dtype is None else [x.astype(dtype) for x in xs]
    return _contracted(trace, ops.einsum, xs, equation=equation.replace(" ", ""))


@TABLE.row(np.kron)
def _kron(trace: Recording, a: Any, b: Any) -> Any:
    x, y = strong(trace, a), strong(trace, b)
    rank = max(x.ndim, y.ndim)
    x, y = (v.reshape((1,) * (rank - v.ndim) + v.shape) for v in (x, y))
    wide = [(slice(None), None) * rank, (None, slice(None)) * rank]
    shape = [m * n for m, n in zip(x.shape, y.shape, strict=True)]
    return (x[tuple(wide[0])] * y[tuple(wide[1])]).reshape(shape)


@TABLE.row(np.cross, np.linalg.cross)
def _cross(
    trace: Recording,
    a: Any,
    b: Any,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: Any = None,
) -> Any:
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    x = xp.moveaxis(strong(trace, a), axisa, -1)
    y = xp.moveaxis(strong(trace, b), axisb, -1)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise refusal("np.cross can be traced for vectors of size 3.")
    found = xp.stack(
        [x[..., i] * y[..., j] - x[..., j] * y[..., i] for i, j in ((1, 2), (2, 0), (0, 1))], -1
    )
    return xp.moveaxis(found, -1, axisc)


@TABLE.row(np.trace, np.linalg.trace)
def _trace(
    trace: Recording, a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None
) -> Any:
    return xp.sum(xp.diagonal(strong(trace, a), offset, axis1, axis2), -1, dtype)


@TABLE.row(np.correlate)
def _correlate(trace: Recording, a: Any, v: Any, mode: str = "valid") -> Any:
    x, y = strong(trace, a), xp.conj(strong(trace, v))
    for which, array in (("first", x), ("second", y)):
        if array.type.shape == (0,):
            raise ValueError(f"{which} array argument cannot be empty")
    if x.shape[0] < y.shape[0]:
        # Swapping the operands gives the same sums in the opposite order.
        return xp.conj(_correlate(trace, y, xp.conj(x), mode))[::-1]
    width = y.shape[0]
    low = {"valid": 0, "same": width // 2, "full": width - 1}[mode]
    high = {"valid": 0, "same": width - 1 - width // 2, "full": width - 1}[mode]
    windows = np.lib.stride_tricks.sliding_window_view
    return windows(xp.pad(x, (low, high)), width) @ y


@TABLE.row(np.convolve)
def _convolve(trace: Recording, a: Any, v: Any, mode: str = "full") -> Any:
    x, y = strong(trace, a), strong(trace, v)
    for name, array in (("a", x), ("v", y)):
        if array.type.shape == (0,):
            raise ValueError(f"{name} cannot be empty")
    x, y = (y, x) if y.shape[0] > x.shape[0] else (x, y)
    return xp.correlate(x, xp.conj(y[::-1]), mode)


def _inexact(trace: Recording, a: Any) -> Any:
    """Convert an array as NumPy's linear algebra does: integers become float64."""
    x = strong(trace, a)
    return x if x.type.dtype.is_inexact else x.astype(np.float64)


@TABLE.row(np.linalg.inv)
def _inv(trace: Recording, a: Any) -> Any:
    return trace.op(ops.inverse, _inexact(trace, a))


@TABLE.row(np.linalg.det)
def _det(trace: Recording, a: Any) -> Any:
    return trace.op(ops.det, _inexact(trace, a))


@TABLE.row(np.linalg.slogdet)
def _slogdet(trace: Recording, a: Any) -> Any:
    # The product of the diagonal of r can overflow where its logarithm does not.
    q, r = trace.op(ops.qr, _inexact(trace, a))
    sizes = xp.diagonal(r, 0, -2, -1)
    sign = xp.linalg.det(q) * xp.prod(xp.sign(sizes), -1)
    kind = type(np.linalg.slogdet(np.eye(1)))
    return kind(xp.rint(sign), xp.sum(xp.log(xp.abs(sizes)), -1))


@TABLE.row(np.linalg.solve)
def _solve(trace: Recording, a: Any, b: Any) -> Any:
    x, y = _inexact(trace, a), _inexact(trace, b)
    of = promoted([x, y]).numpy
    x, y = x.astype(of, copy=False), y.astype(of, copy=False)
    if y.ndim == 1:
        return trace.op(ops.solve, x, y[:, None])[..., 0]
    return trace.op(ops.solve, x, y)


@TABLE.row(np.linalg.cholesky)
def _cholesky(trace: Recording, a: Any, /, *, upper: bool = False) -> Any:
    x = _inexact(trace, a)
    if upper:
        return xp.conj(xp.swapaxes(trace.op(ops.cholesky, xp.conj(xp.swapaxes(x, -1, -2))), -1, -2))
    return trace.op(ops.cholesky, x)


@TABLE.row(np.linalg.qr)
def _qr(trace: Recording, a: Any, mode: str = "reduced") -> Any:
    x = _inexact(trace, a)
    if mode == "r":
        return trace.op(ops.qr, x)[1]
    if mode != "reduced" and not (mode == "complete" and x.shape[-1] >= x.shape[-2]):
        raise refusal(f"np.linalg.qr with mode {mode!r} cannot be traced. Use 'reduced' or 'r'.")
    return type(np.linalg.qr(np.eye(1)))(*trace.op(ops.qr, x))


@TABLE.row(np.linalg.svd)
def _svd(
    trace: Recording,
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
) -> Any:
    x = _inexact(trace, a)
    if not compute_uv:
        return trace.op(ops.svd, x)[1]
    if full_matrices and x.shape[-1] != x.shape[-2]:
        raise refusal(
            "When traced, np.linalg.svd returns full matrices for square matrices only. "
            "Use np.linalg.svd(x, full_matrices=False)."
        )
    return type(np.linalg.svd(np.eye(1)))(*trace.op(ops.svd, x))


@TABLE.row(np.linalg.svdvals)
def _svdvals(trace: Recording, x: Any, /) -> Any:
    return trace.op(ops.svd, _inexact(trace, x))[1]


@TABLE.row(np.linalg.eigh)
def _eigh(trace: Recording, a: Any, UPLO: str = "L") -> Any:
    return type(np.linalg.eigh(np.eye(1)))(*trace.op(ops.eigh, _triangle(trace, a, UPLO)))


@TABLE.row(np.linalg.eigvalsh)
def _eigvalsh(trace: Recording, a: Any, UPLO: str = "L") -> Any:
    return trace.op(ops.eigh, _triangle(trace, a, UPLO))[0]


def _triangle(trace: Recording, a: Any, which: str) -> Any:
    """The op reads the lower triangle."""
    x = _inexact(trace, a)
    return x if which.upper() == "L" else xp.conj(xp.swapaxes(x, -1, -2))


def _transform(function: Any, op: Any, takes_real: bool, is_inverse: bool) -> None:
    @TABLE.row(function)
    def handler(trace: Recording, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
        x = strong(trace, a)
        wide = result_dtype(np.fft.rfft, xp.real(x)).numpy
        if takes_real:
            x = x.astype({"complex64": np.float32}.get(wide.name, np.float64), copy=False)
        else:
            x = x.astype(wide, copy=False)
        axis = axis_of(axis, x.ndim)
        length = None if n is None else trace.dim(n)
        found = trace.op(op, x, length=length, axis=axis)
        if norm in (None, "backward"):
            return found
        # The length of the transform, which for a real one is not that of its result.
        count = (found if is_inverse else x).shape[axis] if n is None else n
        if norm == "forward":
            return found * count if is_inverse else found / count
        return found * count**0.5 if is_inverse else found / count**0.5


_transform(np.fft.fft, ops.fft, False, False)
_transform(np.fft.ifft, ops.ifft, False, True)
_transform(np.fft.rfft, ops.rfft, True, False)
_transform(np.fft.irfft, ops.irfft, False, True)
