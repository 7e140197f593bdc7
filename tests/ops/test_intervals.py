"""Elements within intervals: every dtype of integers, and arrays of every form."""

from __future__ import annotations

import numpy as np
import pytest

from fusewire.ir.graph import Array
from fusewire.ops.intervals import is_within

NAMES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("name", NAMES)
def test_extremes_of_a_dtype_are_compared_as_the_numbers_they_are(name: str) -> None:
    low, high = int(np.iinfo(name).min), int(np.iinfo(name).max)
    array = np.array([1, low, high, 1], name)
    assert is_within(array, low, high)
    assert is_within(array, low - 1, high + 1)
    assert not is_within(array, low + 1, high)
    assert not is_within(array, low, high - 1)


@pytest.mark.parametrize("name", NAMES)
def test_interval_above_zero_leaves_zero_out(name: str) -> None:
    assert is_within(np.array([3, 5, 4], name), 3, 5)
    assert not is_within(np.array([3, 0, 4], name), 3, 5)
    assert not is_within(np.array([3, 6, 4], name), 3, 5)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("i")])
def test_negative_element_is_not_a_large_one(name: str) -> None:
    assert not is_within(np.array([0, -1], name), 0, 2**64)
    assert is_within(np.array([0, -1], name), -1, 0)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(4, 6)[::-2, 1:5:2],
        np.arange(24).reshape(4, 6).T,
        np.broadcast_to(np.arange(6), (4, 6)),
        np.arange(6).astype(">i4"),
        np.array(7),
        np.arange(6).reshape(2, 3).view(np.matrix),
    ],
    ids=["steps", "transposed", "broadcast", "big-endian", "scalar", "matrix"],
)
def test_array_of_any_form_is_looked_at_whole(array: Array) -> None:
    low, high = int(array.min()), int(array.max())
    assert is_within(array, low, high)
    assert not is_within(array, low + 1, high)
    assert not is_within(array, low, high - 1)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_array_without_elements_is_within_nothing_allowed(shape: tuple[int, ...]) -> None:
    assert is_within(np.zeros(shape, np.int64), 3, 2)
