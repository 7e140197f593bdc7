"""What nodes require and nothing proves, how a guard sees it, and where a plan checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import bool_, dtype, float32, int32, int64
from fusewire.errors import CheckError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, symbol, symbols
from fusewire.ir.graph import Constant, Graph, Node, Value
from fusewire.ir.types import SequenceType, TensorType
from fusewire.ops.control import scan
from fusewire.ops.movement import broadcast_to, reshape, transpose
from fusewire.ops.slicing import slice_
from fusewire.ops.subgraph import subgraph
from fusewire.plan.guards import Guard
from fusewire.planning.guards import (
    Guarding,
    Need,
    Viewed,
    checked_inputs,
    expanded_needs,
    graph_needs,
    guard_of,
    guarding,
    needs_of,
    needy_nodes,
    sizes_in,
    viewed,
)

N, M = symbol("n"), symbol("m")
(N_KEY,), (M_KEY,) = symbols(N), symbols(M)
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
NARROW, WIDE = TABLE[:2], np.zeros((9, 3), np.float32)
FOUR = ((-4, 3),)


def ints(*shape: Dim, name: str = "ids", of: Any = int64) -> Value:
    return Value(TensorType(of, shape), name)


def floats(*shape: Dim, name: str = "x") -> Value:
    return Value(TensorType(float32, shape), name)


def bools(*shape: Dim, name: str = "mask") -> Value:
    return Value(TensorType(bool_, shape), name)


def taken(table: Any, ids: Any) -> Value:
    value: Value = ops.gather(table, ids, axis=0)
    return value


def node_of(value: Value) -> Node:
    assert value.node is not None
    return value.node


def computed(ids: Value) -> Value:
    value: Value = ops.subtract(ops.multiply(ids, 2), 1)
    return value


def needed(value: Value, *intervals: tuple[Dim, Dim], **changes: Any) -> Need:
    fields = {"ignored": None, "label": "composite", "operand": "indices"}
    return Need(value, intervals, **{**fields, **changes})


# -- what is required


def test_need_says_what_a_node_requires() -> None:
    ids = ints(2)
    node = node_of(taken(TABLE, ids))
    (need,) = needs_of(node)
    assert (need.value, need.node, need.intervals) == (ids, node, FOUR)
    assert (need.label, need.operand, need.rule, need.start) == ("gather", "indices", "within", 0)
    assert list(needs_of(node_of(ops.add(ids, 1)))) == []


def test_operand_that_is_absent_needs_nothing() -> None:
    x, lengths = floats(5, 2, 3), ints(2, name="lengths", of=int32)
    w, r = np.zeros((1, 6, 3), np.float32), np.zeros((1, 6, 2), np.float32)
    for given, count in ((None, 0), (lengths, 1)):
        y, _ = ops.gru(x, w, r, None, given)
        assert len(list(needs_of(node_of(y)))) == count


def test_condition_is_required_to_hold_nowhere_beyond_the_axis() -> None:
    x, mask = floats(N), bools(M)
    (need,) = needs_of(node_of(ops.compress(x, mask, axis=0)))
    assert (need.start, need.intervals) == (N, ((0, 0),))
    assert list(needs_of(node_of(ops.compress(x, bools(N), axis=0)))) == []


def test_order_is_required_beside_bounds() -> None:
    indptr, indices = ints(4, name="indptr"), ints(3)
    made = ops.csr_to_dense(indptr, indices, np.ones(3, np.float32), columns=4)
    found = graph_needs(Graph([indptr, indices], [made]))
    assert [(need.operand, need.rule) for need in found] == [
        ("indices", "within"), ("indptr", "within"), ("indptr", "ordered"),
    ]  # fmt: skip


def test_only_composites_are_expanded() -> None:
    ids = ints(2)
    nodes = [node_of(taken(TABLE, ids)), node_of(ops.embedding(TABLE, ids))]
    assert [(need.label, need.node) for need in expanded_needs(nodes)] == [("embedding", None)]


@pytest.mark.parametrize(
    ("changes", "proves"),
    [({}, True), ({"ignored": 9}, False), ({"rule": "ordered"}, False), ({"start": 1}, False)],
)
def test_only_a_check_of_all_elements_proves_a_need(changes: dict[str, Any], proves: bool) -> None:
    ids = ints(2)
    graph = Graph([ids], [taken(TABLE, ids)])
    first = needed(ids, *FOUR, **changes)
    assert (graph_needs(graph, checked=[first]) == []) == proves
    found = graph_needs(graph, [first])
    assert found[0] is first
    assert len(found) == 1 + (not proves)
    # What does not settle it proves nothing in any case.
    assert len(graph_needs(graph, [first], settles=lambda need: False)) == 2


def test_nodes_of_bodies_are_found_at_any_depth() -> None:
    total, item = TensorType(float32, (3,)), TensorType(int64, ())

    def inner(kept: Any, i: Any) -> Any:
        return [ops.add(kept, taken(TABLE, i))]

    def outer(kept: Any, row: Any) -> Any:
        return list(scan(kept, row, body=subgraph(inner, total, item), carries=1, scans=1))

    start, rows = floats(3), ints(2, 2)
    body = subgraph(outer, total, TensorType(int64, (2,)))
    (made,) = scan(start, rows, body=body, carries=1, scans=1)
    assert [node.op for node in needy_nodes(node_of(made))] == ["gather"]
    calm = subgraph(lambda kept, i: [ops.add(kept, 1.0)], total, item)
    (made,) = scan(start, ints(3), body=calm, carries=1, scans=1)
    assert list(needy_nodes(node_of(made))) == []


# -- how a guard sees it

IDS = ints(4, 5)
HALF = {"starts": (0, 1), "limits": (4, 3), "strides": (1, 1)}


def half(value: Value) -> Value:
    return slice_(value, **HALF)


def flipped(value: Value) -> Value:
    made: Value = ops.flip(value, axes=(0,))
    return made


def turned(value: Value) -> Value:
    return transpose(value, perm=(1, 0))


def narrowed(value: Value) -> Value:
    made: Value = ops.cast(value, dtype=int32)
    return made


def largest(count: int, place: int) -> Value:
    made: Sequence[Value] = ops.top_k(IDS, k=count, axis=1)
    return made[place]


# The value, and the steps back to what is looked at: where the places of elements do not matter,
# and where they do. A root that is computed is marked.
VIEWS: dict[str, tuple[Value, str, str]] = {
    "an input": (IDS, "", ""),
    "shape": (reshape(IDS, shape=(5, 4)), "", "reshape"),
    "one more axis": (ops.expand_dims(IDS, axes=(0,)), "", "reshape"),
    "one axis less": (ops.squeeze(ints(4, 1), axes=(1,)), "", "reshape"),
    "repeated": (broadcast_to(IDS, shape=(2, 4, 5)), "", "broadcast"),
    "turned": (turned(IDS), "", "transpose"),
    "part": (half(IDS), "slice", "slice"),
    "turned part": (turned(half(IDS)), "slice", "slice transpose"),
    "part of turned": (half(turned(ints(3, 4))), "transpose slice", "transpose slice"),
    "narrowed": (narrowed(IDS), "cast", "cast"),
    "turned after narrowed": (turned(narrowed(IDS)), "cast", "cast transpose"),
    "flipped": (flipped(IDS), "", "computed"),
    "sorted": (ops.sort(IDS, axis=0), "", "computed"),
    "rolled": (ops.roll(IDS, shifts=(1,), axes=(0,)), "", "computed"),
    "turned after flipped": (turned(flipped(IDS)), "", "computed transpose"),
    "flipped part": (flipped(half(IDS)), "slice", "computed"),
    "part of flipped": (half(flipped(IDS)), "computed slice", "computed slice"),
    "place of flipped": (taken(flipped(IDS), np.array(1)), "computed take", "computed take"),
    "narrowed after flipped": (narrowed(flipped(IDS)), "cast", "computed cast"),
    "flipped after narrowed": (flipped(narrowed(IDS)), "cast", "computed"),
    "all in order": (largest(5, 0), "", "computed"),
    "the largest": (largest(2, 0), "computed", "computed"),
    "places of all in order": (largest(5, 1), "computed", "computed"),
    "a sum": (ops.add(IDS, 1), "computed", "computed"),
    "counted": (ops.iota.new(shape=(4,), axis=0), "computed", "computed"),
    "first": (taken(IDS, np.array(0)), "take", "take"),
    "last": (taken(IDS, np.array(3)), "take", "take"),
    "first from the end": (taken(IDS, np.array(-4)), "take", "take"),
    "beyond the end": (taken(IDS, np.array(4)), "computed", "computed"),
    "before the start": (taken(IDS, np.array(-5)), "computed", "computed"),
    "a list of places": (taken(IDS, np.array([0])), "computed", "computed"),
    "a place that is given": (taken(IDS, ints()), "computed", "computed"),
    "a place on an axis of any size": (taken(ints(N), np.array(0)), "computed", "computed"),
    "of floats": (ops.cast(floats(4), dtype=int64), "computed", "computed"),
    "as floats": (ops.cast(IDS, dtype=float32), "computed", "computed"),
}


def shown(view: Viewed) -> str:
    start = [] if view.root.node is None else ["computed"]
    return " ".join([*start, *(step[0] for step in view.view)])


@pytest.mark.parametrize("name", VIEWS)
def test_value_is_seen_as_part_of_another(name: str) -> None:
    value, unordered, ordered = VIEWS[name]
    assert shown(viewed(value, is_ordered=False)) == unordered
    assert shown(viewed(value, is_ordered=True)) == ordered


@pytest.mark.parametrize(
    ("source", "to", "step"),
    [
        ("uint8", "uint16", "reshape"),
        ("int8", "int16", "reshape"),
        ("uint32", "int64", "reshape"),
        ("int16", "uint16", "cast"),
        ("uint16", "int16", "cast"),
        ("int64", "int64", "reshape"),
        ("int64", "int32", "cast"),
    ],
)
def test_cast_that_holds_all_numbers_is_no_step(source: str, to: str, step: str) -> None:
    value = ops.cast(ints(2, of=dtype(source)), dtype=dtype(to))
    assert shown(viewed(value, is_ordered=True)) == step


# -- the guard of a need


def test_sizes_are_found_where_they_stand_alone() -> None:
    listed = Value(SequenceType(TensorType(float32, (M,))), "listed")
    values = {floats(2, N): 0, listed: 1, floats(N, M + 1, M): 2}
    assert sizes_in(values) == {N_KEY: (0, 1), M_KEY: (2, 2)}


def test_guard_knows_the_sizes_that_its_view_needs() -> None:
    ids = ints(N)
    last = slice_(ids, starts=(N - 2,), limits=(N,), strides=(1,))
    (need,) = needs_of(node_of(taken(TABLE, last)))
    view = viewed(last, is_ordered=False)
    guard = guard_of(need, view, 0, sizes_in({ids: 0}))
    assert guard is not None
    assert guard.sizes == ((N_KEY, 0, 0),)
    assert guard_of(need, view, 0, {}) is None


def test_guard_needs_all_of_its_sizes() -> None:
    ids, table = ints(N), floats(M, 3)
    (need,) = needs_of(node_of(taken(table, ids)))
    known = sizes_in({ids: 0})
    assert guard_of(need, Viewed(ids), 0, known) is None
    assert guard_of(need, Viewed(ids), 0, known | sizes_in({table: 1})) is not None


def test_guard_begins_where_its_need_does() -> None:
    ids = ints(2, N)
    sizes = sizes_in({ids: 0})
    whole = guard_of(needed(ids, (0, 0)), Viewed(ids), 0, sizes)
    late = guard_of(needed(ids, (0, 0), start=N - 1), Viewed(ids), 0, sizes)
    assert whole is not None
    assert late is not None
    assert whole.view == ()
    assert late.view == (("slice", (0, N - 1), (2, N), (1, 1)),)


def test_guard_names_inputs_alone() -> None:
    known = Value(TensorType(int64, (2,)), "known", Constant.of(np.array([0, 1])))
    made = Node("add", [IDS, IDS], {}, [IDS.tensor], names=["made"]).outputs[0]
    for value, source in ((IDS, "ids"), (known, None), (made, None)):
        guard = guard_of(needed(value, *FOUR), Viewed(value), 0, {})
        assert guard is not None
        assert guard.source == source


# -- where a plan checks


@dataclass(frozen=True)
class Claimed:
    """A graph as an engine takes it: ``moved`` says which values have become which."""

    graph: Graph
    needs: tuple[Need, ...] = ()
    moved: Mapping[Value, Value] = field(default_factory=dict)

    def value(self, given: Value) -> Value:
        return self.moved.get(given, given)


def never(node: Node, need: Need) -> bool:
    # A need without a node is not asked about.
    assert node.op
    return False


def guarded(
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    *needs: Need,
    checks: Callable[[Node, Need], bool] = never,
) -> Guarding:
    graph = Graph([*inputs], [*outputs])
    return guarding(graph, Claimed(graph, needs), checks)


def ends(guards: Sequence[Guard]) -> list[Any]:
    return [guard.intervals for guard in guards]


def test_first_guard_on_an_input_serves_those_that_ask_for_no_more() -> None:
    ids = ints(2)
    found = guarded([ids], [taken(TABLE, ids), taken(WIDE, ids), taken(NARROW, ids)])
    assert ends(found.entry) == [FOUR, ((-2, 1),)]
    assert (found.constants, found.computed, found.boundaries) == ((), (), frozenset())


def test_one_guard_serves_all_views_of_the_same_elements() -> None:
    ids, other = ints(2, 3), ints(2, name="other")
    uses = [taken(WIDE, ids), taken(TABLE, other), taken(WIDE, reshape(turned(ids), shape=(6,)))]
    assert len(guarded([ids, other], uses).entry) == 2
    assert len(guarded([ids, other], uses[::-1]).entry) == 2


def test_row_of_an_input_is_checked_alone() -> None:
    pairs = ints(2, 3, name="pairs")
    (guard,) = guarded([pairs], [taken(TABLE, taken(pairs, np.array(1)))]).entry
    assert guard.view == (("take", 1, 0),)


def test_guard_that_may_ask_nothing_serves_no_other() -> None:
    ids, x = ints(1), floats(N)
    repeated = taken(TABLE, broadcast_to(ids, shape=(N,)))
    assert [guard.shape for guard in guarded([ids, x], [repeated, taken(TABLE, ids)]).entry] == [
        (N,), (1,),
    ]  # fmt: skip


def test_places_of_elements_matter_for_some_guards_alone() -> None:
    pairs, ids = ints(2, 3, name="pairs"), ints(2, 3)
    found = guarded([pairs, ids], [ops.gather_nd(TABLE, turned(pairs)), taken(TABLE, turned(ids))])
    assert [[step[0] for step in guard.view] for guard in found.entry] == [["transpose"], []]
    # Turned around, what was in order is not.
    order = needed(flipped(ids), rule="ordered")
    found = guarded([ids], [taken(TABLE, ids)], order)
    assert found.computed == (order,)
    assert ends(found.entry) == [FOUR]


def test_what_composites_required_is_checked_first() -> None:
    ids = ints(2)
    first = needed(ids, *FOUR)
    found = guarded([ids], [taken(TABLE, ids)], first)
    assert [guard.label for guard in found.entry] == ["composite"]


def test_input_is_checked_as_it_was_given() -> None:
    """The engine's graph may have narrowed it."""
    ids = ints(2)
    used, small = computed(ids), narrowed(ids)
    given = Graph([ids], [taken(TABLE, ids), taken(NARROW, used)])
    claimed = Graph([ids], [taken(TABLE, small), taken(NARROW, computed(small))])
    moved = {ids: small, used: node_of(claimed.outputs[1]).operands[1]}
    found = guarding(given, Claimed(claimed, moved=moved), never)
    assert [(guard.intervals, guard.view) for guard in found.entry] == [(FOUR, ())]
    # What is computed is still to be checked.
    assert [need.value for need in found.computed] == [moved[used]]


def test_engine_that_checks_is_left_to_it_and_vouches_for_no_other() -> None:
    ids = ints(2)
    used = computed(ids)
    first, second = taken(TABLE, used), taken(TABLE, used)
    found = guarded([ids], [first, second], checks=lambda node, need: node is first.node)
    assert [need.node for need in found.computed] == [second.node]
    assert found.boundaries == {used}


def test_composite_without_a_node_is_checked_between_regions() -> None:
    ids = ints(2)
    used = computed(ids)
    first = needed(used, *FOUR)
    found = guarded([ids], [taken(TABLE, used)], first)
    # Once, before any node uses it.
    assert found.computed == (first,)


def masked(x: Value, name: str) -> Value:
    """Choose rows; how many, only the run knows."""
    made: Value = ops.boolean_mask(x, bools(*x.tensor.shape[:1], name=name))
    return made


def inputs_of(*outputs: Value) -> list[Value]:
    found: dict[Value, None] = {}
    waiting = [*outputs]
    while waiting:
        value = waiting.pop()
        if value.node is not None:
            waiting.extend(value.node.operands)
        elif value.constant is None:
            found[value] = None
    return [*found]


def test_check_waits_for_values_that_tell_its_sizes() -> None:
    table, ids = masked(floats(N, 3), "rows"), ints(2)
    uses = [taken(table, ids), taken(table, ids)]
    found = guarded(inputs_of(*uses), uses)
    # Each on its own: only where the table exists, its size is known.
    assert [need.node for need in found.computed] == [use.node for use in uses]
    assert found.boundaries == {table, ids}
    assert found.entry == ()


def test_check_waits_for_no_size_that_the_inputs_tell() -> None:
    x, ids = floats(N, 3), ints(2)
    table, used = ops.multiply(x, 2.0), computed(ids)
    uses = [taken(table, used), taken(table, used)]
    found = guarded([x, ids], uses)
    assert [need.node for need in found.computed] == [uses[0].node]
    assert found.boundaries == {used}


def test_index_that_tells_its_own_size_is_checked_once() -> None:
    ids = masked(ints(N), "places")
    uses = [taken(TABLE, ids), taken(TABLE, ids)]
    found = guarded(inputs_of(*uses), uses)
    assert [need.node for need in found.computed] == [uses[0].node]
    assert found.boundaries == {ids}


def test_index_and_table_may_tell_a_size_each() -> None:
    ids, table = masked(computed(ints(N)), "places"), masked(floats(N, 3), "rows")
    uses = [taken(table, ids), taken(table, ids)]
    found = guarded(inputs_of(*uses), uses)
    assert len(found.computed) == 2
    assert found.boundaries == {ids, table}


def test_constant_is_kept_for_a_size_that_only_the_run_knows() -> None:
    table, places = masked(floats(N, 3), "rows"), constant(np.array([0, 1]))
    use = taken(table, places)
    found = guarded(inputs_of(use), [use])
    assert found.constants == (places,)
    assert len(found.computed) == 1


def test_node_is_declined_if_nothing_tells_a_size() -> None:
    ids = ints(2)
    used = computed(ids)
    use = taken(TABLE, used)
    lost = needed(used, (M, 3))
    assert guarded([ids], [use], lost).declined == frozenset()
    named = needed(used, (M, 3), node=use.node)
    found = guarded([ids], [use], named)
    assert found.declined == {use.node}
    # It proves nothing, either.
    assert [need.intervals for need in found.computed] == [FOUR]
    half_told = needed(used, (0, M + N), node=taken(floats(N, 3), used).node)
    assert guarded([ids], [use], half_told).declined == {half_told.node}


def test_constants_come_behind_the_inputs_and_once_each() -> None:
    x, y = floats(N), floats(M, name="y")
    first, second = constant(np.array([0, 1])), constant(np.array([-1]))
    uses = [taken(x, first), taken(y, first), taken(x, second)]
    found = guarded([x, y], uses)
    assert found.constants == (first, second)
    assert [guard.place for guard in found.entry] == [2, 2, 3]


def test_inputs_are_checked_without_a_plan() -> None:
    x, ids, free = floats(N, 3), ints(2), floats(2, name="free")
    graph = Graph([x, ids, free], [taken(x, ids), taken(x, np.array([1])), free])
    arrays: list[Any] = [TABLE, np.array([3, -4]), np.zeros(2, np.float32)]
    admitted = checked_inputs(graph, arrays)
    np.testing.assert_array_equal(admitted[1], arrays[1])
    assert [own is array for own, array in zip(admitted, arrays, strict=True)] == [
        True, False, True,
    ]  # fmt: skip
    for wrong in ([TABLE, np.array([4, 0]), arrays[2]], [TABLE[:1], np.array([0, 0]), arrays[2]]):
        with pytest.raises(CheckError):
            checked_inputs(graph, wrong)
