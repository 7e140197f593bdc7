"""Functions of empty arrays: what NumPy refuses is refused, and what it answers is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import fusewire as fw

ONES = np.ones(2, np.float32)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "argmax": np.argmax,
    "argmin": lambda x: x.argmin(0),
    "argmax of rows": lambda x: np.argmax(x, axis=-1),
    "nanargmax": np.nanargmax,
    "convolve a": lambda x: np.convolve(x, ONES),
    "convolve v": lambda x: np.convolve(ONES, x),
    "correlate a": lambda x: np.correlate(x, ONES),
    "correlate v": lambda x: np.correlate(ONES, x),
    "median": np.median,
    "median along": lambda x: np.median(x, axis=0),
    "median kept": lambda x: np.median(x, axis=-1, keepdims=True),
    "windows": lambda x: sliding_window_view(x, 3, axis=-1),
    "wide windows": lambda x: sliding_window_view(x, 9, axis=0),
    "max": np.max,
    "sum": np.sum,
}
SHAPES = {
    name: [(0,), (2,)] if "con" in name or "corr" in name else [(0,), (0, 4), (4, 0), (3,), (2, 4)]
    for name in FUNCTIONS
}
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_empty_arrays_follow_numpy(name: str, shape: tuple[int, ...]) -> None:
    function = FUNCTIONS[name]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    program = fw.compile(function, backend="reference")
    try:
        expected = np.asarray(function(x))
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            program(x)
        return
    answer = program(x)
    assert (answer.shape, answer.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(answer, expected)


@pytest.mark.parametrize("backend", ["auto", "reference", "onnxruntime"])
def test_where_numpy_returns_scalars_programs_return_arrays(backend: str) -> None:
    program = fw.compile(lambda x: (x.sum(), x[0]), backend=backend)
    x = np.arange(1, 4, dtype=np.float32)
    for result, expected in zip(program(x), (6.0, 1.0), strict=True):
        assert type(result) is np.ndarray
        assert (result.shape, result.dtype) == ((), np.float32)
        assert f"{result:.2f}" == f"{expected:.2f}"
        assert result.item() == result[()] == float(result) == expected
    program.close()
