"""Linear algebra and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import elementwise, linalg

ROWS = Rows()


@ROWS.add("linalg_det", "det", ops="det")
def _det(call: AtenCall, x: Value) -> Value:
    return linalg.det(x)


@ROWS.add("linalg_inv", "inverse", ops="inverse")
def _inv(call: AtenCall, x: Value) -> Value:
    return linalg.inverse(x)


@ROWS.add("linalg_cholesky", ops="cholesky")
def _cholesky(call: AtenCall, x: Value, upper: bool = False) -> Value:
    if upper:
        raise call.refusal("only the lower triangle is known. Use upper=False and transpose.")
    return linalg.cholesky(x)


@ROWS.add("trace", ops="trace")
def _trace(call: AtenCall, x: Value) -> Value:
    return linalg.trace(call.value(x))


def _factor(call: AtenCall, normalization: int, sizes: Sequence[Any]) -> Value | None:
    """Give what PyTorch divides by: nothing, the root of the count, or the count."""
    if normalization == 0:
        return None
    count = call.value(1)
    for dim in sizes:
        count = elementwise.multiply(count, call.value(dim))
    return elementwise.sqrt(count) if normalization == 1 else count


@ROWS.add("_fft_r2c", ops="rfft, fft")
def _fft_r2c(
    call: AtenCall, x: Value, dims: Sequence[int], normalization: int, onesided: bool
) -> Value:
    from fusewire.ops import fourier

    rank = x.tensor.rank
    *others, last = (dim % rank for dim in dims)
    if not onesided:
        raise call.refusal("it returns both halves of the spectrum. Use rfft, or complex numbers.")
    y = fourier.rfft(x, axis=last)
    for axis in others:
        y = fourier.fft(y, axis=axis)
    factor = _factor(call, normalization, [x.tensor.shape[dim] for dim in (*others, last)])
    return y if factor is None else elementwise.divide(y, factor)


@ROWS.add("_fft_c2c", ops="fft, ifft")
def _fft_c2c(
    call: AtenCall, x: Value, dims: Sequence[int], normalization: int, forward: bool
) -> Value:
    from fusewire.ops import fourier

    axes = [dim % x.tensor.rank for dim in dims]
    op = fourier.fft if forward else fourier.ifft
    y = x
    for axis in axes:
        y = op(y, axis=axis)
    sizes = [x.tensor.shape[axis] for axis in axes]
    if forward:
        factor = _factor(call, normalization, sizes)
        return y if factor is None else elementwise.divide(y, factor)
    # Ours divides by the count already.
    return _undivided(call, y, normalization, sizes)


def _undivided(call: AtenCall, y: Value, normalization: int, sizes: Sequence[Any]) -> Value:
    if normalization == 2:
        return y
    factor = _factor(call, 2 if normalization == 0 else 1, sizes)
    return y if factor is None else elementwise.multiply(y, factor)


@ROWS.add("_fft_c2r", ops="irfft, ifft")
def _fft_c2r(
    call: AtenCall, x: Value, dims: Sequence[int], normalization: int, length: Any
) -> Value:
    from fusewire.ops import fourier

    rank = x.tensor.rank
    *others, last = (dim % rank for dim in dims)
    y = x
    for axis in others:
        y = fourier.ifft(y, axis=axis)
    y = fourier.irfft(y, axis=last, length=length)
    return _undivided(call, y, normalization, [x.tensor.shape[a] for a in others] + [length])
