"""Ranges of what is computed hold everything that comes of the operands."""

import itertools

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32, int64
from fusewire.facts.proof import Prover
from fusewire.facts.ranges import ranges
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.interpret import interpret
from fusewire.ops.ranges import Range

ENDS = (-20, -3, -1, 0, 1, 2, 20)
ARITHMETIC = (
    *("add", "subtract", "multiply", "minimum", "maximum"),
    *("floor_divide", "truncate_divide", "remainder", "fmod"),
)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_range_has_all_that_comes_of_two_numbers(name: str) -> None:
    numbers = np.arange(-20, 21)
    x, y = (Value(TensorType(int64, (41, 41)), name) for name in "xy")
    made = getattr(ops, name)(x, y)
    graph = Graph([x, y], [made])
    (results,) = interpret(graph, np.meshgrid(numbers, numbers, indexing="ij"))
    for first, second in itertools.product(itertools.combinations(ENDS, 2), repeat=2):
        known = ranges(graph, given={x: Range(*first), y: Range(*second)})[made]
        rows, columns = (slice(low + 20, high + 21) for low, high in (first, second))
        part = np.asarray(results)[rows, columns]
        assert Range(int(part.min()), int(part.max())).within(known.low, known.high)


def test_product_of_sizes_that_wraps_may_be_negative() -> None:
    inputs = [Value(TensorType(float32, (symbol(name), 0)), name) for name in "nmk"]
    sizes = [ops.slice(ops.shape_of(x), starts=(0,), limits=(1,), strides=(1,)) for x in inputs]
    product = ops.reduce_prod(ops.concat(*sizes, axis=0), keepdims=True)
    once = ops.reduce_prod(product)
    graph = Graph(inputs, [once])
    (wrapped,) = interpret(graph, [np.zeros((size, 0), np.float32) for size in (2**31, 2**31, 2)])
    assert wrapped == -(2**63)
    assert ranges(graph)[once].low == -(2**63)
    assert not Prover(graph).proves(once, [(0, 2**63 - 1)])
