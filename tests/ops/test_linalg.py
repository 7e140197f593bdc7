"""Linear algebra by what its answers must satisfy."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from fusewire import ops
from fusewire.errors import TypeRuleError
from fusewire.ir.graph import Array

RNG = np.random.default_rng(8)


def drawn(*shape: int, dtype: str = "float64") -> Array:
    found = RNG.normal(size=shape)
    return (found + 1j * RNG.normal(size=shape) if dtype == "complex128" else found).astype(dtype)


def adjoint(x: Array) -> Array:
    return np.conj(np.swapaxes(x, -1, -2))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (2, 0, 3)], ids=str)
def test_qr_has_no_negative_diagonal(shape: tuple[int, ...], dtype: str) -> None:
    x = drawn(*shape, dtype=dtype)
    q, r = ops.qr(x)
    np.testing.assert_allclose(q @ r, x, atol=1e-12)
    np.testing.assert_allclose(adjoint(q) @ q - np.eye(q.shape[-1]), 0, atol=1e-12)
    diagonal = np.diagonal(r, 0, -2, -1)
    assert np.all(diagonal.real >= 0)
    np.testing.assert_allclose(diagonal.imag, 0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (2, 0, 3)], ids=str)
def test_svd_has_fixed_signs(shape: tuple[int, ...], dtype: str) -> None:
    x = drawn(*shape, dtype=dtype)
    u, s, vh = ops.svd(x)
    np.testing.assert_allclose(u * s[..., None, :] @ vh, x, atol=1e-12)
    assert np.all(np.diff(s) <= 0)
    if u.size:
        largest = np.take_along_axis(u, np.abs(u).argmax(-2, keepdims=True), -2)
        np.testing.assert_allclose(largest, np.abs(largest))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_eigh_and_cholesky_rebuild_the_matrix(dtype: str) -> None:
    x = drawn(2, 4, 4, dtype=dtype)
    x = x @ adjoint(x) + np.eye(4)
    w, v = ops.eigh(x)
    np.testing.assert_allclose(v * w[..., None, :] @ adjoint(v), x)
    low = ops.cholesky(x)
    np.testing.assert_allclose(low @ adjoint(low), x)
    assert np.array_equal(low, np.tril(low))


@pytest.mark.parametrize("lower", [False, True])
def test_triangular_solve_reads_one_triangle(lower: bool) -> None:
    a, b = drawn(4, 4) + 4 * np.eye(4), drawn(4, 2)
    exact = scipy.linalg.solve_triangular(a, b, lower=lower)
    np.testing.assert_allclose(ops.triangular_solve(a, b, lower=lower), exact)


def test_one_matrix_without_an_answer_does_not_stop_its_batch() -> None:
    x = np.stack([2.0 * np.eye(2), np.zeros((2, 2)), np.eye(2)])
    inverted = ops.inverse(x)
    assert np.isnan(inverted[1]).all()
    assert inverted[0].tolist() == [[0.5, 0.0], [0.0, 0.5]]
    solved = ops.solve(x, np.ones((2, 1)))
    assert solved[:, 0, 0].tolist()[::2] == [0.5, 1.0]
    assert np.isnan(solved[1]).all()
    assert np.isnan(ops.cholesky(-x)).all()
    assert ops.det(x).tolist() == [4.0, 0.0, 1.0]


def test_trace_and_outer() -> None:
    x = drawn(2, 3, 4)
    np.testing.assert_allclose(ops.trace(x, offset=1), np.trace(x, 1, 1, 2))
    np.testing.assert_array_equal(ops.outer(x[0, 0], x[0, 1]), np.outer(x[0, 0], x[0, 1]))


def test_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="square matrix must be equal, found 2 and 3"):
        ops.inverse(np.ones((2, 3)))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("op", [ops.qr, ops.svd, ops.eigh])
def test_matrix_that_is_not_finite_has_factors_of_nan(op: Any, number: float) -> None:
    x = np.stack([np.diag(np.arange(1.0, 5.0))] * 2)
    x[0, 0, 0] = number
    for factor in op(x):
        assert np.isnan(factor[0]).all()
        assert np.isfinite(factor[1]).all()
