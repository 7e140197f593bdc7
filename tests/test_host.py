"""Memory of the host: where it lies, and how long it lives."""

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusewire.host import ALIGNMENT, aligned_empty, lender


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (7, 11), (1000, 257)])
@pytest.mark.parametrize("of", [np.float32, np.bool_, np.int64, ml_dtypes.bfloat16])
def test_aligned_array_is_an_ordinary_one_that_begins_at_the_right_place(
    shape: tuple[int, ...], of: Any
) -> None:
    for _ in range(8):
        found = aligned_empty(shape, np.dtype(of))
        assert (found.shape, found.dtype) == (shape, of)
        assert found.ctypes.data % ALIGNMENT == 0
        assert found.flags.c_contiguous
        found[...] = 1
        assert (found == 1).all()


class Tensor:
    """Stands for what an engine keeps alive: memory, for as long as itself."""

    def __init__(self, array: Any) -> None:
        self.array = array


@pytest.mark.parametrize("shape", [(), (3, 4)])
@pytest.mark.parametrize("of", [np.float32, np.bool_, ml_dtypes.bfloat16])
def test_lent_memory_is_the_same_and_lives_as_long_as_a_view_of_it(
    shape: tuple[int, ...], of: Any
) -> None:
    tensor = Tensor(np.zeros(shape, of))
    gone = weakref.ref(tensor)
    found = lender(shape, np.dtype(of))(tensor, tensor.array.ctypes.data)
    found[...] = 1
    assert (tensor.array == 1).all()
    view = found.reshape(-1)[:1]
    del tensor, found
    gc.collect()
    assert gone() is not None
    assert (view == 1).all()
    del view
    gc.collect()
    assert gone() is None


def test_nothing_is_lent_of_a_tensor_without_elements() -> None:
    assert lender((3, 0), np.dtype(np.float32))(object(), 0).shape == (3, 0)
