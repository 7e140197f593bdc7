"""Shapes as values."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import int64
from fusewire.ir.dims import size
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges
from fusewire.ops.declare import Family, Kind, Trait
from fusewire.ops.movement import ANY, reshape
from fusewire.ops.reduction import reduce_prod
from fusewire.ops.sample import draw, sample
from fusewire.ops.slicing import slice_axis

FAMILY = Family("shape")


shape_of = FAMILY.declare(
    "shape_of",
    lambda x: TensorType(int64, (x.rank,)),
    doc="List the dims.",
    reference=lambda x: np.array(x.shape, np.int64),
    dtypes=ANY,
    flops=0,
    traits=(Trait.SHAPE,),
    kind=Kind.FREE,
    value_range=ranges.shapes,
    symbolic=lambda dims: np.array(dims, object),
    samples=lambda: [sample(draw(2, 3)), sample(draw()), sample(draw(0, 4))],
)
size_of = FAMILY.declare(
    "size_of",
    lambda x: TensorType(int64, ()),
    doc="Count the elements.",
    expand=lambda x: reduce_prod(shape_of(x)),
    dtypes=ANY,
    traits=(Trait.SHAPE,),
    value_range=ranges.counts,
    symbolic=size,
    samples=lambda: [sample(draw(2, 3)), sample(draw()), sample(draw(0, 4))],
)


def dim_of(x: Value, axis: int) -> Value:
    """Give the size of an axis as an int64 scalar."""
    return reshape(slice_axis(shape_of(x), 0, slice(axis, axis + 1)), shape=())
