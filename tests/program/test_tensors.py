"""Tensors of other libraries as arguments, and arrays that are more than their elements."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import ShapeMismatchError


class Tensor:
    """A tensor of another library: NumPy can take it, and it is equal to nothing but itself."""

    def __init__(self, array: Any, problem: str = "") -> None:
        self._array = np.asarray(array)
        self._problem = problem

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> Any:
        return self._array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self._problem:
            raise TypeError(self._problem)
        return self._array


@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_tensors_are_arguments_of_functions_and_never_constants(backend: str) -> None:
    program = fw.compile(lambda x, y: np.tanh(x) * y["scale"], backend=backend)
    x, y = np.ones(3, np.float32), np.arange(3, dtype=np.float32)
    for value in (1.0, 2.0, 3.0):
        x = np.full(3, value, np.float32)
        found = program(Tensor(x), {"scale": Tensor(y)})
        np.testing.assert_allclose(found, np.tanh(x) * y, rtol=1e-6)
    assert len(program.signatures) == 1
    np.testing.assert_allclose(program(x, {"scale": y}), np.tanh(x) * y, rtol=1e-6)


def test_tensor_that_numpy_cannot_take_is_refused_with_what_to_do() -> None:
    program = fw.compile(lambda x: x + 1, backend="reference")
    with pytest.raises(ShapeMismatchError, match=r"unsupported.*detach"):
        program(Tensor([1.0], "Got unsupported ScalarType BFloat16."))


def test_masks_are_not_dropped() -> None:
    program = fw.compile(lambda x: x + 1, backend="reference")
    with pytest.raises(ShapeMismatchError, match="masked array"):
        program(np.ma.masked_array([1.0, 2.0], [False, True]))
