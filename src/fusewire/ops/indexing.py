"""Reading and writing at places that operands tell. Negative indices count from the end."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import INTEGERS
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Family
from fusewire.ops.inference import axis_of, require
from fusewire.ops.movement import movement
from fusewire.ops.sample import draw, given, sample

FAMILY = Family("indexing")


def require_indices(indices: TensorType) -> None:
    """Refuse indices that are not ints."""
    require(indices.dtype in INTEGERS, f"indices must be ints, found {indices.dtype}.")


def _gather_type(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    require_indices(indices)
    axis = axis_of(axis, x.rank)
    return x.with_shape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


gather = movement(
    FAMILY,
    "gather",
    _gather_type,
    doc="Take slices of an axis by their places; the axes of the indices take its place.",
    reference=lambda x, indices, axis: np.take(x, indices.astype(np.int64), axis),
    index_operands=("indices",),
    lacks={"scalar": "a scalar has no axis to index"},
    samples=lambda: [
        sample(draw(4, 3), given([[0, -1], [3, 2]], "int64"), axis=0),
        sample(draw(4, 3), given(1, "int32"), axis=-1),
        sample(draw(2, 3), draw(0, dtype_="int64"), axis=1),
    ],
)
