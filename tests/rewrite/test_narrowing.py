"""Which 64-bit integers fit in 32, and what must be checked for that."""

import numpy as np

from fusewire import ops
from fusewire.dtypes import DType, float32, int64, uint32
from fusewire.ir.dims import Dim, symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
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
