"""Tensors in the columns of tables."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fusewire.errors import JobError
from fusewire.ray.columns import to_array, to_column


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint64", "bool"])
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4)])
def test_arrays_come_back_from_columns(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    column = to_column("x", array)
    assert len(column) == 3
    back = to_array("x", column)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(to_array("x", column.slice(1, 2)), array[1:])
    np.testing.assert_array_equal(to_array("x", pa.chunked_array([column, column]))[3:], array)


def test_text_comes_back() -> None:
    array = np.array(["a", "b"], object)
    assert to_array("x", to_column("x", array)).tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0, 2.0], [3.0, 4.0]]),
        pa.array([[1.0, 2.0], [3.0, 4.0]], pa.large_list(pa.float64())),
        pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
    ],
)
def test_lists_of_one_length_are_tensors(column: Any) -> None:
    np.testing.assert_array_equal(to_array("x", column), [[1, 2], [3, 4]])


def test_nested_lists_are_tensors() -> None:
    column = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    np.testing.assert_array_equal(to_array("x", column), np.arange(1, 9).reshape(2, 2, 2))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([[1.0], [2.0, 3.0]]), "1 to 2 elements"),
        (pa.array([1.0, None]), "1 missing values"),
        (pa.array([[1.0, None], [2.0, 3.0]]), "1 missing values"),
        (pa.array([{"a": 1}]), "has the type struct"),
    ],
)
def test_column_that_is_no_tensor_is_refused(column: Any, words: str) -> None:
    with pytest.raises(JobError, match=words):
        to_array("x", column)


def test_output_without_a_type_in_arrow_is_refused() -> None:
    from fusewire.dtypes import dtype

    with pytest.raises(JobError, match="bfloat16"):
        to_column("y", np.ones((2, 2), dtype("bfloat16").numpy))


def test_axes_of_a_tensor_may_be_stored_in_another_order() -> None:
    storage = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12, dtype=np.float32)), 6)
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0])
    column = pa.ExtensionArray.from_storage(kind, storage)
    np.testing.assert_array_equal(to_array("x", column), column.to_numpy_ndarray())
