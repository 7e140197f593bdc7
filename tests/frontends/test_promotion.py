"""Dtypes of results are NumPy's: every pair of dtypes, and Python numbers, which are weak."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fusewire.dtypes import COMPLEX, FLOATS, INTEGERS, bool_
from fusewire.errors import TraceError
from fusewire.frontends.trace import TraceFrontend
from fusewire.ops.interpret import interpret

DTYPES = [bool_, *INTEGERS, *FLOATS, *COMPLEX]
BINARY = (np.add, np.multiply, np.subtract, np.divide, np.maximum, np.equal, np.power)
NUMBERS = (True, 3, 2.5, 1j, np.float32(1.5), np.int8(2))


def dtype_by_numpy(function: Any, *args: Any) -> Any:
    """Ask NumPy, which refuses some pairs."""
    try:
        return np.asarray(function(*args)).dtype
    except (TypeError, ValueError, OverflowError):
        return None


def dtype_by_trace(function: Any, *args: Any) -> Any:
    def wrapped(*arrays: Any) -> Any:
        return function(*arrays)

    graph = TraceFrontend().read(wrapped, args)
    (value,) = graph.outputs
    arrays = [x for x in args if isinstance(x, np.ndarray | np.generic)]
    (found,) = interpret(graph, arrays)
    assert found.dtype == value.tensor.dtype.numpy
    return found.dtype


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_every_pair_of_dtypes(function: Any) -> None:
    for left, right in itertools.product(DTYPES, DTYPES):
        args = np.ones(2, left.numpy), np.ones((), right.numpy)
        wanted = dtype_by_numpy(function, *args)
        if wanted is None:
            with pytest.raises(TypeError):
                dtype_by_trace(function, *args)
        elif function is np.maximum and wanted.kind == "c":
            with pytest.raises(TraceError):
                dtype_by_trace(function, *args)
        else:
            assert dtype_by_trace(function, *args) == wanted, (left, right)


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_every_dtype_with_a_number(number: Any) -> None:
    for of in DTYPES:
        for function in (np.add, np.divide, lambda x, y: y * x, np.greater):
            array = np.ones(2, of.numpy)
            if isinstance(number, np.generic):
                args: tuple[Any, ...] = (array, np.asarray(number))
            else:
                args = (array, number)
            wanted = dtype_by_numpy(function, *args)
            if wanted is None:
                with pytest.raises(TypeError):
                    dtype_by_trace(function, *args)
            elif function is np.greater and (of.is_complex or isinstance(number, complex)):
                with pytest.raises(TraceError):
                    dtype_by_trace(function, *args)
            else:
                assert dtype_by_trace(function, *args) == wanted, of


UNARY = (np.sqrt, np.exp, np.negative, np.abs, np.floor, np.sum, np.mean, np.prod, np.cumsum,
         np.std, np.max, np.median, np.square, np.sign, np.isnan)  # fmt: skip


@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_every_dtype_of_one_operand(function: Any) -> None:
    for of in DTYPES:
        array = np.ones((2, 3), of.numpy)
        wanted = dtype_by_numpy(function, array)
        if wanted is None:
            with pytest.raises((TypeError, ValueError)):
                dtype_by_trace(function, array)
            continue
        try:
            found = dtype_by_trace(function, array)
        except TypeError:
            # No op orders complex numbers.
            assert of.is_complex, of
            continue
        assert found == wanted, of


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: np.where(x > 0, x, y),
        lambda x, y: np.concatenate([x, y]),
        lambda x, y: np.stack([x, y]),
        lambda x, y: x @ y,
        lambda x, y: np.einsum("i,i->", x, y),
        lambda x, y: np.array([x[0], y[0]]),
        lambda x, y: np.array([x[0], 1.0]),
        lambda x, y: np.array([y[0], 1]),
        lambda x, y: np.clip(x, 0, y),
        lambda x, y: np.where(y > 0, x, 0.5),
        lambda x, y: np.where(y > 0, 1, x),
    ],
)
def test_functions_of_two_arrays(function: Any) -> None:
    names = ("int8", "uint8", "int64", "float16", "float32", "float64")
    for left, right in itertools.product(names, names):
        args = np.ones(2, left), np.ones(2, right)
        assert dtype_by_trace(function, *args) == dtype_by_numpy(function, *args), (left, right)


@pytest.mark.parametrize("number", [300, -1, 256])
def test_comparison_with_an_int_that_does_not_fit(number: int) -> None:
    array = np.arange(4, dtype=np.uint8)
    for compare in (np.less, np.equal, np.greater_equal, np.not_equal):
        graph = TraceFrontend().read(lambda x, compare=compare: compare(x, number), [array])
        np.testing.assert_array_equal(interpret(graph, [array])[0], compare(array, number))


def test_an_int_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(OverflowError):
        TraceFrontend().read(lambda x: x + 300, [np.zeros(2, np.uint8)])


def test_storing_into_a_narrower_dtype_follows_numpy() -> None:
    def kept(x: Any) -> Any:
        x += 2.5
        return x

    assert dtype_by_trace(kept, np.ones(2, np.float32)) == np.float32
    with pytest.raises(TraceError, match="cannot be stored into an array of int64"):
        dtype_by_trace(kept, np.ones(2, np.int64))
