"""Order: ties, NaN, and what unique gives beside the values."""

import numpy as np
import pytest

from fusewire import ops
from tests.ops.onnx_oracle import run_onnx

RNG = np.random.default_rng(5)
X = RNG.integers(0, 4, (3, 5, 4)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_equal_elements_keep_their_order_in_both_directions(axis: int) -> None:
    up = ops.argsort(X, axis=axis)
    down = ops.argsort(X, axis=axis, descending=True)
    np.testing.assert_array_equal(up, np.argsort(X, axis, kind="stable"))
    np.testing.assert_array_equal(down, np.argsort(-X, axis, kind="stable"))
    values, places = ops.top_k(X, k=2, axis=axis)
    np.testing.assert_array_equal(places, np.take(down, [0, 1], axis))
    np.testing.assert_array_equal(values, np.take_along_axis(X, places, axis))


def test_nan_is_the_largest() -> None:
    x = np.array([1.0, np.nan, np.inf])
    assert ops.argsort(x).tolist() == [0, 2, 1]
    assert ops.argsort(x, descending=True).tolist() == [1, 2, 0]


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("in_order", [True, False])
def test_unique_is_that_of_onnx(axis: int | None, in_order: bool) -> None:
    x = RNG.integers(0, 2, (2, 4, 2)).astype(np.float32)
    found = ops.unique(x, axis=axis, sorted=in_order)
    # The reference takes axis 0 for every axis when the order is that of appearance.
    if in_order or axis == 0:
        where = {} if axis is None else {"axis": axis}
        expected = run_onnx("Unique", x, outputs=4, sorted=int(in_order), **where)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    values, first, inverse, counts = found
    whole = x.reshape(-1) if axis is None else x
    np.testing.assert_array_equal(np.take(values, inverse, axis or 0), whole)
    np.testing.assert_array_equal(np.take(whole, first, axis or 0), values)
    np.testing.assert_array_equal(counts, np.bincount(inverse))
    assert in_order or (np.diff(first) > 0).all()


def test_unique_takes_rows_of_text() -> None:
    rows = np.array([["b", "a"], ["a", "b"], ["b", "a"]], object)
    values, first, inverse, counts = ops.unique(rows, axis=0)
    assert values.tolist() == [["a", "b"], ["b", "a"]]
    assert (first.tolist(), inverse.tolist(), counts.tolist()) == ([1, 0], [1, 0, 1], [1, 2])
