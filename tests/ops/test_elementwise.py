"""Elementwise ops against SciPy and the C library, and the rules where NumPy has none."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.special

from fusewire import ops
from fusewire.dtypes import COMPLEX, FLOATS, dtype
from fusewire.errors import TypeRuleError
from fusewire.ir.graph import Array

RNG = np.random.default_rng(3)


def in_ulps(got: Array, exact: Array) -> float:
    return float(np.max(np.abs(got - exact) / np.spacing(np.abs(exact))))


@pytest.mark.parametrize(
    ("low", "high"), [(-1, 1), (1, 3), (-6, 6), (6, 26), (1e-300, 1e-290)], ids=str
)
@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_error_functions_are_those_of_the_c_library(name: str, low: float, high: float) -> None:
    x = RNG.uniform(low, high, 4000)
    exact = np.vectorize(getattr(math, name))(x)
    assert in_ulps(getattr(ops, name)(x), exact) <= 12


def test_lgamma_is_that_of_scipy() -> None:
    for low, high in [(0.01, 0.9), (1.1, 1.9), (2.1, 10.0), (10.0, 1e4), (-0.9, -0.1)]:
        x = RNG.uniform(low, high, 2000)
        np.testing.assert_allclose(ops.lgamma(x), scipy.special.gammaln(x), 1e-14)


@pytest.mark.parametrize(
    ("root", "slope"), [(1.0, -0.5772156649015329), (2.0, 0.42278433509846714)]
)
def test_lgamma_keeps_its_digits_near_its_roots(root: float, slope: float) -> None:
    step = 2.0**-30
    # The next term of its series is the half of trigamma, pi^2 / 6 at 1 and less 1 at 2.
    curve = (math.pi**2 / 6 - (root - 1)) / 2
    found = ops.lgamma(np.array(root + step))
    assert abs(found / (slope * step + curve * step**2) - 1) < 1e-15


def test_digamma_is_that_of_scipy() -> None:
    x = np.concatenate([RNG.uniform(low, low + 1, 500) for low in (-4, -1, 0, 1.6, 5, 20)])
    np.testing.assert_allclose(ops.digamma(x), scipy.special.digamma(x), 1e-12, 1e-14)


def test_special_functions_at_their_ends() -> None:
    ends = np.array([np.inf, -np.inf, np.nan, 0.0, -1.0])
    assert np.array_equal(ops.erf(ends)[:4], [1, -1, np.nan, 0], equal_nan=True)
    assert np.array_equal(ops.erfc(ends)[:4], [0, 2, np.nan, 1], equal_nan=True)
    inf, nan = np.inf, np.nan
    assert np.array_equal(ops.lgamma(ends), [inf, inf, nan, inf, inf], equal_nan=True)
    assert np.array_equal(ops.digamma(ends), [inf, nan, nan, -inf, nan], equal_nan=True)


def pairs(values: list[int], name: str) -> tuple[Array, Array]:
    x, y = np.meshgrid(np.array(values, name), np.array(values, name))
    return x, y


# What Python's integers of any size say.
DIVISIONS: dict[str, Callable[[int, int], int]] = {
    "floor_divide": lambda a, b: a // b,
    "truncate_divide": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "remainder": lambda a, b: a % b,
    "fmod": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}


@pytest.mark.parametrize("op", DIVISIONS)
@pytest.mark.parametrize("name", ["int8", "int64", "uint8", "uint64"])
def test_integer_division_has_an_answer_everywhere(op: str, name: str) -> None:
    low, high = (int(end) for end in dtype(name).range)
    x, y = pairs([low, 0, 1, 5, 7, high] + ([-1, -5] if low else []), name)
    found = getattr(ops, op)(x, y)
    for a, b, got in zip(x.flat, y.flat, found.flat, strict=True):
        exact = DIVISIONS[op](int(a), int(b)) if b else 0
        assert (exact - int(got)) % (high + 1 - low) == 0, (a, b)


def test_integer_power_rounds_reciprocals_toward_zero() -> None:
    x, y = pairs([-3, -2, -1, 0, 1, 2, 3], "int32")
    exact = [
        int(a) ** int(b) if b >= 0 else 0 if a == 0 else int(float(a) ** int(b))
        for a, b in zip(x.flat, y.flat, strict=True)
    ]
    assert ops.power(x, y).reshape(-1).tolist() == exact


@pytest.mark.parametrize(("name", "oracle"), [("hypot", np.hypot), ("logaddexp", np.logaddexp)])
def test_extremes_neither_overflow_nor_vanish(name: str, oracle: Callable[..., Array]) -> None:
    values = np.array([0.0, 1e-320, 1e-200, 3.0, 1e200, np.inf])
    x, y = np.meshgrid(values, values if name == "hypot" else np.concatenate([values, -values]))
    np.testing.assert_allclose(getattr(ops, name)(x, y), oracle(x, y), 1e-14, 0)


def test_complex_parts_survive() -> None:
    parts = np.array([1.0, np.inf, np.nan], np.float32), np.array([-np.inf, 2.0, 0.0], np.float32)
    made = ops.complex_(*parts)
    assert made.dtype == np.complex64
    assert np.array_equal(ops.real(made), parts[0], equal_nan=True)
    assert np.array_equal(ops.imag(made), parts[1], equal_nan=True)
    assert ops.abs(np.array([3 - 4j])).tolist() == [5.0]
    assert ops.angle(np.array([-1j, -2.0])).tolist() == [-math.pi / 2, math.pi]


def test_nextafter_steps_in_the_stored_dtype() -> None:
    for of in FLOATS:
        one = np.ones((), of.numpy)
        step = ops.nextafter(one, (one + one).astype(of.numpy)).astype(np.float64) - 1.0
        assert step == of.eps


def test_round_takes_halves_to_even() -> None:
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert ops.round(halves).tolist() == [-2, -2, 0, 0, 2, 2]


def test_dtypes_are_never_mixed_silently() -> None:
    with pytest.raises(TypeRuleError, match="one dtype, found float32 and int32"):
        ops.add(np.ones(2, np.float32), np.ones(2, np.int32))
    with pytest.raises(TypeRuleError, match="divide does not take int64"):
        ops.divide(np.ones(2, np.int64), np.ones(2, np.int64))
    assert set(COMPLEX) <= set(ops.divide.dtypes)
