"""Ranges of what is computed hold everything that comes of the operands."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import bool_, float32, int8, int32, int64
from fusewire.facts.proof import Prover
from fusewire.facts.ranges import followed, ranges, shifted_together, whole_range
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.interpret import interpret
from fusewire.ops.ranges import Range
from fusewire.ops.table import all_ops, get_op
from fusewire.testing.conformance import Case, cases

OPS = list(all_ops().values())
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


def _within(value: Value, array: Any) -> Range | None:
    """Cover the numbers of an array of integers; None for others, and where there are none."""
    if whole_range(value) is None or array.size == 0:
        return None
    return Range(int(array.min()), int(array.max()), bool(array.min() >= 0))


@pytest.mark.parametrize(
    "name", [op.name for op in OPS if op.value_range or op.is_(Trait.MOVEMENT)]
)
def test_range_has_all_that_an_op_makes_of_its_samples(name: str) -> None:
    for case in cases([get_op(name)]):
        if case.dtype not in (bool_, int8, int32, int64, float32):
            continue
        graph, inputs = case.make()
        pairs = zip(graph.inputs, inputs, strict=True)
        given = {value: found for value, x in pairs if (found := _within(value, x)) is not None}
        known = ranges(graph, given=given)
        for value, result in zip(graph.outputs, interpret(graph, inputs), strict=True):
            made = _within(value, result)
            if made is not None and value in known:
                assert made.within(known[value].low, known[value].high), case.id


def _shifting(case: Case) -> Iterator[tuple[Graph, Sequence[Any], Sequence[int]]]:
    """Give a sample's graph and inputs, with each group of inputs that shift its integers."""
    graph, inputs = case.make()
    (node,) = graph.nodes
    given = dict(zip(graph.inputs, inputs, strict=True))
    known = [None if v not in given else _within(v, given[v]) for v in node.inputs]
    made = node.outputs[0]
    if made.tensor.dtype is not int64 or followed(node, made, known) is None:
        return
    for group in shifted_together(node, made):
        at = [place for place in group if place < len(node.inputs)]
        values = [value for place in at if (value := node.inputs[place]) is not None]
        if all(whole_range(value) is not None for value in values):
            yield graph, inputs, [graph.inputs.index(value) for value in values]


@pytest.mark.parametrize(
    "name", [op.name for op in OPS if op.value_range or op.is_(Trait.MOVEMENT)]
)
def test_what_shifts_an_output_shifts_all_of_its_elements(name: str) -> None:
    for case in cases([get_op(name)]):
        if case.dtype is not int64:
            continue
        for graph, inputs, group in _shifting(case):
            moved = [x + 3 if place in group else x for place, x in enumerate(inputs)]
            before, *_ = interpret(graph, inputs)
            after, *_ = interpret(graph, moved)
            np.testing.assert_array_equal(after, np.asarray(before) + 3, case.id)


def test_largest_of_a_window_without_elements_is_any_number() -> None:
    x = Value(TensorType(int64, (1, 1, 2)), "x")
    largest, _ = ops.max_pool_with_indices(ops.clip(x, 5, 9), window=(1,), padding=((2, 0),))
    graph = Graph([x], [largest])
    (found,) = interpret(graph, [np.full((1, 1, 2), 7)])
    assert not Prover(graph).proves(largest, [(int(found.min()) + 1, 9)])


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
