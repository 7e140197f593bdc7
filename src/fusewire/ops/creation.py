"""Making tensors from attributes, or from one scalar."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import REAL, DType, int64
from fusewire.ir.dims import Shape
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Family
from fusewire.ops.inference import axis_of, require
from fusewire.ops.sample import sample

FAMILY = Family("creation")
NO_OPERANDS = dict.fromkeys(("empty", "scalar", "broadcast"), "has no operands")


def _iota_type(*, shape: Shape, axis: int, dtype: DType = int64) -> TensorType:
    axis_of(axis, len(shape))
    require(dtype in REAL, f"counting needs ints or floats, found {dtype}.")
    return TensorType(dtype, shape)


def _iota(shape: tuple[int, ...], axis: int, dtype: DType) -> Array:
    axis %= len(shape)
    counted = np.arange(shape[axis]).astype(dtype.numpy)
    return np.broadcast_to(counted.reshape((-1,) + (1,) * (len(shape) - 1 - axis)), shape)


iota = FAMILY.declare(
    "iota",
    _iota_type,
    doc="Count along an axis: each element is its place on it. ``iota.new(...)`` makes a node.",
    reference=_iota,
    dtypes=REAL,
    flops=0,
    lacks=NO_OPERANDS,
    samples=lambda: [
        sample(shape=(2, 5), axis=1),
        sample(shape=(3, 2), axis=-2, dtype="float16"),
        sample(shape=(0, 2), axis=1, dtype="uint8"),
    ],
)
