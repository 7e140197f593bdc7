"""The limits of a run: bytes are predicted before they are allocated, and time is looked at."""

from __future__ import annotations

import sys
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32, int64, string, uint8
from fusewire.errors import BudgetError
from fusewire.ir.dims import symbol, unbacked
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Op, Trait
from fusewire.ops.interpret import interpret
from fusewire.ops.limits import Meter, RunLimits, limited
from fusewire.ops.subgraph import FLAG, INDEX, subgraph
from fusewire.ops.table import all_ops
from fusewire.testing.conformance import cases

# Ops that make at most as much as their operands hold.
BOUNDED = {
    "boolean_mask",
    "compress",
    "dense_to_coo",
    "dense_to_csr",
    "dynamic_reshape",
    "dynamic_slice",
    "dynamic_top_k",
    "non_max_suppression",
    "nonzero",
    "string_normalize",
    "unique",
}


def test_every_op_with_open_sizes_tells_them_or_is_bounded_by_its_operands() -> None:
    free = {n for n, op in all_ops().items() if op.is_(Trait.UNBACKED) and op.output_shapes is None}
    assert free - {n for n, op in all_ops().items() if op.is_(Trait.CONTROL)} == BOUNDED


TELLING = [op for op in all_ops().values() if op.output_shapes is not None]


@pytest.mark.parametrize("op", TELLING, ids=lambda op: op.name)
def test_told_shapes_are_those_of_the_outputs(op: Op[Any]) -> None:
    for case in cases([op]):
        graph, arrays = case.make()
        (node,) = graph.nodes
        given = iter(arrays)
        operands = [None if v is None else next(given) for v in node.inputs]
        assert op.output_shapes is not None
        told = op.output_shapes(*operands, **node.attrs)
        for shape, output in zip(told, interpret(graph, arrays), strict=True):
            exact = op.name != "string_split"
            assert tuple(shape) == output.shape if exact else tuple(shape) >= output.shape


def _grown(count: int) -> tuple[Graph, list[Any]]:
    """Make a graph that repeats a number as often as its input says, and an input."""
    n = Value(TensorType(int64, (1,)), "n")
    wide = ops.dynamic_full(np.float32(1), n, dims=(unbacked("u"),))
    return Graph([n], [ops.exp(wide)], output_names=["y"]), [np.array([count])]


def test_small_type_that_somebody_claims_is_not_believed() -> None:
    x, n = Value(TensorType(float32, (4,)), "x"), Value(TensorType(int64, (1,)), "n")
    graph = Graph([x, n], [ops.dynamic_tile(x, n, dims=(4,))], output_names=["y"])
    with limited(RunLimits(memory_bytes=1 << 20)), pytest.raises(BudgetError):
        interpret(graph, [np.zeros(4, np.float32), np.array([1 << 40])])


def test_a_size_from_a_value_is_refused_before_it_is_allocated() -> None:
    graph, inputs = _grown(2**40)
    with limited(RunLimits(None, 2**20)), pytest.raises(BudgetError, match="memory_limit") as told:
        interpret(graph, inputs)
    assert "dynamic_full" in str(told.value)
    graph, inputs = _grown(2**10)
    with limited(RunLimits(None, 2**20)):
        assert interpret(graph, inputs)[0].shape == (2**10,)


def _peak(graph: Graph, inputs: list[Any]) -> int:
    """Measure what the values of a run take at most."""
    tracemalloc.start()
    try:
        interpret(graph, inputs)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sides", [(2**24, -(2**24)), (-(2**24), 2**24)])
def test_padding_that_is_cut_off_is_not_allocated(sides: tuple[int, int]) -> None:
    x, n = Value(TensorType(float32, (4,)), "x"), Value(TensorType(int64, (2,)), "n")
    graph = Graph([x, n], [ops.dynamic_pad(x, n, dims=(unbacked("u"),))], output_names=["y"])
    assert _peak(graph, [np.ones(4, np.float32), np.array(sides)]) < 2**20


def test_places_that_padding_repeats_are_counted() -> None:
    x, n = Value(TensorType(uint8, (4, symbol("n"))), "x"), Value(TensorType(int64, (4,)), "n")
    dims = (unbacked("u"), unbacked("v"))
    padded = ops.dynamic_pad(x, n, dims=dims, mode="edge")
    graph = Graph([x, n], [padded], output_names=["y"])
    sides = np.array([2**20, 0, 0, 0])
    assert _peak(graph, [np.ones((4, 0), np.uint8), sides]) < 2**20
    with limited(RunLimits(None, 2**22)), pytest.raises(BudgetError, match="memory_limit"):
        interpret(graph, [np.ones((4, 1), np.uint8), sides])


@pytest.mark.parametrize("repeats", [(2**22, 0), (0, 2**22)])
def test_a_tile_of_nothing_allocates_nothing(repeats: tuple[int, int]) -> None:
    x, n = Value(TensorType(float32, (2, 2)), "x"), Value(TensorType(int64, (2,)), "n")
    dims = (unbacked("u"), unbacked("v"))
    graph = Graph([x, n], [ops.dynamic_tile(x, n, dims=dims)], output_names=["y"])
    assert _peak(graph, [np.ones((2, 2), np.float32), np.array(repeats)]) < 2**20


def test_samples_of_a_wide_box_are_counted_before_they_are_allocated() -> None:
    x = Value(TensorType(float32, (1, 2, 4, 4)), "x")
    rois, batch = Value(TensorType(float32, (1, 4)), "rois"), Value(TensorType(int64, (1,)), "b")
    graph = Graph([x, rois, batch], [ops.roi_align(x, rois, batch, sizes=(2, 2))])
    image, first = np.ones((1, 2, 4, 4), np.float32), np.array([0])
    with limited(RunLimits(None, 2**20)):
        for box in ((0, 0, 2000, 2000), (0, 0, 1e7, 0), (0, 0, 0, 1e9), (0, 0, 1e9, 1e9)):
            with pytest.raises(BudgetError, match="memory_limit"):
                interpret(graph, [image, np.array([box], np.float32), first])
        near = np.array([[0, 0, 3, 3]], np.float32)
        assert interpret(graph, [image, near, first])[0].shape == (1, 2, 2, 2)


def test_what_nobody_needs_any_more_is_not_counted() -> None:
    x = Value(TensorType(float32, (symbol("n"),)), "x")
    y = x
    for _ in range(50):
        y = ops.exp(y)
    graph = Graph([x], [y], output_names=["y"])
    array = np.ones(2**16, np.float32)
    with limited(RunLimits(None, 4 * array.nbytes)) as meter:
        interpret(graph, [array])
        assert meter.used == 0
    with limited(RunLimits(None, 2 * array.nbytes)), pytest.raises(BudgetError):
        interpret(graph, [array])


def _loop(added: bool) -> tuple[Graph, list[Any]]:
    row = TensorType(float32, (2**12,))
    body = subgraph(
        lambda i, go, x: [go, ops.exp(x), *([ops.exp(x)] if added else [])], INDEX, FLAG, row
    )
    trips, x = Value(INDEX, "trips"), Value(row, "x")
    stacked = (TensorType(float32, (unbacked("runs"), 2**12)),) if added else ()
    outputs = ops.loop(trips, None, x, body=body, carries=1, types=(row, *stacked))
    names = [f"y{i}" for i in range(len(outputs))]
    inputs = [np.array(2**62), np.zeros(2**12, np.float32)]
    return Graph([trips, x], outputs, output_names=names), inputs


def test_a_loop_without_end_meets_its_deadline() -> None:
    graph, inputs = _loop(added=False)
    start = time.monotonic()
    with limited(RunLimits(0.2, None)), pytest.raises(BudgetError, match="deadline"):
        interpret(graph, inputs)
    assert time.monotonic() - start < 2


def test_what_a_loop_collects_is_counted() -> None:
    graph, inputs = _loop(added=True)
    with limited(RunLimits(30, 2**22)), pytest.raises(BudgetError, match="memory_limit"):
        interpret(graph, inputs)


def test_strings_count_their_characters() -> None:
    s = Value(TensorType(string, (1,)), "s")
    y = s
    for _ in range(40):
        y = ops.string_concat(y, y)
    graph = Graph([s], [y], output_names=["y"])
    with limited(RunLimits(30, 2**20)), pytest.raises(BudgetError, match="string_concat"):
        interpret(graph, [np.array(["ab"], object)])


def test_strings_count_what_their_characters_take() -> None:
    s = Value(TensorType(string, (1,)), "s")
    graph = Graph([s], [ops.string_concat(s, s)], output_names=["y"])
    for text in ("\N{GRINNING FACE}" * 2**16, "a" * 2**16 + "\N{GRINNING FACE}"):
        taken = sys.getsizeof(text + text)
        with limited(RunLimits(30, taken)), pytest.raises(BudgetError, match="string_concat"):
            interpret(graph, [np.array([text], object)])


def test_views_share_their_bytes() -> None:
    meter, array = Meter(RunLimits()), np.ones((64, 64), np.float32)
    views = [array[1:], array.T, array.reshape(-1)]
    meter.hold(views)
    assert meter.used == array.nbytes
    meter.drop(views)
    assert meter.used == 0
    meter.hold([np.broadcast_to(np.float32(1), (2**40,))])
    assert meter.used == 4


def test_a_part_of_a_run_keeps_to_the_limits_of_the_run() -> None:
    with limited(RunLimits(1, 2**20)) as whole, limited(RunLimits(9, 2**30)) as part:
        assert part is whole
