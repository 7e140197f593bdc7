"""What nodes work on, and sizes that follow from sizes."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.dtypes import float32, int64
from fusewire.errors import CheckError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.planning.work import works


def kinds(*outputs: Any, inputs: list[Value]) -> dict[str, str]:
    graph = Graph(inputs, list(outputs))
    return {node.op: kind for node, kind in works(graph).items()}


def test_what_follows_from_sizes_is_a_size() -> None:
    x = Value(TensorType(float32, (4, 6)), "x")
    size = ops.add(ops.shape_of(x), 1)
    found = kinds(ops.multiply(ops.negative(size), 3), ops.exp(x), inputs=[x])
    assert found == {
        "shape_of": "shape",
        "add": "shape",
        "negative": "shape",
        "multiply": "shape",
        "exp": "data",
    }


def test_short_numbers_that_are_data_stay_data() -> None:
    x, n = Value(TensorType(float32, (3,)), "x"), Value(TensorType(int64, (3,)), "n")
    assert kinds(ops.exp(x), ops.negative(n), inputs=[x, n]) == {"exp": "data", "negative": "data"}


def test_list_longer_than_any_shape_is_data() -> None:
    for count, kind in ((64, "shape"), (65, "data")):
        x = Value(TensorType(float32, (2, 3)), "x")
        size = ops.size_of(x)
        many = ops.broadcast_to(size, shape=(count,))
        assert kinds(many, inputs=[x])["broadcast_to"] == kind


def test_index_that_the_run_picks_is_checked_where_it_is_used() -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows = Value(TensorType(int64, (2, 2)), "rows")
    which = Value(TensorType(int64, ()), "which")
    picked = ops.gather(rows, which, axis=0)
    graph = Graph([rows, which], [ops.gather(table, picked, axis=0)])
    program = fw.compile(graph, backend="reference", isolate=False)
    good, bad = np.array([[0, 1], [2, 3]]), np.array([[0, 1], [2, 9]])
    np.testing.assert_array_equal(program(good, np.array(1)), table[2:])
    np.testing.assert_array_equal(program(bad, np.array(0)), table[:2])
    with pytest.raises(CheckError, match="9"):
        program(bad, np.array(1))
