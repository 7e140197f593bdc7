"""Changing the dtype: by value (cast) or by keeping the bits (bitcast)."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import ALL, STORED, DType, bool_, string
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Family, Trait, ulps
from fusewire.ops.inference import require
from fusewire.ops.sample import Sample, draw, sample

FAMILY = Family("conversion")


def _cast_type(x: TensorType, *, dtype: DType, saturate: bool = False) -> TensorType:
    require(
        not saturate or (dtype.is_float and dtype.is_narrow),
        f"saturate is for floats of 8 bits or fewer, found {dtype}; integers always saturate, "
        "other floats can be clipped first.",
    )
    return x.with_dtype(dtype)


def _to_integers(x: Array, dtype: DType) -> Array:
    low, high = dtype.range
    above, below = x >= float(high) + 1.0, x < float(low)
    # NumPy leaves NaN and what is out of range undefined; here they are 0 and the nearest bound.
    inside = np.where(above | below | np.isnan(x), x.dtype.type(0), x)
    held = np.int64 if dtype.kind == "int" else np.uint64
    found = np.trunc(inside).astype(held)
    return np.where(above, held(high), np.where(below, held(low), found)).astype(dtype.numpy)


def _cast(x: Array, dtype: DType, saturate: bool) -> Array:
    if dtype is string:
        return np.array([str(item) for item in x.reshape(-1)], object).reshape(x.shape)
    if x.dtype == object:
        return x.astype(np.float64).astype(dtype.numpy)
    if x.dtype.kind == "c" and not dtype.is_complex:
        x = x.real
    if dtype is bool_:
        return np.asarray(x != 0)
    if dtype.is_integer and x.dtype.kind == "f":
        return _to_integers(x, dtype)
    if dtype.is_inexact and not dtype.is_narrow:
        # The interpreter rounds to the dtype; rounding here would round twice.
        return x
    if saturate:
        x = np.clip(x, *dtype.range)
    return x.astype(dtype.numpy)


def _cast_samples() -> list[Sample]:
    targets = [d for d in ALL if d is not string]
    return [
        *(sample(draw(3, 5), dtype=d, only=STORED) for d in targets),
        sample(draw(), dtype="float16", only=STORED),
        sample(draw(0, 3), dtype="int8"),
    ]


cast = FAMILY.declare(
    "cast", _cast_type,
    doc="Convert values: floats to integers toward 0, NaN to 0, out of range to the bound.",
    reference=_cast, dtypes=(*STORED, string), traits=(Trait.ELEMENTWISE, Trait.DISCONTINUOUS),
    tolerance=ulps(1), samples=_cast_samples, flops=1,
)  # fmt: skip
