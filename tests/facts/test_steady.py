"""Which inputs must not change while a graph runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.dtypes import float32, int64, string
from fusewire.facts.steady import steady_places
from fusewire.ir.builder import inline
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Op, Trait
from fusewire.ops.subgraph import FLAG, INDEX, subgraph
from fusewire.ops.table import all_ops
from fusewire.testing.conformance import cases

X, MASK = np.ones(4, np.float32), np.ones(4, np.bool_)
ROW = TensorType(float32, (4,))


def places(function: Callable[..., Any], *example: Any) -> tuple[int, ...]:
    return steady_places(fw.trace(function, *example))


@pytest.mark.parametrize(
    ("function", "example", "steady"),
    [
        (ops.nonzero, [X], (0,)),
        (ops.boolean_mask, [X, MASK], (1,)),
        (lambda x, mask: ops.compress(x, mask, axis=0), [X, MASK], (1,)),
        (lambda x: ops.unique(x)[0], [X], (0,)),
        (ops.sort, [X], (0,)),
        (lambda x: ops.top_k(x, k=2)[1], [X], (0,)),
        (lambda x, i: ops.gather(x, i, axis=0), [X, np.array([0])], (1,)),
        (lambda x, m: ops.gather(x, ops.cast(m, dtype="int64"), axis=0), [X, MASK], (1,)),
        (lambda x, y: ops.add(x, y), [X, X], ()),
        (lambda x, mask: ops.where(mask, x, np.float32(0)), [X, MASK], ()),
    ],
    ids=[
        "nonzero",
        "mask",
        "compress",
        "unique",
        "sort",
        "top_k",
        "gather",
        "truth",
        "add",
        "where",
    ],
)
def test_operand_that_kernels_rely_on_is_steady(
    function: Callable[..., Any], example: Sequence[Any], steady: tuple[int, ...]
) -> None:
    assert places(function, *example) == steady


@pytest.mark.parametrize(
    "moved",
    [
        lambda x: ops.reshape(x, shape=(2, 2)),
        lambda x: ops.transpose(ops.reshape(x, shape=(2, 2)), perm=(1, 0)),
        lambda x: ops.slice_(x, starts=(1,), limits=(3,), strides=(1,)),
        lambda x: ops.cast(x, dtype="float32"),
        lambda x: ops.bitcast(x, dtype="int32"),
        lambda x: ops.add(x, np.float32(0)),
        lambda x: ops.reduce_sum(ops.reshape(x, shape=(4, 1)), axes=(1,)),
        lambda x: ops.einsum(ops.reshape(x, shape=(2, 2)), equation="ij->ji"),
    ],
    ids=["reshape", "transpose", "slice", "cast", "bitcast", "no-op", "sum of one", "einsum"],
)
def test_input_that_an_engine_may_hand_on_as_it_is_is_steady(moved: Callable[..., Any]) -> None:
    assert places(lambda x: ops.nonzero(moved(x)), X) == (0,)


@pytest.mark.parametrize(
    "computed",
    [lambda x: ops.greater(x, np.float32(0)), lambda x: ops.matmul(x, np.eye(4, dtype="float32"))],
    ids=["wider", "product"],
)
def test_input_of_what_is_always_computed_may_change(computed: Callable[..., Any]) -> None:
    assert places(lambda x: ops.nonzero(computed(x)), X) == ()


def _graph(inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
    return Graph(inputs, outputs, output_names=[f"y{i}" for i in range(len(outputs))])


def test_fused_bodies_are_looked_into() -> None:
    x, places = Value(ROW, "x"), Value(TensorType(int64, (2,)), "places")
    body = subgraph(lambda x, i: [ops.exp(ops.gather(x, i, axis=0))], x.tensor, places.tensor)
    assert steady_places(_graph([x, places], [*ops.fused(x, places, body=body)])) == (1,)


def test_branches_are_looked_into() -> None:
    flag, x, y = Value(FLAG, "flag"), Value(ROW, "x"), Value(ROW, "y")
    then = subgraph(lambda x, y: [ops.sort(x)], ROW, ROW)
    otherwise = subgraph(lambda x, y: [ops.exp(y)], ROW, ROW)
    outputs = ops.cond(flag, x, y, then=then, otherwise=otherwise)
    assert steady_places(_graph([flag, x, y], outputs)) == (0, 1)


def test_what_a_branch_hands_on_is_steady() -> None:
    flag, x, y = Value(FLAG, "flag"), Value(ROW, "x"), Value(ROW, "y")
    then = subgraph(lambda x, y: [x], ROW, ROW)
    otherwise = subgraph(lambda x, y: [ops.matmul(np.eye(4, dtype="float32"), y)], ROW, ROW)
    (found,) = ops.cond(flag, x, y, then=then, otherwise=otherwise)
    assert steady_places(_graph([flag, x, y], [ops.sort(found)])) == (0, 1)


@pytest.mark.parametrize(
    ("after", "steady"),
    [
        # In the second round x is what y was, and in the third what z was.
        (lambda x, y, z: [y, z, ops.sort(x)], (0, 1, 2, 3)),
        (lambda x, y, z: [ops.sort(x), z, y], (0, 1)),
    ],
    ids=["around", "alone"],
)
def test_carried_values_are_followed_around_the_loop(
    after: Callable[..., list[Value]], steady: tuple[int, ...]
) -> None:
    trips, x, y, z = Value(INDEX, "trips"), Value(ROW, "x"), Value(ROW, "y"), Value(ROW, "z")
    body = subgraph(lambda i, go, *rows: [go, *after(*rows)], INDEX, FLAG, ROW, ROW, ROW)
    outputs = ops.loop(trips, None, x, y, z, body=body, carries=3)
    assert steady_places(_graph([trips, x, y, z], outputs)) == steady


COMPOSITES = [op for op in all_ops().values() if op.is_composite and not op.is_(Trait.HOST)]


@pytest.mark.parametrize("op", COMPOSITES, ids=lambda op: op.name)
def test_composite_says_what_its_parts_rely_on(op: Op[Any]) -> None:
    for case in cases([op]):
        graph, _ = case.make()
        (node,) = graph.nodes
        parts = _graph(graph.inputs, inline(op.expansion(node), node.operands))
        assert {*steady_places(parts)} <= {*steady_places(graph)}


@pytest.mark.parametrize("op", COMPOSITES, ids=lambda op: op.name)
def test_composite_hands_on_what_its_parts_hand_on(op: Op[Any]) -> None:
    for case in cases([op]):
        graph, _ = case.make()
        (node,) = graph.nodes
        parts = inline(op.expansion(node), node.operands)
        assert _counted(graph.inputs, parts) <= _counted(graph.inputs, node.outputs)


def _counted(inputs: Sequence[Value], values: Sequence[Value]) -> set[int]:
    tensors = [x for x in values if isinstance(x.type, TensorType) and x.type.dtype is not string]
    outputs = [ops.nonzero(tensor) for tensor in tensors]
    return {*steady_places(_graph(inputs, outputs))}
