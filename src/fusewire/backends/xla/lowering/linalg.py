"""Linear algebra on the last two axes, and Fourier transforms.

Signs that decompositions leave free are fixed as the reference fixes them, and a matrix without
an answer gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.lowering.signature import Lower, plain, with_attrs
from fusewire.backends.xla.storage import Traced


def _batched(a: Traced, b: Traced) -> tuple[Traced, Traced]:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = (jnp.broadcast_to(x, batch + x.shape[-2:]) for x in (a, b))
    return left, right


def _where_regular(pivots: Traced, found: Traced) -> Traced:
    """Give NaN for matrices with a pivot of 0."""
    singular = jnp.any(pivots == 0, -1)
    return jnp.where(singular[..., None, None], np.nan, found)


def _diagonal(x: Traced) -> Traced:
    return jnp.diagonal(x, 0, -2, -1)


def _solve(a: Traced, b: Traced) -> Traced:
    a, b = _batched(a, b)
    if b.size == 0:
        return jnp.zeros_like(b)
    factors, _, order = lax.linalg.lu(a)
    moved = jnp.take_along_axis(b, order[..., None], -2)
    solve = lax.linalg.triangular_solve
    inner = solve(factors, moved, left_side=True, lower=True, unit_diagonal=True)
    return _where_regular(_diagonal(factors), solve(factors, inner, left_side=True, lower=False))


def _inverse(a: Traced) -> Traced:
    return _solve(a, jnp.eye(a.shape[-1], dtype=a.dtype))


def _triangular_solve(a: Traced, b: Traced, lower: bool) -> Traced:
    a, b = _batched(a, b)
    if b.size == 0:
        return jnp.zeros_like(b)
    found = lax.linalg.triangular_solve(a, b, left_side=True, lower=lower)
    return _where_regular(_diagonal(a), found)


def _det(a: Traced) -> Traced:
    if a.shape[-1] == 0 or a.size == 0:
        return jnp.ones(a.shape[:-2], a.dtype)
    factors, swaps, _ = lax.linalg.lu(a)
    odd = jnp.sum(swaps != jnp.arange(a.shape[-1]), -1) % 2
    return jnp.prod(_diagonal(factors), -1) * jnp.where(odd == 1, -1, 1).astype(a.dtype)


def _cholesky(a: Traced) -> Traced:
    if a.size == 0:
        return a
    found = lax.linalg.cholesky(a, symmetrize_input=False)
    # Its triangle alone is NaN for a matrix that is not positive definite, and it is 0 above.
    return jnp.where(jnp.isnan(found).any((-2, -1), keepdims=True), np.nan, found)


def _phase(x: Traced) -> Traced:
    """Give what turns each number to the positive real axis; 1 for 0."""
    size = jnp.abs(x)
    return jnp.where(size == 0, 1, jnp.conj(x) / jnp.where(size == 0, 1, size)).astype(x.dtype)


def _largest(x: Traced) -> Traced:
    """Take the largest element of each column."""
    return jnp.take_along_axis(x, jnp.abs(x).argmax(-2, keepdims=True), -2)


def _of_finite(function: Callable[[Traced], tuple[Traced, ...]]) -> Callable[[Traced], Any]:
    """Factor matrices of finite numbers, and give NaN for the others.

    For a NaN LAPACK finds factors that are numbers, and for an infinity its SVD never ends.
    """

    def factored(x: Traced) -> tuple[Traced, ...]:
        is_finite = jnp.isfinite(x).all((-2, -1), keepdims=True)
        return tuple(
            jnp.where(is_finite if y.ndim == x.ndim else is_finite[..., 0], y, np.nan)
            for y in function(jnp.where(is_finite, x, 0))
        )

    return factored


@_of_finite
def _qr(x: Traced) -> tuple[Traced, Traced]:
    *batch, rows, columns = x.shape
    if x.size == 0:
        inner = min(rows, columns)
        return jnp.zeros((*batch, rows, inner), x.dtype), jnp.zeros(
            (*batch, inner, columns), x.dtype
        )
    q, r = jnp.linalg.qr(x)
    turn = _phase(_diagonal(r))
    return q * jnp.conj(turn)[..., None, :], r * turn[..., :, None]


@_of_finite
def _svd(x: Traced) -> tuple[Traced, Traced, Traced]:
    if x.size == 0:
        left, right = _qr(x)
        return left, jnp.zeros((*x.shape[:-2], left.shape[-1]), jnp.abs(x).dtype), right
    u, s, vh = jnp.linalg.svd(x, full_matrices=False)
    turn = _phase(_largest(u))
    return u * turn, s, vh * jnp.conj(jnp.swapaxes(turn, -1, -2))


@_of_finite
def _eigh(x: Traced) -> tuple[Traced, Traced]:
    if x.size == 0:
        return jnp.zeros(x.shape[:-1], jnp.abs(x).dtype), x
    vectors, values = lax.linalg.eigh(x, lower=True, symmetrize_input=False)
    return values, vectors * _phase(_largest(vectors))


def _transform(function: Callable[..., Any]) -> Lower:
    return with_attrs(lambda x, length, axis: function(x, length, axis))


TABLE: dict[str, Lower] = {
    "det": plain(_det),
    "inverse": plain(_inverse),
    "solve": plain(_solve),
    "triangular_solve": with_attrs(_triangular_solve),
    "cholesky": plain(_cholesky),
    "qr": plain(_qr),
    "svd": plain(_svd),
    "eigh": plain(_eigh),
    "fft": _transform(jnp.fft.fft),
    "ifft": _transform(jnp.fft.ifft),
    "rfft": _transform(jnp.fft.rfft),
    "irfft": _transform(jnp.fft.irfft),
}
