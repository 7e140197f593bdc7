"""Branches and loops: shapes that change from run to run, captured values, refusals."""

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32, int64
from fusewire.errors import TypeRuleError
from fusewire.ir.dims import symbol, unbacked
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import SequenceType, TensorType, Type
from fusewire.ops.container import sequence_at, sequence_empty, sequence_insert, sequence_length
from fusewire.ops.control import cond, loop, scan, while_
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.interpret import interpret
from fusewire.ops.logic import less
from fusewire.ops.movement import concat
from fusewire.ops.reduction import reduce_sum
from fusewire.ops.shape import size_of
from fusewire.ops.subgraph import FLAG, INDEX, result_types, subgraph
from fusewire.ops.table import verify


def vector(*dims: int | str) -> TensorType:
    return TensorType(float32, tuple(symbol(d) if isinstance(d, str) else d for d in dims))


def test_branches_of_different_shape_meet_in_a_size_that_the_run_tells() -> None:
    x, flag = Value(vector("n"), "x"), Value(FLAG, "flag")
    then = subgraph(lambda v: [concat(v, v, axis=0)], vector("n"))
    otherwise = subgraph(lambda v: [reduce_sum(v, keepdims=True)], vector("n"))
    types = result_types(cond, [FLAG, x.type], then=then, otherwise=otherwise)
    (y,) = cond(flag, x, then=then, otherwise=otherwise, types=types)
    graph = Graph([flag, x], [add(y, 1.0)], output_names=["y"])
    verify(graph)
    assert interpret(graph, [np.array(True), np.ones(3, np.float32)])[0].shape == (6,)
    assert interpret(graph, [np.array(False), np.ones(3, np.float32)])[0] == [4.0]


def test_a_size_that_only_the_run_tells_must_be_named() -> None:
    then = subgraph(lambda v: [concat(v, v, axis=0)], vector("n"))
    otherwise = subgraph(lambda v: [v], vector("n"))
    with pytest.raises(TypeRuleError, match=r"only the run can tell dims \[0\] of output 0"):
        cond(Value(FLAG), Value(vector("n")), then=then, otherwise=otherwise)


def test_symbols_of_a_body_stand_for_the_operands_dims() -> None:
    body = subgraph(lambda v, w: [concat(v, w, axis=0)], vector("a"), vector("b"))
    (y,) = cond(Value(FLAG), Value(vector(2)), Value(vector("n")), then=body, otherwise=body)
    assert y.type == TensorType(float32, (symbol("n") + 2,))


def test_while_carries_a_vector_that_grows() -> None:
    types = (vector("n"), INDEX)
    test = subgraph(lambda v, most: [less(size_of(v), most)], *types)
    body = subgraph(lambda v, most: [concat(v, v, axis=0)], *types)
    x, most = Value(vector("m"), "x"), Value(INDEX, "most")
    attrs = {"condition": test, "body": body, "carries": 1}
    told = result_types(while_, [x.type, INDEX], **attrs)
    (y,) = while_(x, most, **attrs, types=told)
    graph = Graph([x, most], [y], output_names=["y"])
    verify(graph)
    got = interpret(graph, [np.arange(3, dtype=np.float32), np.array(10)])[0]
    assert np.array_equal(got, np.tile(np.arange(3), 4))


def test_a_size_that_follows_from_one_that_moves_moves_too() -> None:
    types: tuple[Type, ...] = (INDEX, FLAG, vector("a"), vector("b"))
    grown = subgraph(lambda i, go, a, b: [go, b, concat(b, b, axis=0)], *types)
    found = result_types(loop, [INDEX, None, vector(3), vector(3)], body=grown, carries=2)
    assert all(t.shape != (3,) for t in found if isinstance(t, TensorType))


def test_loop_stops_by_trips_or_by_its_condition_and_stacks_what_runs_add() -> None:
    types = (INDEX, FLAG, vector(), vector())
    body = subgraph(
        lambda i, go, total, step: [less(total, 5.0), add(total, step), multiply(total, 2.0)],
        *types,
    )
    told = (vector(), TensorType(float32, (unbacked("runs"),)))
    attrs = {"body": body, "carries": 1, "types": told}
    zero, two = np.float32(0), np.float32(2)
    total, added = ops.loop(np.int64(9), np.array(True), zero, two, **attrs)
    assert total == 8
    assert np.array_equal(added, [0, 4, 8, 12])
    total, added = ops.loop(np.int64(6), None, zero, two, **attrs)
    assert total == 12, "without a condition the body's is not asked"
    total, added = ops.loop(np.int64(0), None, zero, two, **attrs)
    assert total == 0
    assert added.shape == (0,)


def test_a_loop_without_a_run_keeps_the_shape_of_what_it_would_have_added() -> None:
    n = symbol("n")
    body = subgraph(lambda i, go, x: [go, x], INDEX, FLAG, TensorType(float32, (n, 3)))
    x, trips = Value(TensorType(float32, (n, 3)), "x"), Value(INDEX, "trips")
    told = result_types(loop, [INDEX, None, x.type], body=body, carries=0)
    (y,) = loop(trips, None, x, body=body, carries=0, types=told)
    graph = Graph([trips, x], [y], output_names=["y"])
    assert interpret(graph, [np.array(0), np.ones((2, 3), np.float32)])[0].shape == (0, 2, 3)


def test_scan_runs_backwards_and_keeps_places() -> None:
    body = subgraph(lambda total, x, factor: [add(total, multiply(x, factor))] * 2, *[vector()] * 3)
    x = np.arange(4, dtype=np.float32)
    attrs = {"body": body, "carries": 1, "scans": 1}
    last, sums = ops.scan(np.float32(0), x, np.float32(2), **attrs, reverse=True)
    assert last == 12
    assert np.array_equal(sums, [12, 12, 10, 6])


def test_scan_refuses_a_carried_value_that_grows() -> None:
    body = subgraph(lambda v, x: [concat(v, x, axis=0)], vector("n"), vector(1))
    with pytest.raises(TypeRuleError, match="the body makes"):
        scan(Value(vector(2)), Value(vector(5, 1)), body=body, carries=1, scans=1)


def test_a_loop_maps_over_a_sequence_of_vectors_of_any_length() -> None:
    def any_length(name: str) -> SequenceType:
        return SequenceType(TensorType(float32, (unbacked(name),)))

    def twice(i: Value, go: Value, done: Value, todo: Value) -> list[Value]:
        told = result_types(sequence_at, [todo.type, i.type])
        return [go, sequence_insert(done, multiply(sequence_at(todo, i, types=told), 2.0))]

    body = subgraph(twice, INDEX, FLAG, any_length("a"), any_length("b"))
    todo = Value(any_length("c"), "todo")
    start = sequence_empty.new(element=any_length("d").element)
    operands = [sequence_length(todo), None, start, todo]
    told = result_types(loop, [INDEX, None, start.type, todo.type], body=body, carries=1)
    (done,) = loop(*operands, body=body, carries=1, types=told)
    graph = Graph([todo], [done], output_names=["done"])
    verify(graph)
    (got,) = interpret(graph, [[np.ones(2, np.float32), np.ones(3, np.float32)]])
    assert [list(x) for x in got] == [[2, 2], [2, 2, 2]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (TensorType(int64, (3,)), "takes float32"),
        (TensorType(float32, (3, 1)), "takes float32"),
        (TensorType(float32, (4,)), "must be float32"),
    ],
)
def test_a_branch_is_given_what_it_takes(given: TensorType, sentence: str) -> None:
    body = subgraph(lambda v: [v], TensorType(float32, (3,)))
    with pytest.raises(TypeRuleError, match=sentence):
        cond(Value(FLAG), Value(given), then=body, otherwise=body)
