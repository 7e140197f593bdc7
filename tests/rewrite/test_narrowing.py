"""Which 64-bit integers fit in 32, and what must be checked for that."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import DType, bool_, float32, int32, int64, uint32
from fusewire.ir.dims import Dim, dim_max, symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.control import cond, loop
from fusewire.ops.subgraph import FLAG, INDEX, result_types, subgraph
from fusewire.ops.table import all_ops
from fusewire.rewrite.narrowing import Narrowing
from fusewire.testing.conformance import cases

N, M = symbol("n"), symbol("m")


def value(name: str, *shape: Dim, dtype: DType = int64) -> Value:
    return Value(TensorType(dtype, shape), name)


def test_size_fits_where_it_is_checked() -> None:
    x = value("x", N, 4, dtype=float32)
    sizes = ops.shape_of(x)
    narrowing = Narrowing(Graph([x], [sizes]))
    assert narrowing.is_narrow(sizes)
    assert N in narrowing.sizes


def test_product_of_sizes_is_checked_as_well() -> None:
    x, y = value("x", N, dtype=float32), value("y", M, dtype=float32)
    product = ops.multiply(ops.shape_of(x), ops.shape_of(y))
    narrowing = Narrowing(Graph([x, y], [product]))
    assert narrowing.is_narrow(product)
    assert N * M in narrowing.sizes


def size_of(x: Value) -> Any:
    return ops.reshape(ops.shape_of(x), shape=())


def test_list_of_sizes_with_a_number_that_needs_more_keeps_its_bits() -> None:
    x = value("x", N, dtype=float32)
    mixed = ops.concat(ops.shape_of(x), np.array([2**40]), axis=0)
    far = ops.multiply(ops.concat(ops.shape_of(x), np.array([7]), axis=0), np.array([1, 2**31 - 1]))
    narrowing = Narrowing(Graph([x], [mixed, far]))
    assert not narrowing.is_narrow(mixed)
    assert not narrowing.is_narrow(far)


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: ops.multiply(n, np.array(2654435761)),
        lambda n: ops.multiply(ops.multiply(n, np.array(2**30)), np.array(8)),
        lambda n: ops.subtract(n, np.array(2**33)),
        lambda n: ops.multiply(ops.subtract(n, np.array(5)), np.array(2**20)),
        lambda n: ops.maximum(n, np.array(2**35)),
        lambda n: ops.reduce_prod(
            ops.concat(ops.reshape(n, shape=(1,)), np.array([2**31]), axis=0)
        ),
    ],
)
def test_number_that_is_no_size_keeps_its_bits_and_declines_no_call(
    compute: Callable[[Value], Value],
) -> None:
    x = value("x", N, dtype=float32)
    far = compute(size_of(x))
    narrowing = Narrowing(Graph([x], [far]))
    assert not narrowing.is_narrow(far)
    assert not {N * 2654435761, N - 2**33, dim_max(N, 2**35), N * 2**31} & {*narrowing.sizes}


def test_int32_that_wraps_on_both_sides_declines_no_call() -> None:
    x = value("x", N, dtype=float32)
    far = ops.multiply(ops.cast(size_of(x), dtype=int32), np.array(2**20, np.int32))
    assert Narrowing(Graph([x], [ops.cast(far, dtype=int64)])).sizes == (N,)


def test_number_made_of_int32_that_may_wrap_is_checked_on_the_way() -> None:
    x = value("x", N, dtype=float32)
    far = ops.multiply(ops.cast(size_of(x), dtype=int32), np.array(2**20, np.int32))
    half = ops.floor_divide(ops.cast(far, dtype=int64), np.array(2))
    made = ops.add(half, ops.cast(far, dtype=int64))
    narrowing = Narrowing(Graph([x], [made]))
    assert not narrowing.is_narrow(made) or N * 2**20 in narrowing.sizes


def test_size_in_a_body_is_checked_as_a_size_of_what_enters_the_graph() -> None:
    flag, x = value("flag", dtype=bool_), value("x", N, 2, dtype=float32)
    of = TensorType(float32, (symbol("k"), 2))
    body = subgraph(lambda x: [ops.shape_of(ops.concat(x, x, x, axis=0))], of)
    part = subgraph(
        lambda x: [ops.floor_divide(ops.multiply(ops.shape_of(x), np.array(4)), np.array(3))], of
    )
    (made,) = cond(flag, x, then=body, otherwise=part)
    narrowing = Narrowing(Graph([flag, x], [made]))
    assert {N, N * 3, N * 4} <= {*narrowing.sizes}
    assert all(narrowing.is_narrow(v) for graph in (body, part) for v in graph.outputs)


def test_size_that_a_round_changes_is_not_the_one_that_entered() -> None:
    trips, x = value("trips"), value("x", N, dtype=float32)
    # Called as a size around the loop, and another.
    types = INDEX, FLAG, TensorType(float32, (N,)), TensorType(float32, (M,))
    counted = subgraph(
        lambda i, go, x, y: [
            go,
            ops.concat(x, y, axis=0),
            ops.multiply(ops.shape_of(x), np.array(4)),
        ],
        *types,
    )
    kinds = result_types(loop, [INDEX, None, x.type, x.type], body=counted, carries=1)
    made = loop(trips, None, x, x, body=counted, carries=1, types=kinds)
    narrowing = Narrowing(Graph([trips, x], list(made)))
    assert N * 4 not in narrowing.sizes
    assert not narrowing.is_narrow(counted.outputs[2])


def test_what_is_divided_on_the_way_to_a_size_is_checked() -> None:
    table, x = value("t", 64, dtype=float32), value("x", N, dtype=float32)
    far = N * 2**20
    made = ops.slice(table, starts=(0,), limits=(far // 3,), strides=(1,))
    assert far in Narrowing(Graph([table, x], [made])).sizes


def test_index_whose_way_there_needs_more_keeps_its_bits() -> None:
    table, x = value("t", 9, dtype=float32), value("x", 3, dtype=uint32)
    whole = ops.cast(x, dtype=int64)
    index = ops.minimum(whole, np.array(8, np.int64))
    narrowing = Narrowing(Graph([table, x], [ops.gather(table, index, axis=0)]))
    assert not narrowing.is_narrow(whole)
    assert narrowing.is_narrow(index)


def test_input_that_is_an_index_is_checked_and_another_keeps_its_bits() -> None:
    table, x, y = value("t", 9, dtype=float32), value("x", 3), value("y", 3)
    made = [ops.gather(table, x, axis=0), ops.add(y, y)]
    narrowing = Narrowing(Graph([table, x, y], made))
    assert narrowing.entering == {x}
    assert not narrowing.is_narrow(y)
    assert Narrowing(Graph([table, x, y], made), guarded=True).entering == {x, y}


def test_nodes_that_were_fused_are_told_of_nothing() -> None:
    case, *_ = cases([all_ops()["fused"]])
    graph, _ = case.make()
    assert not Narrowing(graph).entering
