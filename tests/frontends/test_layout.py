"""Whether reshaping gives a view depends on how an array lies in memory, as it does in NumPy."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw

X = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 0.0])
CASES = {
    "operator": lambda x: x.T + 0,
    "broadcast": lambda x: x.T * np.arange(2.0),
    "both orders": lambda x: x.T + np.ones((3, 2)),
    "ufunc": lambda x: np.exp(x.T),
    "comparison": lambda x: x.T > 1,
    "astype": lambda x: x.T.astype(np.float32),
    "copy method": lambda x: x.T.copy(),
    "copy in order F": lambda x: x.copy(order="F"),
    "copy function": lambda x: np.copy(x.T),
    "clip": lambda x: np.clip(x.T, 1, 3),
    "where": lambda x: np.where(x.T > 1, x.T, 0),
    "zeros_like": lambda x: np.zeros_like(x.T),
    "order F": lambda x: np.zeros((2, 3), order="F") + x[0, 0],
    "asfortranarray": lambda x: np.asfortranarray(x),
    "three axes": lambda x: np.exp(np.swapaxes(x.reshape(1, 2, 3), 1, 2)),
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@pytest.mark.parametrize("flatten", [np.ravel, lambda y: y.reshape(-1)], ids=["ravel", "reshape"])
def test_writing_to_a_flattened_array_changes_what_numpy_changes(make: Any, flatten: Any) -> None:
    def function(x: Any) -> Any:
        y = make(x.reshape(2, 3))
        y[...] += x[0] > 100
        z = flatten(y)
        z[0] = 9
        return y, z

    found = fw.compile(function, backend="reference")(X)
    for ours, theirs in zip(found, function(X.copy()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("order", "CFAK")
@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.T, lambda x: x.T * 2])
def test_order_of_memory_is_the_one_numpy_reads_in(order: Any, make: Any) -> None:
    def function(x: Any) -> Any:
        y = make(x.reshape(2, 3))
        return y.ravel(order), np.ravel(y, order), y.flatten(order)

    found = fw.compile(function, backend="reference")(X)
    np.testing.assert_array_equal(found, function(X))


def test_contiguous_copy_of_a_transposed_array_is_no_view() -> None:
    def function(x: Any) -> Any:
        y = np.ascontiguousarray(x.reshape(2, 3).T)
        y[0] = 9
        return x + 0

    assert np.array_equal(fw.compile(function, backend="reference")(X), X)


@pytest.mark.parametrize("size", range(8))
def test_split_of_an_open_size_gives_the_longer_parts_first(size: Any) -> None:
    spec = fw.Spec(("n",), "float64")
    program = fw.compile(lambda x: np.array_split(x, 3), spec, backend="reference")
    given = np.arange(float(size))
    for ours, theirs in zip(program(given), np.array_split(given, 3), strict=True):
        np.testing.assert_array_equal(ours, theirs)
