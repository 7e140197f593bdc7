"""Sort, select the largest, find distinct elements, search sorted rows.

Sorting is stable: equal elements keep their order, also when descending. NaN is the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.dtypes import INTEGERS, NARROW, REAL, bool_, int64, string
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges
from fusewire.ops.declare import EXACT, FRESH, Family, Kind, Op, Trait
from fusewire.ops.indexing import gather_elements
from fusewire.ops.inference import axis_of, require, same_dtype, within
from fusewire.ops.requires import up_to
from fusewire.ops.sample import Refuses, bad, draw, given, sample
from fusewire.ops.slicing import slice_

FAMILY = Family("sorting")
ORDERED = (bool_, *REAL, *NARROW)


def _sort_type(x: TensorType, *, axis: int = -1, descending: bool = False) -> TensorType:
    axis_of(axis, x.rank)
    return x


def _argsort_type(x: TensorType, *, axis: int = -1, descending: bool = False) -> TensorType:
    return _sort_type(x, axis=axis).with_dtype(int64)


def _sort(x: Array, axis: int, descending: bool) -> Array:
    ordered = np.sort(x, axis, kind="stable")
    return np.flip(ordered, axis) if descending else ordered


def _argsort(x: Array, axis: int, descending: bool) -> Array:
    if not descending:
        return np.argsort(x, axis, kind="stable")
    # Reversed twice, so that equal elements keep their order.
    backwards = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis)


def _declare(
    name: str,
    rule: Any,
    reference: Any,
    doc: str,
    *traits: Trait,
    value_range: ranges.ValueRange,
    refuses: Refuses | None = None,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        reference=reference,
        dtypes=ORDERED,
        traits=traits,
        value_range=value_range,
        flops=16,
        steady=("x",),
        lacks={"scalar": "a scalar has no axis to sort along"},
        samples=lambda: [
            sample(draw(3, 5)),
            sample(draw(4, 2), axis=0, descending=True),
            sample(draw(0, 3), axis=1),
            sample(given([1.0, np.nan, -np.inf, 0.0, 1.0]), descending=True, only=REAL[:4]),
        ],
        refuses=refuses,
    )


sort = _declare(
    "sort",
    _sort_type,
    _sort,
    "Order the elements along an axis.",
    Trait.COUNTING,
    value_range=ranges.first_operand,
)
argsort = _declare(
    "argsort",
    _argsort_type,
    _argsort,
    "Find the indices that sort an axis.",
    Trait.DISCONTINUOUS,
    value_range=ranges.places_of_all,
    refuses=lambda: [bad("axis -1 is outside a tensor of rank 0", "[]")],
)


def _top_k_type(
    x: TensorType, *, k: Dim, axis: int = -1, largest: bool = True
) -> tuple[TensorType, ...]:
    axis = axis_of(axis, x.rank)
    require(within(k, x.shape[axis]), f"k must be at most {x.shape[axis]}, found {k}.")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return x.with_shape(shape), TensorType(int64, shape)


def _top_k(x: Value, k: Dim, axis: int, largest: bool) -> tuple[Value, ...]:
    axis = axis_of(axis, x.tensor.rank)
    order = argsort(x, axis=axis, descending=largest)
    shape = _top_k_type(x.tensor, k=k, axis=axis)[0].shape
    none, each = (0,) * len(shape), (1,) * len(shape)
    places = slice_(order, starts=none, limits=shape, strides=each)
    return gather_elements(x, places, axis=axis), places


top_k = FAMILY.declare(
    "top_k",
    _top_k_type,
    doc="Take the k largest or smallest along an axis, in order, and their indices.",
    expand=_top_k,
    dtypes=ORDERED,
    traits=(Trait.DISCONTINUOUS,),
    tolerance=EXACT,
    steady=("x",),
    lacks={"scalar": "a scalar has no axis to choose along"},
    value_range=ranges.values_and_places,
    samples=lambda: [
        sample(draw(3, 5), k=2),
        sample(draw(4, 3), k=3, axis=0, largest=False),
        sample(given([[3, 1, 3, 3]]), k=2),
        sample(draw(0, 3), k=1),
    ],
    refuses=lambda: [
        bad("k must be at most 1, found 2", "[1]", k=2),
        bad("axis -1 is outside a tensor of rank 0", "[]", k=2),
    ],
)


def _dynamic_type(
    x: TensorType, k: TensorType, *, axis: int = -1, largest: bool = True, count: Dim = FRESH
) -> tuple[TensorType, ...]:
    require(k.rank == 0 and k.dtype in INTEGERS, f"k must be an int scalar, found {k}.")
    axis = axis_of(axis, x.rank)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return x.with_shape(shape), TensorType(int64, shape)


def _dynamic(x: Array, k: Array, axis: int, largest: bool, count: int | None) -> tuple[Array, ...]:
    order = _argsort(x, axis, largest)
    places = np.take(order, np.arange(int(k)), axis)
    return np.take_along_axis(x, places, axis), places


dynamic_top_k = FAMILY.declare(
    "dynamic_top_k",
    _dynamic_type,
    doc="Take the largest or smallest, as many as an operand says, and their indices.",
    reference=_dynamic,
    dtypes=ORDERED,
    traits=(Trait.UNBACKED, Trait.DISCONTINUOUS),
    flops=16,
    index_operands=("k",),
    requires=(up_to("k", of="x", axis="axis"),),
    lacks={"scalar": "a scalar has no axis to choose along"},
    value_range=ranges.values_and_places,
    samples=lambda: [
        sample(draw(3, 5), given(2, "int64")),
        sample(draw(4, 3), given(3, "int64"), axis=0, largest=False),
        sample(draw(0, 3), given(1, "int32")),
    ],
    refuses=lambda: [
        bad("k must be an int scalar, found bool[]", "[3, 5]", "bool[]"),
        bad("axis -1 is outside a tensor of rank 0", "[]", "int64[]"),
    ],
)


def _unique_type(
    x: TensorType, *, axis: int | None = None, sorted: bool = True, count: Dim = FRESH
) -> tuple[TensorType, ...]:
    listed = TensorType(int64, (count,))
    if axis is None:
        return x.with_shape((count,)), listed, TensorType(int64, (x.size,)), listed
    axis = axis_of(axis, x.rank)
    kept = x.with_shape((*x.shape[:axis], count, *x.shape[axis + 1 :]))
    return kept, listed, TensorType(int64, (x.shape[axis],)), listed


def _unique(x: Array, axis: int | None, sorted: bool, count: int | None) -> tuple[Array, ...]:
    if axis is None:
        x, axis = x.reshape(-1), 0
    # Ranks order as the elements do, and np.unique takes rows of ints but not of strings.
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    wide = np.prod(x.shape[:axis] + x.shape[axis:][1:], dtype=np.int64)
    rows = np.moveaxis(ranks, axis, 0).reshape(x.shape[axis], wide)
    _, first, inverse, counts = np.unique(rows, True, True, True, axis=0)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return np.take(x, first, axis), first, inverse, counts


unique = FAMILY.declare(
    "unique",
    _unique_type,
    doc="Keep distinct elements (or slices), with first indices, inverse and counts.",
    reference=_unique,
    dtypes=(bool_, *REAL, string),
    traits=(Trait.UNBACKED, Trait.DISCONTINUOUS),
    flops=32,
    value_range=ranges.values_and_counts,
    samples=lambda: [
        sample(given([2, 1, 1, 3, 4, 3])),
        sample(given([2, 1, 1, 3, 4, 3]), sorted=False),
        sample(given([[1, 0, 0], [2, 3, 4], [1, 0, 0]]), axis=0),
        sample(given([[1, 0, 1], [2, 3, 2]]), axis=-1, sorted=False),
        sample(draw()),
        sample(draw(0)),
        sample(draw(3, 0), axis=0),
    ],
    refuses=lambda: [bad("axis 0 is outside a tensor of rank 0", "[]", axis=0)],
)


def _searchsorted_type(row: TensorType, x: TensorType, *, right: bool = False) -> TensorType:
    same_dtype(row, x)
    require(row.rank == 1, f"the sorted row must have rank 1, found {row}.")
    return x.with_dtype(int64)


searchsorted = FAMILY.declare(
    "searchsorted",
    _searchsorted_type,
    doc="Find where to insert elements into a sorted row, before or after equal ones.",
    reference=lambda row, x, right: np.searchsorted(row, x, "right" if right else "left"),
    dtypes=(bool_, *REAL),
    traits=(Trait.DISCONTINUOUS,),
    flops=16,
    lacks={"scalar": "the sorted row has an axis"},
    kind=Kind.WINDOW,
    value_range=ranges.counts,
    samples=lambda: [
        sample(given([0, 1, 1, 3]), given([[1, 2], [0, 4]])),
        sample(given([0, 1, 1, 3]), given([1, 3, 0]), right=True),
        sample(draw(0), draw(2)),
    ],
    refuses=lambda: [
        bad("operands must have one dtype, found bool and float32", "bool[0]", "[2]"),
        bad("the sorted row must have rank 1, found float32[]", "[]", "[2]"),
    ],
)
