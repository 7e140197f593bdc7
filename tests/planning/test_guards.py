"""Indices and lengths are checked before an engine sees them, by the same rule for all engines."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.compiler import Session
from fusewire.dtypes import bool_, float32, int32, int64, uint8
from fusewire.errors import CheckError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.control import scan
from fusewire.ops.movement import broadcast_to, reshape, transpose
from fusewire.ops.slicing import slice_
from fusewire.ops.subgraph import subgraph
from fusewire.plan.guards import Checks, Guard
from fusewire.plan.plan import Plan
from fusewire.planning.guards import Need, checked_inputs, graph_needs, guarding
from fusewire.records.plans import read_plan, write_plan

ENGINES = ("reference", "onnxruntime", "openvino", "xla")
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
X7 = np.zeros((7, 2), np.float32)
N = symbol("n")


def ints(*shape: Dim, name: str = "ids", dtype: Any = int64) -> Value:
    return Value(TensorType(dtype, shape), name)


def floats(*shape: Dim, name: str = "x") -> Value:
    return Value(TensorType(float32, shape), name)


def computed(x: Value) -> Any:
    return ops.subtract(ops.multiply(x, 2), 1)


def planned(graph: Graph, backend: str) -> Plan:
    session = Session(fw.Options(backend=backend, isolate=False, cache=False))
    entries = session.decider.entries
    return entries.plan(graph, entries.preferred_targets(graph, [])).plan


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("is_computed", [False, True])
def test_every_engine_says_the_same_of_an_index(backend: str, is_computed: bool) -> None:
    ids = ints(2)
    used = computed(ids) if is_computed else ids
    graph = Graph([ids], [ops.gather(TABLE, used, axis=0)])
    program = fw.compile(graph, backend=backend, isolate=False, cache=False, fallback="error")
    good = np.array([1, 2])
    expected = TABLE[2 * good - 1 if is_computed else good]
    for _ in range(2):
        for bad in (-(2**62), -1000, 9, 2**32 + 1):
            number = int((np.array([bad]) * 2 - 1)[0]) if is_computed else bad
            with pytest.raises(CheckError) as caught:
                program(np.array([1, bad]))
            text = f"gather: indices[1] is {number}; it must be from -4 to 3."
            more = "" if is_computed else " The operand comes from the input ids."
            assert str(caught.value) == text + more
        np.testing.assert_array_equal(program(good), expected)
    assert program.why().contacts[0].runs_on == backend


def test_regions_are_cut_only_for_engines_that_do_not_check() -> None:
    ids = ints(2)
    graph = Graph([ids], [ops.gather(TABLE, computed(ids), axis=0)])
    steps = {name: planned(graph, name).steps for name in ENGINES}
    assert [len(steps[name]) for name in ENGINES] == [1, 1, 2, 2]
    assert [len(steps[name][-1].guards) for name in ENGINES] == [0, 0, 1, 1]


def _windows(ids: Value) -> Any:
    """List elements from 5 to 9, with zeros around them."""
    return ops.unfold(reshape(ops.clip(ids, 5, 9), shape=(1, 1, N)), window=(2,), padding=((1, 1),))


PROVEN: dict[str, Callable[[Value, Value], Value]] = {
    "argmax": lambda x, ids: ops.gather(np.zeros(5), ops.argmax(x, axis=1), axis=0),
    "listed along one axis": lambda x, ids: ops.gather_nd(
        x, transpose(ops.nonzero(ids), perm=(1, 0))
    ),
    "places on a circle": lambda x, ids: ops.gather(TABLE, ops.remainder(ids, 4), axis=0),
    "clip": lambda x, ids: ops.gather(TABLE, ops.clip(ids, 0, 3), axis=0),
    "counted": lambda x, ids: ops.gather(x, ops.iota.new(shape=(N,), axis=0), axis=0),
    "constant": lambda x, ids: ops.gather(TABLE, constant(np.array([0, -4, 3])), axis=0),
    "sorted": lambda x, ids: ops.gather(x, ops.argsort(x, axis=0), axis=0),
    "listed": lambda x, ids: ops.boolean_mask(x, ops.greater(x, 0.0)),
    "moved": lambda x, ids: ops.gather(x, transpose(ops.argsort(x, axis=0), perm=(1, 0)), axis=0),
    "one less": lambda x, ids: ops.gather(x, ops.subtract(ops.argsort(x, axis=0), 1), axis=0),
}


@pytest.mark.parametrize("name", PROVEN)
def test_what_the_graph_proves_is_not_checked(name: str) -> None:
    x, ids = floats(N, 5), ints(N)
    output = PROVEN[name](x, ids)
    graph = Graph([x, ids], [output])
    assert graph_needs(graph) == []


UNPROVEN: dict[str, Callable[[Value, Value], Value]] = {
    "another axis": lambda x, ids: ops.gather(x, ops.argmax(x, axis=1), axis=0),
    "place of the largest of none": lambda x, ids: ops.gather(x, ops.argmax(x, axis=0), axis=0),
    "zeros around": lambda x, ids: ops.gather(TABLE, ops.subtract(_windows(ids), 8), axis=0),
    "one more": lambda x, ids: ops.gather(x, ops.add(ops.argmax(x, axis=0), 1), axis=0),
    "two below": lambda x, ids: ops.gather(TABLE, ops.subtract(ops.clip(ids, -4, 3), 1), axis=0),
    "first of none": lambda x, ids: ops.gather(x, np.array(0), axis=0),
    "a sum that may wrap": lambda x, ids: ops.gather(
        TABLE, ops.minimum(ops.add(ops.maximum(ids, 0), 1), 3), axis=0
    ),
}


@pytest.mark.parametrize("name", UNPROVEN)
def test_what_the_graph_does_not_prove_is_checked(name: str) -> None:
    x, ids = floats(N, 5), ints(N)
    assert graph_needs(Graph([x, ids], [UNPROVEN[name](x, ids)]))


def test_one_check_serves_all_that_follows() -> None:
    ids = ints(N)
    first = ops.gather(TABLE, ids, axis=0)
    second = ops.gather(TABLE, reshape(ids, shape=(N, 1)), axis=0)
    wider = ops.gather(np.zeros((9, 2), np.float32), ops.add(ids, 1), axis=0)
    assert len(graph_needs(Graph([ids], [first, second, wider]))) == 1


def test_parts_that_no_node_uses_may_be_anything() -> None:
    pairs = ints(2, N, name="pairs")
    row = slice_(pairs, starts=(1, 0), limits=(2, N), strides=(1, 1))
    graph = Graph([pairs], [ops.gather(TABLE, reshape(row, shape=(N,)), axis=0)])
    for backend in ENGINES:
        (guard,) = planned(graph, backend).guards
        assert [step[0] for step in guard.view] == ["slice"]
    checked_inputs(graph, [np.array([[99, -99], [3, 0]])])
    with pytest.raises(CheckError, match=r"indices\[0, 1\] is -5"):
        checked_inputs(graph, [np.array([[0, 0], [3, -5]])])


def test_index_is_checked_in_the_dtype_that_the_graph_gives_it() -> None:
    ids = ints(1)
    graph = Graph([ids], [ops.gather(TABLE, ops.cast(ids, dtype=int32), axis=0)])
    checked_inputs(graph, [np.array([2**32 + 1])])
    with pytest.raises(CheckError, match="is 5;"):
        checked_inputs(graph, [np.array([2**32 + 5])])


def test_cast_may_take_an_index_out_of_the_range_it_is_in() -> None:
    ids = ints(1)
    used = ops.cast(ops.cast(ids, dtype=uint8), dtype=int64)
    graph = Graph([ids], [ops.gather(TABLE, used, axis=0)])
    checked_inputs(graph, [np.array([256 + 3])])
    with pytest.raises(CheckError, match="is 255;"):
        checked_inputs(graph, [np.array([-1])])


def test_place_in_an_empty_axis_is_refused_by_every_engine() -> None:
    x, table = floats(3, N), floats(N, 2, name="table")
    graph = Graph([x, table], [ops.gather(table, ops.argmax(x, axis=1), axis=0)])
    for backend in ENGINES:
        program = fw.compile(graph, backend=backend, isolate=False, cache=False)
        assert program(np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)).shape == (3, 2)
        with pytest.raises(CheckError, match=r"indices\[0\] is 0; no number is allowed"):
            program(np.ones((3, 0), np.float32), np.ones((0, 2), np.float32))


def test_first_step_that_takes_an_index_checks_it() -> None:
    """Nodes run in another order than the graph lists them, where regions are cut."""
    ids, more, x = ints(2), ints(4, name="more"), floats(3)
    used = computed(ids)
    found = ops.gather(x, ops.cast(ops.gather(x, computed(more), axis=0), dtype=int64), axis=0)
    late, early = ops.gather(found, used, axis=0), ops.gather(TABLE, used, axis=0)
    plan = planned(Graph([ids, more, x], [late, early]), "openvino")
    (place,) = [g.place for step in plan.steps for g in step.guards if g.intervals == ((-4, 3),)]
    users = [step for step in plan.steps if place in step.inputs]
    assert len(users) == 2
    assert [place in [guard.place for guard in step.guards] for step in users] == [True, False]


def test_engine_that_checks_does_not_vouch_for_one_that_runs_before_it() -> None:
    ids = ints(2)
    used = computed(ids)
    first, second = ops.gather(TABLE, used, axis=0), ops.gather(TABLE, used, axis=0)
    graph = Graph([ids], [first, second])
    checking = guarding(graph, _AsGiven(graph), lambda node, need: node is first.node)
    assert [need.node for need in checking.computed] == [second.node]


@dataclass(frozen=True)
class _AsGiven:
    graph: Graph
    needs: tuple[Need, ...] = ()

    def value(self, given: Value) -> Value:
        return given


@pytest.mark.parametrize("index", [ints(2), constant(np.array([0, 5]))])
def test_composite_in_simpler_ops_is_checked_where_its_sizes_are_known(index: Value) -> None:
    x, mask = floats(N, 3), Value(TensorType(bool_, (N,)), "mask")
    table = ops.boolean_mask(x, mask)
    given = [] if index.constant is not None else [index]
    graph = Graph([x, mask, *given], [ops.embedding(table, index)])
    program = fw.compile(graph, backend="xla", isolate=False, cache=False, fallback="allow")
    indices = [np.array([0, 5])] if given else []
    for count in (7, 6):
        program(np.ones((7, 3), np.float32), np.arange(7) < count, *indices)
    with pytest.raises(CheckError, match=r"indices\[1\] is 5; it must be from -5 to 4"):
        program(np.ones((7, 3), np.float32), np.arange(7) < 5, *indices)


def test_index_that_is_repeated_no_times_may_be_anything() -> None:
    ids, x = ints(1), floats(N)
    graph = Graph([ids, x], [ops.gather(TABLE, broadcast_to(ids, shape=(N,)), axis=0)])
    checked_inputs(graph, [np.array([77]), np.zeros(0, np.float32)])
    with pytest.raises(CheckError, match="is 77;"):
        checked_inputs(graph, [np.array([77]), np.zeros(2, np.float32)])


def test_constant_is_checked_against_the_size_of_the_call() -> None:
    x = floats(N, 3)
    graph = Graph([x], [ops.gather(x, np.array([0, -2]), axis=0)])
    for backend in ENGINES:
        program = fw.compile(graph, backend=backend, isolate=False, cache=False)
        assert program(TABLE).shape == (2, 3)
        with pytest.raises(CheckError, match=r"indices\[1\] is -2; it must be from -1 to 0"):
            program(TABLE[:1])
        assert program(TABLE).shape == (2, 3)


@pytest.mark.parametrize("backend", ENGINES)
def test_lengths_are_checked_of_layers_that_engines_take_in_parts(backend: str) -> None:
    x, lengths = floats(5, 2, 3), ints(2, name="lengths", dtype=int32)
    rng = np.random.default_rng(0)
    w, r = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 6, 3), (1, 6, 2)))
    y, _ = ops.gru(x, w, r, None, lengths)
    graph = Graph([x, lengths], [y])
    program = fw.compile(graph, backend=backend, isolate=False, cache=False)
    array = rng.normal(size=(5, 2, 3)).astype(np.float32)
    program(array, np.array([5, 0], np.int32))
    for bad in (-1, 6, -(2**31)):
        with pytest.raises(CheckError, match=rf"^gru: lengths\[1\] is {bad}; it must be from 0 to"):
            program(array, np.array([1, bad], np.int32))


def test_body_that_indexes_is_driven_by_the_host() -> None:
    """An engine that does not check must not run it whole."""
    ids = ints(3)
    total = Value(TensorType(float32, (3,)), "total")
    item = TensorType(int64, ())
    body = subgraph(lambda kept, i: [ops.add(kept, ops.gather(TABLE, i, axis=0))], total.type, item)
    (summed,) = scan(total, ids, body=body, carries=1, scans=1)
    graph = Graph([total, ids], [summed])
    for backend in ENGINES:
        program = fw.compile(graph, backend=backend, isolate=False, cache=False)
        start = np.zeros(3, np.float32)
        np.testing.assert_array_equal(program(start, np.array([1, 1, 0])), TABLE[[1, 1, 0]].sum(0))
        with pytest.raises(CheckError, match=r"^gather: indices is 9; it must be from -4 to 3"):
            program(start, np.array([1, 9, 0]))


def test_plan_of_an_earlier_version_has_every_input_copied() -> None:
    graph = fw.trace(lambda x, y: (ops.sort(x), ops.exp(y)), TABLE, TABLE)
    program = fw.compile(graph, backend="onnxruntime", isolate=False, cache=False)
    program(TABLE, TABLE)
    blobs: list[Any] = []
    row = write_plan(program.plan, blobs)
    for said, steady in ((row, (0,)), ({k: row[k] for k in row if k != "steady"}, (0, 1))):
        read = read_plan(json.loads(json.dumps(said)), iter(blobs), None)  # type: ignore[arg-type] # no graph is loaded
        assert read.steady == steady


def test_saved_plan_has_the_same_guards() -> None:
    pairs, x = ints(2, N, name="pairs"), floats(N, 3)
    row = reshape(slice_(pairs, starts=(1, 0), limits=(2, N), strides=(1, 1)), shape=(N,))
    graph = Graph([pairs, x], [ops.gather(x, row, axis=0), ops.gather(x, computed(row), axis=0)])
    plan = planned(graph, "xla")
    blobs: list[Any] = []
    record = write_plan(plan, blobs)
    read = read_plan(json.loads(json.dumps(record)), iter(blobs), None)  # type: ignore[arg-type] # no graph is loaded
    assert [_shown(g) for g in read.guards] == [_shown(g) for g in plan.guards]
    for saved, step in zip(read.steps, plan.steps, strict=True):
        assert [_shown(g) for g in saved.guards] == [_shown(g) for g in step.guards]
    assert plan.guards
    assert plan.steps[-1].guards


def _shown(guard: Guard) -> str:
    return repr(guard)


def test_merged_guards_name_the_first_node() -> None:
    wide = Guard(0, (), (2,), ((-9, 9),), None, (), "wide", "indices")
    narrow = Guard(0, (), (2,), ((-2, 2),), None, (), "narrow", "indices")
    checks = Checks([wide, narrow])
    checks.check([np.array([-2, 2])])
    with pytest.raises(CheckError, match=r"^narrow"):
        checks.check([np.array([3, 0])])
    with pytest.raises(CheckError, match=r"^wide"):
        checks.check([np.array([0, 10])])


def test_why_lists_what_a_plan_checks() -> None:
    ids = ints(2)
    graph = Graph([ids], [ops.gather(TABLE, ids, axis=0), ops.gather(X7, computed(ids), axis=0)])
    program = fw.compile(graph, backend="xla", isolate=False, cache=False)
    assert program.why().guards == (
        "gather: indices (from the input ids) must be from -4 to 3.",
        "gather: indices (computed) must be from -7 to 6.",
    )


@pytest.mark.parametrize("backend", ["openvino", "xla"])
def test_parts_of_an_index_have_each_their_own_bounds(backend: str) -> None:
    ids = ints(2, 2)
    graph = Graph([ids], [ops.gather_nd(TABLE, ids)])
    program = fw.compile(graph, backend=backend, isolate=False, cache=False, fallback="error")
    np.testing.assert_array_equal(program(np.array([[3, 2], [-4, -3]])), TABLE[[3, 0], [2, 0]])
    for wrong in ([[0, 3], [0, 0]], [[0, 0], [4, 0]], [[0, -4], [0, 0]], [[-5, 0], [0, 0]]):
        with pytest.raises(CheckError):
            program(np.array(wrong))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_product_of_sizes_that_leaves_its_dtype_is_no_size(engine: str, dtype: str) -> None:
    big = np.array(2**31 - 1 if dtype == "int32" else 2**62 - 1, dtype)

    def pick(x: Any, table: Any) -> Any:
        product = np.array(x.shape, dtype)[:1] * big * np.array(2, dtype)
        return np.take(table, np.minimum(product, np.array(4, dtype)), axis=0)

    graph = fw.trace(pick, fw.Spec(("n",), "float32"), fw.Spec((5,), "float32"))
    program = fw.compile(graph, backend=engine, fallback="allow", cache=False)
    table = np.arange(5, dtype=np.float32)
    for count in (1, 2, 12, 1000):
        x = np.zeros(count, np.float32)
        with np.errstate(over="ignore"):
            at = np.minimum(np.array([count], dtype) * big * np.array(2, dtype), 4)
        if -5 <= at[0] <= 4:
            assert program(x, table) == table[at]
        else:
            with pytest.raises(CheckError, match=f"is {at[0]}"):
                program(x, table)


@pytest.mark.parametrize("of", ["int8", "int64", "uint64"])
@pytest.mark.parametrize("count", [1, 64, 65, 300])
def test_last_index_of_few_and_of_many_is_checked(count: int, of: str) -> None:
    guard = Guard(0, (), (count,), ((-3, 2),), None, (), "gather", "indices")
    checks, indices = Checks([guard]), np.ones(count, of)
    checks.check([indices])
    checks.check([indices[::-1]])
    indices[-1] = 3
    with pytest.raises(CheckError, match="gather"):
        checks.check([indices])
    checks.check([indices[:-1]])


def test_indices_in_an_array_of_another_class_are_checked() -> None:
    guard = Guard(0, (), (1, 3), ((-3, 2),), None, (), "gather", "indices")
    checks = Checks([guard])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        checks.check([np.matrix([[0, 1, 2]])])
        with pytest.raises(CheckError, match="gather"):
            checks.check([np.matrix([[0, 1, 3]])])
