"""Twins: what they give once their operands are known is what they give at run time."""

import numpy as np
import pytest

from fusewire.dtypes import float32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol, unbacked
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.dynamic import STATIC_TWINS, dynamic_slice, static_twin
from fusewire.ops.interpret import graph_of, interpret
from fusewire.ops.table import get_op, verify


@pytest.mark.parametrize("name", STATIC_TWINS)
def test_twin_gives_the_same_once_its_operands_are_known(name: str) -> None:
    op = get_op(name)
    for case in op.samples():
        tested = int64 if int64 in (case.only or op.dtypes) else float32
        arrays = case.make(tested)
        graph, inputs = graph_of(op, arrays, case.attrs)
        (node,) = graph.nodes
        given = [*arrays, *[None] * (len(node.inputs) - len(arrays))]
        operands = [None if x is None else constant(x) for x in given]
        fixed = op.make(operands, node.attrs).outputs[0].node
        assert fixed is not None
        known = {
            n: tuple(np.ravel(v.constant.array).tolist())
            for n, v in zip(op.parameters[0], fixed.inputs, strict=True)
            if v is not None and v.constant is not None and n in op.index_operands
        }
        if any(isinstance(item, float) for items in known.values() for item in items):
            continue
        outputs = static_twin(fixed, known)
        assert outputs is not None
        static = Graph([], outputs)
        verify(static)
        for ours, theirs in zip(interpret(static, []), interpret(graph, inputs), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_twin_waits_for_all_of_its_operands() -> None:
    x = Value(TensorType(float32, (5,)), "x")
    bound = Value(TensorType(int64, (1,)), "bound")
    node = dynamic_slice(x, bound, bound, dims=(2,)).node
    assert node is not None
    assert static_twin(node, {"starts": (0,)}) is None


def test_twin_takes_sizes_that_are_symbols() -> None:
    n = symbol("n")
    x = Value(TensorType(float32, (n,)), "x")
    bound = Value(TensorType(int64, (1,)), "bound")
    node = dynamic_slice(x, bound, bound, dims=(n,)).node
    assert node is not None
    (found,) = static_twin(node, {"starts": (0,), "limits": (n,)}) or ()
    assert found.type == x.type


@pytest.mark.parametrize("start", [-(2**63), -1, 0, 2**63 - 1])
@pytest.mark.parametrize("limit", [-(2**63), -1, 0, 2**63 - 1])
@pytest.mark.parametrize("stride", [1, -2])
def test_bound_beyond_any_axis_is_its_end(start: int, limit: int, stride: int) -> None:
    n = symbol("n")
    x = Value(TensorType(float32, (n,)), "x")
    operands = [constant(np.array([number])) for number in (start, limit, stride)]
    node = dynamic_slice(x, *operands, axes=(0,), dims=(unbacked(),)).node
    assert node is not None
    found = static_twin(node, {"starts": (start,), "limits": (limit,), "strides": (stride,)})
    assert found is not None
    graph = Graph([x], found, output_names=["y"])
    verify(graph)
    for size in (0, 1, 5):
        given = np.arange(size, dtype=np.float32)
        wanted = given[slice(start, limit, stride)]
        assert interpret(graph, [given])[0].tolist() == wanted.tolist()
    if (start, limit, stride) in ((0, 2**63 - 1, 1), (-1, -(2**63), -2)):
        assert "min" not in str(found[0].type)
