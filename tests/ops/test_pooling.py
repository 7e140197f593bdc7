"""Pooling against its definition, cell by cell, for every combination of attributes."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fusewire import ops

RNG = np.random.default_rng(7)
PADDING = [(0, 0), (1, 0), (1, 1)]


@dataclass(frozen=True)
class Case:
    window: int
    stride: int
    padding: tuple[int, int]
    dilation: int
    ceil: bool

    @property
    def attrs(self) -> dict[str, Any]:
        sliding = {"window": self.window, "strides": self.stride, "padding": self.padding}
        sliding["dilations"] = self.dilation
        return {key: (value,) for key, value in sliding.items()} | {"ceil": self.ceil}

    def windows(self, dim: int) -> list[list[int]]:
        """List the cells of each window; those outside [0, dim) are padding."""
        low, high = self.padding
        found = []
        for start in range(-low, dim + high, self.stride):
            cells = [start + i * self.dilation for i in range(self.window)]
            missing = cells[-1] - (dim + high - 1)
            # A window cut short counts where it is asked for, unless it starts in the padding.
            if missing <= 0 or (self.ceil and start < dim and missing < self.stride):
                found.append(cells)
        return found


CASES = [
    pytest.param(Case(*row), id=str(row))
    for row in itertools.product([2, 3], [1, 2, 4], PADDING, [1, 2], [False, True])
]


@pytest.mark.parametrize("case", CASES)
def test_max_pool_takes_the_largest_that_is_no_padding(case: Case) -> None:
    x = RNG.normal(size=(2, 3, 9))
    inside = [[i for i in window if 0 <= i < 9] for window in case.windows(9)]
    exact = np.stack([x[..., window].max(-1) for window in inside], axis=-1)
    assert np.array_equal(ops.max_pool(x, **case.attrs), exact)
    values, places = ops.max_pool_with_indices(x, **case.attrs)
    assert np.array_equal(values, exact)
    assert np.array_equal(x.reshape(-1)[places], exact)


@pytest.mark.parametrize("count_padding", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_average_pool_divides_by_what_it_counts(case: Case, count_padding: bool) -> None:
    x, cells = RNG.normal(size=(2, 3, 9)), case.windows(9)
    low, high = case.padding
    sums = np.stack([x[..., [i for i in w if 0 <= i < 9]].sum(-1) for w in cells], axis=-1)
    first, last = (-low, 9 + high) if count_padding else (0, 9)
    counts = [sum(first <= i < last for i in w) for w in cells]
    found = ops.average_pool(x, count_padding=count_padding, **case.attrs)
    np.testing.assert_allclose(found, sums / counts)


def test_places_of_the_largest_count_all_axes_in_either_order() -> None:
    x = np.zeros((2, 2, 2, 3))
    x[..., 1, 2] = 1.0
    _, rows = ops.max_pool_with_indices(x, window=(2, 3))
    _, columns = ops.max_pool_with_indices(x, window=(2, 3), column_major=True)
    assert rows.reshape(-1).tolist() == [5, 11, 17, 23]
    assert columns.reshape(-1).tolist() == [5, 11, 17, 23]
    x[..., 1, 1] = 2.0
    _, rows = ops.max_pool_with_indices(x, window=(2, 3))
    _, columns = ops.max_pool_with_indices(x, window=(2, 3), column_major=True)
    assert rows.reshape(-1).tolist() == [4, 10, 16, 22]
    assert columns.reshape(-1).tolist() == [3, 9, 15, 21]


def test_the_first_of_equals_and_nan_win() -> None:
    x = np.array([[[1.0, 1.0, np.nan, 5.0, -np.inf, -np.inf]]])
    values, places = ops.max_pool_with_indices(x, window=(2,), strides=(2,))
    assert np.array_equal(values, [[[1.0, np.nan, -np.inf]]], equal_nan=True)
    assert places.tolist() == [[[0, 2, 4]]]


def test_max_unpool_undoes_max_pool() -> None:
    x = RNG.uniform(1.0, 2.0, (2, 3, 4, 6))
    values, places = ops.max_pool_with_indices(x, window=(2, 2), strides=(2, 2))
    back = ops.max_unpool(values, places, shape=x.shape)
    assert np.array_equal(ops.max_pool(back, window=(2, 2), strides=(2, 2)), values)
    assert np.count_nonzero(back) == values.size


def test_last_window_that_is_cut_short_is_left_out_unless_asked_for() -> None:
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 5)
    for op, wanted in (
        (ops.max_pool, [1, 3]),
        (ops.sum_pool, [1, 5]),
        (ops.average_pool, [0.5, 2.5]),
    ):
        np.testing.assert_array_equal(op(x, window=(2,), strides=(2,)), [[wanted]])
    values, places = ops.max_pool_with_indices(x, window=(2,), strides=(2,))
    np.testing.assert_array_equal(values, [[[1, 3]]])
    np.testing.assert_array_equal(places, [[[1, 3]]])
    np.testing.assert_array_equal(
        ops.max_pool(x, window=(2,), strides=(2,), ceil=True), [[[1, 3, 4]]]
    )


def test_windows_touch_and_padding_is_not_counted_by_default() -> None:
    x = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3)
    np.testing.assert_array_equal(ops.max_pool(x, window=(2,)), [[[2, 3]]])
    padded = ops.average_pool(x, window=(2,), padding=((1, 0),))
    np.testing.assert_array_equal(padded, [[[1, 1.5, 2.5]]])
