"""Which integers are only indices, and between which numbers integers lie."""

import numpy as np
import pytest

from fusewire.dtypes import bool_, float32, int32, int64
from fusewire.facts.ranges import ranges
from fusewire.facts.roles import roles
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.control import cond, scan, while_
from fusewire.ops.conversion import cast
from fusewire.ops.creation import iota
from fusewire.ops.dynamic import dynamic_reshape
from fusewire.ops.elementwise import (
    add,
    clip,
    floor_divide,
    maximum,
    multiply,
    remainder,
    subtract,
)
from fusewire.ops.indexing import gather
from fusewire.ops.logic import equal, less
from fusewire.ops.movement import concat, reshape
from fusewire.ops.ranges import MOST, Range
from fusewire.ops.reduction import argmax, reduce_sum
from fusewire.ops.shape import shape_of
from fusewire.ops.slicing import slice_axis
from fusewire.ops.subgraph import FLAG, INDEX, subgraph

N = symbol("n")


def value(name: str, *shape: int, dtype: object = int64) -> Value:
    return Value(TensorType(dtype, shape), name)  # type: ignore[arg-type] # dtypes of ours


def test_operand_that_is_an_index_is_one() -> None:
    table, ids = value("table", 9, 4, dtype=float32), value("ids", 3)
    found = roles(Graph([table, ids], [gather(table, ids, axis=0)]))
    assert found[ids] == "index"
    assert found[table] == "data"


def test_value_that_leaves_the_graph_is_data() -> None:
    table, ids = value("table", 9, 4, dtype=float32), value("ids", 3)
    found = roles(Graph([table, ids], [gather(table, ids, axis=0), ids]))
    assert found[ids] == "data"


def test_comparison_and_conversion_to_floats_are_uses_as_data() -> None:
    ids = value("ids", 3)
    for made in (equal(ids, 0), cast(ids, dtype=float32)):
        assert roles(Graph([ids], [made]))[ids] == "data"


def test_movement_and_arithmetic_lead_on_to_indices() -> None:
    table, ids = value("table", 9, 4, dtype=float32), value("ids", 3)
    moved = reshape(concat(add(ids, 1), ids, axis=0), shape=(2, 3))
    found = roles(Graph([table, ids], [gather(table, moved, axis=0)]))
    assert found[ids] == found[moved] == "index"


def test_product_that_may_overflow_is_no_index_where_its_upper_bits_count() -> None:
    table, ids = value("table", 9, 4, dtype=float32), value("ids", 3)
    hashed = remainder(multiply(ids, 2654435761), 9)
    found = roles(Graph([table, ids], [gather(table, hashed, axis=0)]))
    assert found[hashed] == "index"
    assert hashed.node is not None
    product = hashed.node.operands[0]
    assert found[product] == "data"
    assert found[ids] == "data"


def test_shape_arithmetic_is_an_index_also_through_products() -> None:
    x = Value(TensorType(float32, (N, 4)), "x")
    sizes = shape_of(x)
    half = floor_divide(multiply(slice_axis(sizes, 0, np.s_[0:1]), 4), 2)
    shape = concat(half, np.array([2]), axis=0)
    found = roles(Graph([x], [dynamic_reshape(x, shape, dims=(N * 2, 2))]))
    assert {found[sizes], found[half], found[shape]} == {"index"}


def test_branch_that_uses_it_as_data_makes_an_operand_data() -> None:
    flag, table, ids = value("flag", dtype=bool_), value("t", 9, dtype=float32), value("ids", 3)
    types = table.type, ids.type
    taken = subgraph(lambda t, i: [gather(t, i, axis=0)], *types)
    other = subgraph(lambda t, i: [cast(i, dtype=float32)], *types)
    for otherwise, expected in ((taken, "index"), (other, "data")):
        (made,) = cond(flag, table, ids, then=taken, otherwise=otherwise)
        assert roles(Graph([flag, table, ids], [made]))[ids] == expected


def test_loop_carries_an_index_only_while_every_run_does() -> None:
    table, at = value("t", 9, dtype=float32), value("at")
    row = TensorType(float32, ())

    def run(counts: bool) -> str:
        body = subgraph(
            lambda i, x, t: [
                add(i, 1) if counts else cast(cast(i, dtype=float32), dtype=int64),
                gather(t, i, axis=0),
            ],
            INDEX,
            row,
            table.type,
        )
        carried = value("x", dtype=float32)
        test = subgraph(lambda i, x, t: [less(x, 1.0)], INDEX, row, table.type, name="condition")
        made = while_(at, carried, table, condition=test, body=body, carries=2)
        return roles(Graph([table, at, carried], [made[1]]))[at]

    assert run(counts=True) == "index"
    assert run(counts=False) == "data"


def test_rows_of_a_scan_are_indices_where_the_body_says_so() -> None:
    table, ids, start = value("t", 9, dtype=float32), value("ids", 5), value("s", dtype=float32)
    body = subgraph(
        lambda x, i, t: [add(x, gather(t, i, axis=0))],
        start.type,
        TensorType(int64, ()),
        table.type,
    )
    (made,) = scan(start, ids, table, body=body, carries=1, scans=1)
    assert roles(Graph([table, ids, start], [made]))[ids] == "index"


def test_condition_of_a_loop_carries_data() -> None:
    types = (INDEX,)
    test = subgraph(lambda i: [less(i, 5)], *types, name="condition")
    body = subgraph(lambda i: [add(i, 1)], *types)
    at = value("at")
    (made,) = while_(at, condition=test, body=body, carries=1)
    found = roles(Graph([at], [made]))
    assert found[at] == "data"
    assert FLAG.dtype is bool_


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: argmax(x, axis=1), Range(0, 3, True)),
        (lambda x: shape_of(x), Range(0, 4, True)),
        (lambda x: iota.new(shape=(7,), axis=0), Range(0, 6, True)),
        (lambda x: subtract(iota.new(shape=(7,), axis=0), 2), Range(-2, 4)),
        (lambda x: cast(less(x, 0.0), dtype=int64), Range(0, 1)),
        (lambda x: reduce_sum(cast(less(x, 0.0), dtype=int64)), Range(0, 12)),
        (lambda x: maximum(argmax(x, axis=1), -5), Range(0, 3)),
        (lambda x: remainder(cast(x, dtype=int64), 10), Range(0, 9, True)),
    ],
)
def test_ranges_follow_from_sizes_and_constants(make: object, expected: Range) -> None:
    x = value("x", 3, 4, dtype=float32)
    made = make(x)  # type: ignore[operator] # a function of the table above
    assert ranges(Graph([x], [made]))[made] == expected


def test_numbers_that_are_given_may_be_any_of_their_dtype() -> None:
    x, y = value("x", 3), value("y", 3, dtype=int32)
    made = add(x, 1)
    found = ranges(Graph([x, y], [made]))
    assert not found[made].fits_int32
    assert found[y] == Range(-MOST - 1, MOST)


def test_arithmetic_that_wraps_around_may_give_any_number() -> None:
    x = value("x", 3, dtype=int32)
    made = add(x, 1)
    assert ranges(Graph([x], [made]))[made] == Range(-MOST - 1, MOST)


def test_what_enters_can_be_taken_to_be_small() -> None:
    x = value("x", 3)
    made = add(multiply(x, 2), 1)
    found = ranges(Graph([x], [made]), Range(0, 100))
    assert found[made] == Range(1, 201)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, None, Range(0, 50)), (None, 3, Range(-50, 3)), (0, 3, Range(0, 3))],
)
def test_clip_with_one_bound_limits_one_side(
    low: int | None, high: int | None, expected: Range
) -> None:
    x = value("x", 4)
    limited = clip(x, low, high)
    assert ranges(Graph([x], [limited]), Range(-50, 50))[limited] == expected


def test_only_integers_have_ranges() -> None:
    x = value("x", 3, dtype=float32)
    made = add(x, np.float32(2.7))
    counted = cast(made, dtype=int64)
    found = ranges(Graph([x], [counted]))
    assert set(found) == {counted}
    assert found[counted] == Range(-(2**63), 2**63 - 1)
