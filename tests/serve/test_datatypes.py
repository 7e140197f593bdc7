"""Tensors as the bytes and the lists of the protocol: what is read, and what is refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusewire.dtypes import dtype, string
from fusewire.errors import RequestError
from fusewire.serve.datatypes import (
    raw_view,
    read_listed,
    read_raw,
    write_listed,
    write_raw,
)


def test_text_that_has_no_bytes_is_refused() -> None:
    assert read_listed(["\u00e4"], string, (1,), 1, "x").tolist() == ["\u00e4"]
    with pytest.raises(RequestError, match="surrogate"):
        read_listed(["\ud800"], string, (1,), 1, "x")


@pytest.mark.parametrize(
    "data",
    [
        ["x" * 100_000, *[""] * 2500],
        [0.5] * 100_000,
        [[0.5] * 2500] * 40,
        [[[]] * 100_000, 1],
        [10**4000] * 64,
        ["1.5"] * 64,
        [None] * 64,
        [True] * 64,
    ],
)
def test_listed_data_cost_no_memory_before_kind_and_count_are_known(data: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="The data of x"):
            read_listed(data, dtype("float32"), (1, 64), 64, "x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        ([1, 2.5, 1 << 63, 3], "float32", [1, 2.5, 2.0**63, 3]),
        ([[1, 2], [3, 4]], "int8", [1, 2, 3, 4]),
        ([[[1], [2]], [[3], [(1 << 64) - 1]]], "uint64", [1, 2, 3, (1 << 64) - 1]),
        ([[True, False], [False, True]], "bool", [True, False, False, True]),
        ([["a", ""], ["b", "c"]], "string", ["a", "", "b", "c"]),
        # ml_dtypes takes no integers of so many digits.
        ([1 << 62, 2.5, 3, (1 << 64) - 1], "bfloat16", [2.0**62, 2.5, 3, 2.0**64]),
        ([1e300, 0, 0, 0], "float32", [np.inf, 0, 0, 0]),
    ],
)
def test_listed_data_are_read_flat_and_nested(data: Any, name: str, expected: Any) -> None:
    array = read_listed(data, dtype(name), (2, 2), 4, "x")
    assert array.dtype == (object if name == "string" else name)
    assert array.shape == (2, 2)
    assert array.ravel().tolist() == expected


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ([1, 2, 3, 128], "int8"),
        ([1, 2, 3, -1], "uint64"),
        ([1, 2, 3, 1 << 64], "float64"),
        ([1, 2, 3, 4.0], "int32"),
        ([[1, 2], [3]], "int32"),
        ([[1, 2], 3, 4], "int32"),
        ([[1, 2], [3, "4"]], "float32"),
        ("abcd", "string"),
    ],
)
def test_listed_data_of_another_kind_are_refused(data: Any, name: str) -> None:
    with pytest.raises(RequestError, match="The data of x"):
        read_listed(data, dtype(name), (2, 2), 4, "x")


def refused(data: Any, name: str, shape: tuple[int, ...], count: int) -> str:
    with pytest.raises(RequestError) as caught:
        read_listed(data, dtype(name), shape, count, "x")
    return str(caught.value)


def test_refusal_says_what_is_wrong_with_a_list() -> None:
    assert refused("ab", "string", (2,), 2) == "The data of x are not a list."
    assert refused([1, 2, 3], "int8", (2,), 2) == "The data of x have 3 elements, not 2."
    assert refused([1], "int8", (2,), 2) == "The data of x have 1 elements, not 2."
    assert refused([[], []], "int8", (2,), 2) == "The data of x have 0 elements, not 2."
    uneven = "The data of x are not a tensor: lists differ in length."
    assert refused([[1], [2, 3]], "int8", (3,), 3) == uneven
    assert refused([[1], 2], "int8", (2,), 2) == uneven
    assert refused([1.5], "int8", (1,), 1) == "The data of x are not all INT8."
    assert refused([1], "bool", (1,), 1) == "The data of x are not all BOOL."
    assert refused([True], "int8", (1,), 1) == "The data of x are not all INT8."
    assert refused([1], "string", (1,), 1) == "The data of x are not all BYTES."
    assert refused(["a"], "int8", (1,), 1) == "The data of x are not all INT8."
    of_ints = "The data of x have a number that int8 does not hold."
    of_floats = "The data of x have a number that an integer of 64 bits does not hold."
    for name, least, most, said in (
        ("int8", -128, 127, of_ints),
        ("float32", -(1 << 63), (1 << 64) - 1, of_floats),
    ):
        assert read_listed([least, most], dtype(name), (2,), 2, "x").shape == (2,)
        assert refused([0, most + 1], name, (2,), 2) == said
        assert refused([least - 1, 0], name, (2,), 2) == said
    assert refused([0.5, 1 << 64], "float32", (2,), 2) == of_floats


def test_lists_are_read_to_any_depth_that_numpy_has() -> None:
    data: Any = [7]
    for _ in range(63):
        data = [data]
    assert read_listed(data, dtype("int8"), (1,), 1, "x").tolist() == [7]
    for _ in range(3):
        data = [data]
    assert refused(data, "int8", (1,), 1) == "The data of x are not all INT8."


def test_tensor_without_elements_is_read_from_empty_lists() -> None:
    assert refused([[], [], []], "int8", (2, 0), 0) == "The data of x have 3 elements, not 0."
    assert refused([[]], "int8", (0, 2), 1) == "The data of x have 0 elements, not 1."
    assert refused([1, 2], "int8", (2, 0), 0) == "The data of x have 2 elements, not 0."
    lists: tuple[list[Any], ...] = ([], [[], []])
    for data in lists:
        assert read_listed(data, dtype("float32"), (2, 0), 0, "x").shape == (2, 0)
        assert read_listed(data, string, (2, 0), 0, "x").shape == (2, 0)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("name", ["bool", "int8", "float32", "bfloat16", "string"])
def test_bytes_are_read_as_they_are_written(name: str, count: int) -> None:
    of = dtype(name)
    array = np.array(["ä", ""][:count], object) if of is string else np.arange(count) % 2
    array = array.astype(of.numpy).reshape(count, 1)
    found = read_raw(memoryview(write_raw(array)), of, (count, 1), count)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("raw", "name", "said"),
    [
        (b"\0\2", "bool", "A BOOL tensor has a byte that is neither 0 nor 1."),
        (b"\1\0\0\0a\1\0\0", "string", "A BYTES tensor ends after 1 of 2 elements."),
        (b"\1\0\0\0a\1\0\0\0", "string", "Element 1 of a BYTES tensor is longer than the tensor."),
        (b"\1\0\0\0\xff" * 2, "string", "Element 0 of a BYTES tensor is not UTF-8."),
        (b"\0\0\0\0" * 2 + b"more", "string", "A BYTES tensor has 4 bytes after its last element."),
    ],
)  # fmt: skip
def test_bytes_that_are_no_tensor_are_refused(raw: bytes, name: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_raw(memoryview(raw), dtype(name), (2,), 2)
    assert str(caught.value) == said
    # A byte of another dtype may be any.
    assert read_raw(memoryview(b"\0\2"), dtype("int8"), (2,), 2).tolist() == [0, 2]


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) - 1])
def test_large_tensors_are_sent_without_a_copy(size: int) -> None:
    array = np.arange(size, dtype=np.uint8).reshape(1, -1)
    view = raw_view(array)
    assert bytes(view) == array.tobytes()
    assert isinstance(view, memoryview) == (size == 1 << 16)
    turned = np.zeros((1 << 9, 1 << 8), ml_dtypes.bfloat16).T
    assert isinstance(raw_view(turned), bytes)
    assert isinstance(raw_view(np.ascontiguousarray(turned)), memoryview)


def test_what_json_cannot_hold_is_not_listed() -> None:
    for of in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        listed = write_listed(np.array([[0.5], [2]], of))
        assert isinstance(listed, np.ndarray)
        assert (listed.dtype.name, listed.tolist()) == ("float32", [0.5, 2.0])
    exact = write_listed(np.array([0.1, 1e300]))
    assert isinstance(exact, np.ndarray)
    assert (exact.dtype.name, exact.tolist()) == ("float64", [0.1, 1e300])
    assert write_listed(np.array([["a"], [1]], object)) == ["a", "1"]
    whole = write_listed(np.array([[2**63 - 1]]))
    assert isinstance(whole, np.ndarray)
    assert (whole.dtype.name, whole.tolist()) == ("int64", [2**63 - 1])
    turned = write_listed(np.arange(6).reshape(2, 3).T)
    assert isinstance(turned, np.ndarray)
    assert turned.flags.c_contiguous
    assert turned.tolist() == [0, 3, 1, 4, 2, 5]
    for bad in (np.nan, np.inf, -np.inf):
        for of in (np.float32, np.float64, ml_dtypes.bfloat16):
            with pytest.raises(ValueError, match="not numbers of JSON"):
                write_listed(np.array([0, bad], of))
