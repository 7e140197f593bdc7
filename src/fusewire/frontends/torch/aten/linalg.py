"""Linear algebra and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import elementwise, linalg
from fusewire.ops.movement import transpose

ROWS = Rows()


@ROWS.add("linalg_det", "det", ops="det")
def _det(call: AtenCall, x: Value) -> Value:
    return linalg.det(x)


@ROWS.add("_linalg_det", ops="det")
def _det_parts(call: AtenCall, x: Value) -> tuple[Value, None, None]:
    _only(call, 1)
    return linalg.det(x), None, None


def _only(call: AtenCall, count: int) -> None:
    """Refuse the use of results beyond the first ones: factors, pivots, and codes of errors."""
    if any(call.uses(i) for i in range(count, len(call.types))):
        raise call.refusal("its other results are used. Use the first one alone.")


@ROWS.add("linalg_inv", "inverse", ops="inverse")
def _inv(call: AtenCall, x: Value) -> Value:
    return linalg.inverse(x)


@ROWS.add("linalg_inv_ex", ops="inverse")
def _inv_ex(call: AtenCall, x: Value, *rest: Any) -> tuple[Value, None]:
    _only(call, 1)
    return linalg.inverse(x), None


@ROWS.add("linalg_cholesky", ops="cholesky")
def _cholesky(call: AtenCall, x: Value, upper: bool = False) -> Value:
    lower = linalg.cholesky(x)
    if not upper:
        return lower
    rank = x.tensor.rank
    turned = transpose(lower, perm=(*range(rank - 2), rank - 1, rank - 2))
    return elementwise.conj(turned) if x.tensor.dtype.is_complex else turned


@ROWS.add("linalg_cholesky_ex", ops="cholesky")
def _cholesky_ex(call: AtenCall, x: Value, upper: bool = False, *rest: Any) -> tuple[Value, None]:
    _only(call, 1)
    return _cholesky(call, x, upper), None


@ROWS.add("_linalg_solve_ex", ops="solve")
def _solve_ex(
    call: AtenCall, a: Value, b: Value, left: bool = True, *rest: Any
) -> tuple[Value, None, None, None]:
    _only(call, 1)
    if not left or b.tensor.rank != a.tensor.rank:
        raise call.refusal("it solves x @ a = b, or for a vector. Use a @ x = b for matrices.")
    return linalg.solve(a, b), None, None, None


@ROWS.add("linalg_solve_triangular", ops="triangular_solve")
def _solve_triangular(
    call: AtenCall, a: Value, b: Value, upper: bool, left: bool = True, unit: bool = False
) -> Value:
    if not left or unit:
        raise call.refusal("it solves x @ a = b, or takes the diagonal for ones.")
    return linalg.triangular_solve(a, b, lower=not upper)


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
    y = fourier.rfft(x, axis=last) if onesided else fourier.fft(call.value(x), axis=last)
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
