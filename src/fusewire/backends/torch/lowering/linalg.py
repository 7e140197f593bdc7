"""Linear algebra on the last two axes, and Fourier transforms.

Signs that decompositions leave free are fixed as the reference fixes them, and a matrix without
an answer gives NaN.
"""

from __future__ import annotations

from typing import Any

import torch

from fusewire.backends.torch.lowering.signature import (
    Function,
    Lower,
    Sized,
    operand,
    output,
    plain,
    sized,
)
from fusewire.backends.torch.storage import CARRIERS, Tensor
from fusewire.ir.graph import Node


def _where_regular(singular: Tensor, found: Tensor) -> Tensor:
    """Give NaN for matrices that are singular."""
    return torch.where(singular[..., None, None], torch.nan, found)


def _batched(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def _solve(a: Tensor, b: Tensor) -> Tensor:
    a, b = _batched(a, b)
    if not b.numel():
        return torch.zeros_like(b)
    found, info = torch.linalg.solve_ex(a, b)
    return _where_regular(info > 0, found)


def _inverse(a: Tensor) -> Tensor:
    if not a.numel():
        return a.clone()
    found, info = torch.linalg.inv_ex(a)
    return _where_regular(info > 0, found)


def _triangular_solve(node: Node) -> Function:
    upper = not node.attrs["lower"]

    def function(a: Tensor, b: Tensor) -> Tensor:
        a, b = _batched(a, b)
        if not b.numel():
            return torch.zeros_like(b)
        found = torch.linalg.solve_triangular(a, b, upper=upper)
        return _where_regular((torch.diagonal(a, 0, -2, -1) == 0).any(-1), found)

    return function


def _cholesky(a: Tensor) -> Tensor:
    if not a.numel():
        return a.clone()
    found, info = torch.linalg.cholesky_ex(a)
    return _where_regular(info > 0, found)


def _phase(x: Tensor) -> Tensor:
    """Give what turns each number to the positive real axis; 1 for 0."""
    size = x.abs()
    return torch.where(size == 0, 1, torch.conj_physical(x) / torch.where(size == 0, 1, size))


def _largest(x: Tensor) -> Tensor:
    """Take the largest element of each column."""
    return torch.take_along_dim(x, x.abs().argmax(-2, keepdim=True), -2)


def _of_finite(function: Function) -> Function:
    """Factor matrices of finite numbers, and give NaN for the others.

    For a NaN LAPACK stops the whole batch, or finds factors that are numbers.
    """

    def factored(x: Tensor) -> tuple[Tensor, ...]:
        is_finite = torch.isfinite(x).all(-1).all(-1)
        matrices = is_finite[..., None, None]
        return tuple(
            torch.where(matrices if y.dim() == x.dim() else is_finite[..., None], y, torch.nan)
            for y in function(torch.where(matrices, x, 0))
        )

    return factored


@_of_finite
def _qr(x: Tensor) -> tuple[Tensor, Tensor]:
    q, r = torch.linalg.qr(x)
    if not x.numel():
        return q, r
    turn = _phase(torch.diagonal(r, 0, -2, -1))
    return q * torch.conj_physical(turn)[..., None, :], r * turn[..., :, None]


@_of_finite
def _svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    if not x.numel():
        return u, s, vh
    turn = _phase(_largest(u))
    return u * turn, s, vh * torch.conj_physical(turn.transpose(-1, -2))


@_of_finite
def _eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(x, UPLO="L")
    return (values, vectors * _phase(_largest(vectors))) if x.numel() else (values, vectors)


def _transform(function: Function) -> Lower:
    def lower(node: Node) -> Function | Sized:
        axis: Any = node.attrs["axis"]
        length: Any = node.attrs["length"]
        of = CARRIERS[output(node).dtype]

        def transformed(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
            # MKL refuses to transform nothing.
            if 0 in sizes:
                return x.new_zeros(sizes[1:], dtype=of)
            return function(x, sizes[0], axis)

        # Without a length, the inverse of a real transform has an even one.
        whole: Any = output(node).shape[axis]
        taken = operand(node).shape[axis] if node.op == "rfft" else whole
        return sized((taken if length is None else length, *output(node).shape), transformed)

    return lower


TABLE: dict[str, Lower] = {
    "det": plain(torch.linalg.det),
    "inverse": plain(_inverse),
    "solve": plain(_solve),
    "triangular_solve": _triangular_solve,
    "cholesky": plain(_cholesky),
    "qr": plain(_qr),
    "svd": plain(_svd),
    "eigh": plain(_eigh),
    "fft": _transform(torch.fft.fft),
    "ifft": _transform(torch.fft.ifft),
    "rfft": _transform(torch.fft.rfft),
    "irfft": _transform(torch.fft.irfft),
}
