"""Change the dtype: by value (cast) or by keeping the bits (bitcast)."""

from __future__ import annotations

import re

import numpy as np

from fusewire.dtypes import (
    INTEGERS,
    NARROW,
    STORED,
    DType,
    bfloat16,
    bool_,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    string,
    uint8,
)
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.ops import ranges, symbolic
from fusewire.ops.declare import CostClass, Family, Trait
from fusewire.ops.inference import require
from fusewire.ops.sample import Sample, bad, draw, given, sample

FAMILY = Family("conversion")

_SMALL = tuple(d for d in NARROW if d.is_float)
_COARSE = (float16, bfloat16, *(d for d in _SMALL if d is not float8_e8m0fnu))


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
    found = np.where(above, held(high), np.where(below, held(low), found))
    return np.asarray(found).astype(dtype.numpy)


def _parsed(x: Array, dtype: DType) -> Array:
    """Read numbers from text; as integers only where the text is one and integers are wanted."""
    if dtype.is_integer and all(re.fullmatch(r"\s*[+-]?\d+\s*", text) for text in x.flat):
        low, high = dtype.range
        whole = [min(max(int(text), low), high) for text in x.flat]
        return np.array(whole, dtype.numpy).reshape(x.shape)
    return x.astype(np.complex128 if dtype.is_complex else np.float64)


def _cast(x: Array, dtype: DType, saturate: bool) -> Array:
    if dtype is string:
        return np.array([str(item) for item in x.reshape(-1)], object).reshape(x.shape)
    if x.dtype == object:
        x = _parsed(x, dtype)
    if dtype is bool_:
        return np.asarray(x != 0)
    if x.dtype.kind == "c" and not dtype.is_complex:
        x = x.real
    if dtype.is_integer and x.dtype.kind == "f":
        return _to_integers(x, dtype)
    if dtype.is_inexact and not dtype.is_narrow:
        # The interpreter rounds to the dtype; rounding here would round twice.
        return x
    if saturate:
        x = np.clip(x, *dtype.range)
    return x.astype(dtype.numpy)


def _cast_samples() -> list[Sample]:
    fine = tuple(d for d in STORED if d not in _COARSE)
    halves = given([-1.5, -0.5, 0.5, 1.5])
    extremes = given([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.7])
    texts = given(["1", "-2.5", "0.125", "nan"], string)
    return [
        *(sample(draw(3, 5), dtype=d, only=fine) for d in STORED),
        # What holds few digits is given, so that none lies where rounding jumps.
        *(sample(halves, dtype=d, only=_COARSE) for d in STORED if d is not float8_e8m0fnu),
        *(sample(extremes, dtype=d, only=(float32, float64)) for d in (*INTEGERS, *NARROW, bool_)),
        *(sample(extremes, dtype=d, saturate=True, only=(float32, float64)) for d in _SMALL),
        sample(given([300, -300, 70000]), dtype=uint8, only=(int32, int64)),
        *(sample(texts, dtype=d, only=(string,)) for d in (float32, float64)),
        *(sample(draw(4), dtype=string, only=(d,)) for d in (*INTEGERS, float64)),
        sample(given([1.0, -2.5, np.inf]), dtype=string, only=(float32,)),
        sample(draw(), dtype=float16, only=fine),
        sample(draw(0, 3), dtype=int8),
    ]


cast = FAMILY.declare(
    "cast",
    _cast_type,
    doc=(
        "Convert values: floats to integers toward 0, NaN to 0, out of range to the bound; "
        "integers to narrower ones by dropping upper bits."
    ),
    reference=_cast,
    dtypes=(*STORED, string),
    traits=(Trait.ELEMENTWISE, Trait.DISCONTINUOUS, Trait.COUNTING),
    cost=CostClass.LIGHT,
    value_range=ranges.converted,
    symbolic=symbolic.cast,
    samples=_cast_samples,
    refuses=lambda: [
        bad(
            "saturate is for floats of 8 bits or fewer, found bool;",
            "[3, 5]",
            dtype="bool",
            saturate=True,
        ),
        bad(
            "saturate is for floats of 8 bits or fewer, found float16;",
            "[3, 5]",
            dtype="float16",
            saturate=True,
        ),
    ],
    flops=1,
)


def _bitcast_type(x: TensorType, *, dtype: DType) -> TensorType:
    require(
        dtype.bits == x.dtype.bits and dtype.bits >= 8 and not dtype.is_complex,
        f"bits can be read as another dtype of the same width of 8 or more, found {x.dtype} "
        f"({x.dtype.bits} bits) and {dtype} ({dtype.bits} bits).",
    )
    return x.with_dtype(dtype)


bitcast = FAMILY.declare(
    "bitcast",
    _bitcast_type,
    doc="Read the same bits as another dtype of the same width.",
    reference=lambda x, dtype: x.view(dtype.numpy),
    dtypes=[d for d in STORED if d.bits >= 8 and not d.is_complex],
    traits=(Trait.ELEMENTWISE, Trait.BITS),
    samples=lambda: [
        sample(draw(*shape), dtype=to, only=(of,))
        for of in STORED
        for to in STORED
        for shape in ((2, 3), (), (0, 2))
        if of.bits == to.bits >= 8
        and "uint" in (of.kind, to.kind)
        and not (of.is_complex or to.is_complex)
    ],
    refuses=lambda: [
        bad(
            "bits can be read as another dtype of the same width of 8 or", "int8[]", dtype="uint16"
        ),
        bad(
            "bits can be read as another dtype of the same width of 8 or",
            "float64[]",
            dtype="complex64",
        ),
    ],
    flops=0,
)
