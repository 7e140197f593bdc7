"""Inputs of any form are looked at, exactly, and without an array of their size."""

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fusewire as fw
from fusewire.plan.finite import are_finite

NARROW = (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)
FLOATS = (np.float16, np.float32, np.float64, np.complex64, np.complex128, *NARROW)


def forms(x: Any) -> list[Any]:
    """List what a call may be given in the place of an array."""
    wide = np.zeros((*x.shape, 2), x.dtype)
    wide[..., 0] = x
    return [x, wide[..., 0], x.T.copy().T, x[::-1], [x[:1], x], [None, x]]


@pytest.mark.parametrize("of", FLOATS)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_one_element_in_any_place_is_seen(of: Any, number: float) -> None:
    for place in range(12):
        x = np.ones((3, 4), of)
        assert all(are_finite([form], [0]) for form in forms(x))
        x.reshape(-1)[place] = number
        assert not any(are_finite([form], [0]) for form in forms(x))
        assert are_finite([x, np.ones(2, of)], [1])


def test_large_numbers_whose_squares_overflow_are_finite() -> None:
    for of in (np.float16, np.float32, np.float64):
        assert are_finite([np.full((300, 300), np.finfo(of).max, of)], [0])


@pytest.mark.parametrize("x", [None, np.float32(1), np.empty((0, 3)), np.int8(3), np.ones((), "f")])
def test_what_has_no_elements_or_one_is_looked_at_too(x: Any) -> None:
    assert are_finite([x], [0])
    assert not are_finite([x, np.float32(np.nan)], [0, 1])
    assert not are_finite([x, np.array(np.inf)], [0, 1])


def test_buffers_are_looked_at() -> None:
    assert are_finite([fw.asarray(np.ones(3, np.float32))], [0])
    assert not are_finite([fw.asarray(np.array([1, np.nan], np.float32))], [0])


def test_no_array_of_the_size_of_the_input_is_made() -> None:
    for x in (np.full((2000, 2000), 1e38, np.float32), np.ones((2000, 2000), np.float32).T):
        tracemalloc.start()
        assert are_finite([x], [0])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < x.nbytes / 8
