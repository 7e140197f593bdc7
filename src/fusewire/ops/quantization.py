"""Numbers as small integers or floats with a scale, and arithmetic on those codes.

Codes are rounded half to even and saturate. Scales and zero points are given per tensor (rank
0), per index of an axis (rank 1), or per block of an axis (the rank of x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import FLOATS, DType, float32, int32, uint8
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, ceildiv
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.declare import CODES, Family, Trait
from fusewire.ops.elementwise import (
    add,
    divide,
    maximum,
    minimum,
    multiply,
    negative,
    round_,
    subtract,
)
from fusewire.ops.inference import axis_of, require, require_dims, same_dtype
from fusewire.ops.logic import equal, where
from fusewire.ops.movement import repeat, reshape
from fusewire.ops.reduction import narrowed, reduce_max, reduce_min, widened
from fusewire.ops.sample import Draw, Sample, bad, draw, given, sample
from fusewire.ops.slicing import slice_

FAMILY = Family("quantization")

CODE_INTEGERS = (
    dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16,
    dtypes.int4, dtypes.uint4, dtypes.int2, dtypes.uint2,
)  # fmt: skip
CODE_FLOATS = tuple(d for d in dtypes.NARROW if d.is_float and d is not dtypes.float8_e8m0fnu)
FLOAT_CODES = "codes that are floats have no zero point."
CODE_DTYPES = CODE_INTEGERS + CODE_FLOATS


def require_scales(
    x: TensorType, scale: TensorType, zero: TensorType | None, axis: int | None, block: int | None
) -> None:
    """Refuse scales and zero points that do not fit x."""
    if zero is not None:
        fits = zero.shape == scale.shape
        require(fits, f"zero_point needs the shape of scale, found {zero} and {scale}.")
    if axis is None:
        require(block is None, "a block needs an axis.")
        require(scale.rank == 0, f"without an axis the scale is a scalar, found {scale}.")
        return
    axis = axis_of(axis, x.rank)
    if block is None:
        require(scale.rank == 1, f"along an axis the scale has one axis, found {scale}.")
        require_dims(scale.shape[0], x.shape[axis], f"the scales and axis {axis} of x")
        return
    require(block > 0, f"a block has at least 1 element, found {block}.")
    require(scale.rank == x.rank, f"in blocks the scale has the rank of x, found {scale}.")
    for place, (dim, count) in enumerate(zip(x.shape, scale.shape, strict=True)):
        blocks = ceildiv(dim, block) if place == axis else dim
        require_dims(count, blocks, f"dims {place} of scale and of the blocks of x")


def spread_scale(scale: Value, x: TensorType, axis: int | None, block: int | None) -> Value:
    """Shape a scale or zero point so that it broadcasts to x."""
    if axis is None:
        return scale
    axis = axis_of(axis, x.rank)
    if block is None:
        shape: list[Dim] = [1] * x.rank
        shape[axis] = scale.tensor.shape[0]
        return reshape(scale, shape=tuple(shape))
    each = repeat(scale, count=block, axis=axis)
    if each.tensor.shape[axis] == x.shape[axis]:
        return each
    ends = tuple(x.shape[axis] if i == axis else d for i, d in enumerate(each.tensor.shape))
    return slice_(each, starts=(0,) * x.rank, limits=ends, strides=(1,) * x.rank)


def centred(x: Value, zero: Value | None) -> Value:
    """Subtract a zero point from codes, exactly, in int32."""
    codes = cast(x, dtype=int32)
    return codes if zero is None else subtract(codes, cast(zero, dtype=int32))


def encode(quotient: Value, zero: Value | None, of: DType) -> Value:
    """Round quotients to codes around a zero point."""
    if of.is_float:
        return cast(quotient, dtype=of, saturate=True)
    codes = round_(quotient)
    if zero is None:
        return cast(codes, dtype=of)
    low, high = (int(limit) for limit in of.range)
    # Clipped to where any zero point still saturates, so that the sum is exact in int32.
    near = cast(minimum(maximum(codes, float(low - high)), float(high - low)), dtype=int32)
    moved = add(near, cast(zero, dtype=int32))
    return cast(minimum(maximum(moved, low), high), dtype=of)


def _quantize_type(
    x: TensorType,
    scale: TensorType,
    zero_point: TensorType | None = None,
    *,
    dtype: DType,
    axis: int | None = None,
    block: int | None = None,
) -> TensorType:
    require(dtype in CODE_DTYPES, f"codes are small integers or floats, found {dtype}.")
    if x.dtype is not int32:
        same_dtype(x, scale)
    if zero_point is not None:
        require(zero_point.dtype is dtype, f"zero_point must be {dtype}, found {zero_point}.")
        require(dtype.is_integer, FLOAT_CODES)
    require_scales(x, scale, zero_point, axis, block)
    return x.with_dtype(dtype)


def _quantize(
    x: Value, scale: Value, zero_point: Value | None, dtype: DType, axis: Any, block: Any
) -> Value:
    scales = widened(spread_scale(scale, x.tensor, axis, block))
    numbers = cast(x, dtype=scales.tensor.dtype) if x.tensor.dtype is int32 else widened(x)
    zero = None if zero_point is None else spread_scale(zero_point, x.tensor, axis, block)
    return encode(divide(numbers, scales), zero, dtype)


def _scales(*shape: int, dtype_: str | None = None) -> Draw:
    return draw(*shape, low=0.25, high=1.0, dtype_=dtype_)


Drawing = Callable[..., Draw | None]


def _scaled(x: Drawing, scale: Drawing, zero: Drawing, **more: Any) -> list[Sample]:
    """Samples per tensor, axis and block."""
    return [
        sample(x(3, 4), scale(), None, **more),
        sample(x(2, 3, 4), scale(3), zero(3), axis=1, **more),
        sample(x(2, 6), scale(2, 2), zero(2, 2), axis=-1, block=3, **more),
        sample(x(5, 2), scale(3, 2), None, axis=0, block=2, **more),
        sample(x(), scale(), zero(), **more),
        sample(x(0, 4), scale(), zero(), **more),
    ]


def _quantize_samples() -> list[Sample]:
    ties = given([-300.0, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 300.0])
    numbers = draw(3, 4, low=-9.0, high=9.0)
    found = [sample(numbers, _scales(), draw(dtype_=of), dtype=of) for of in CODE_INTEGERS]
    found += [sample(numbers, _scales(), None, dtype=of) for of in CODE_FLOATS]
    drawn = partial(draw, low=-9.0, high=9.0)
    found += _scaled(drawn, _scales, partial(draw, dtype_="int8"), dtype="int8")
    found = [
        replace(s, only=FLOATS) for s in [*found, sample(ties, given(1.0), None, dtype="int8")]
    ]
    wide = draw(3, low=-900.0, high=900.0)
    return [*found, sample(wide, draw(dtype_="float32"), None, dtype="uint8", only=(int32,))]


quantize = FAMILY.declare(
    "quantize",
    _quantize_type,
    doc="Divide by the scale, round to codes, add the zero point, saturate.",
    expand=_quantize,
    dtypes=(*FLOATS, int32),
    traits=(Trait.DISCONTINUOUS,),
    tolerance=CODES,
    samples=_quantize_samples,
    refuses=lambda: [
        bad(
            "codes that are floats have no zero point",
            "[3]",
            "[]",
            "float8_e4m3fn[]",
            dtype="float8_e4m3fn",
        )
    ],
)


def _dequantize_type(
    x: TensorType,
    scale: TensorType,
    zero_point: TensorType | None = None,
    *,
    axis: int | None = None,
    block: int | None = None,
) -> TensorType:
    require(scale.dtype in FLOATS, f"scale must be a float, found {scale.dtype}.")
    if zero_point is not None:
        require(same_dtype(x, zero_point).is_integer, FLOAT_CODES)
    require_scales(x, scale, zero_point, axis, block)
    return x.with_dtype(scale.dtype)


def _dequantize(x: Value, scale: Value, zero_point: Value | None, axis: Any, block: Any) -> Value:
    codes = x if zero_point is None else centred(x, spread_scale(zero_point, x.tensor, axis, block))
    scales = widened(spread_scale(scale, x.tensor, axis, block))
    return narrowed(multiply(cast(codes, dtype=scales.tensor.dtype), scales), scale)


def _dequantize_samples() -> list[Sample]:
    codes = partial(draw, low=-100.0, high=100.0)
    scales = partial(_scales, dtype_="float32")
    return [
        *_scaled(codes, scales, codes, only=(*CODE_INTEGERS, int32)),
        *_scaled(codes, scales, lambda *shape: None, only=CODE_FLOATS),
        *(sample(codes(4), draw(dtype_=of), None) for of in FLOATS),
    ]


dequantize = FAMILY.declare(
    "dequantize",
    _dequantize_type,
    doc="Subtract the zero point from codes and multiply by the scale, in the scale's dtype.",
    expand=_dequantize,
    dtypes=(*CODE_DTYPES, int32),
    not_folded="weights stay codes, which engines read faster and some multiply as they are.",
    samples=_dequantize_samples,
    refuses=lambda: [
        bad("zero_point needs the shape of scale, found int8[] and", "[]", "float32[1]", "[]"),
        bad("a block has at least 1 element, found 0", "[5, 2]", "float32[3, 2]", axis=0, block=0),
        bad(
            "in blocks the scale has the rank of x, found float32[]",
            "[5, 2]",
            "float32[]",
            axis=0,
            block=2,
        ),
        bad("scale must be a float, found bool", "[]", "bool[]", "[]"),
        bad("operands must have one dtype, found int8 and bool", "[]", "float32[]", "bool[]"),
        bad("a block needs an axis", "[]", "float32[]", "[]", block=0),
        bad("along an axis the scale has one axis, found float32[]", "[3, 4]", "float32[]", axis=0),
        bad(
            "the scales and axis 1 of x must be equal, found 3 and 4",
            "[3, 4]",
            "float32[3]",
            "[3]",
            axis=1,
        ),
        bad(
            "dims 0 of scale and of the blocks of x must be equal, found",
            "[4, 2]",
            "float32[3, 2]",
            axis=0,
            block=2,
        ),
        bad(
            "dims 0 of scale and of the blocks of x must be equal, found",
            "[5, 2]",
            "float32[3, 2]",
            axis=0,
            block=1,
        ),
        bad("axis 5 is outside a tensor of rank 2", "[3, 4]", "float32[]", axis=5),
    ],
)


def _dynamic_quantize_type(x: TensorType) -> tuple[TensorType, ...]:
    return x.with_dtype(uint8), TensorType(x.dtype, ()), TensorType(uint8, ())


def _dynamic_quantize(x: Value) -> tuple[Value, ...]:
    low, high = minimum(reduce_min(x), 0.0), maximum(reduce_max(x), 0.0)
    scale = divide(subtract(high, low), 255.0)
    # Only zeros: any scale will do but 0.
    scale = where(equal(scale, 0.0), constant(np.ones((), x.tensor.dtype.numpy)), scale)
    zero = cast(round_(divide(negative(low), scale)), dtype=uint8)
    return encode(divide(x, scale), zero, uint8), scale, zero


dynamic_quantize = FAMILY.declare(
    "dynamic_quantize",
    _dynamic_quantize_type,
    doc="Quantize to uint8 with the scale and zero point that just cover x and 0.",
    expand=_dynamic_quantize,
    dtypes=(float32,),
    traits=(Trait.DISCONTINUOUS,),
    tolerance=CODES,
    samples=lambda: [
        sample(draw(3, 4)),
        sample(draw(5, low=1.0, high=3.0)),
        sample(draw(5, low=-3.0, high=-1.0)),
        sample(given([0.0, 0.0])),
        sample(draw()),
        sample(draw(0, 3)),
    ],
)


def _fake_quantize_type(
    x: TensorType,
    scale: TensorType,
    zero_point: TensorType | None = None,
    *,
    dtype: DType,
    axis: int | None = None,
    block: int | None = None,
) -> TensorType:
    _quantize_type(x, scale, zero_point, dtype=dtype, axis=axis, block=block)
    return x


def _fake_quantize(
    x: Value, scale: Value, zero_point: Value | None, dtype: DType, axis: Any, block: Any
) -> Value:
    codes = quantize(x, scale, zero_point, dtype=dtype, axis=axis, block=block)
    return dequantize(codes, scale, zero_point, axis=axis, block=block)


def _fake_quantize_samples() -> list[Sample]:
    """Samples that lie far from where codes change, or too few could be judged."""
    x = given([[-3.25, -1.25, 0.25], [1.75, 3.25, 2.25]])
    per_axis = given([1.0, 2.0, 1.0])
    return [
        sample(x, given(1.0), None, dtype="int8"),
        sample(x, per_axis, given([1, 2, 3], "uint4"), dtype="uint4", axis=1),
        sample(x, given([[1.0, 2.0]] * 2), None, dtype="int2", axis=1, block=2),
        sample(x, per_axis, None, dtype="float8_e4m3fn", axis=-1),
        sample(given(1.75), given(1.0), None, dtype="int16"),
        sample(draw(0, 3), given(1.0), None, dtype="int8"),
    ]


fake_quantize = FAMILY.declare(
    "fake_quantize",
    _fake_quantize_type,
    doc="Quantize and dequantize: round x to the values of the codes.",
    expand=_fake_quantize,
    dtypes=FLOATS,
    traits=(Trait.DISCONTINUOUS,),
    samples=_fake_quantize_samples,
    refuses=lambda: [
        bad("codes are small integers or floats, found None", "[]", "[]", dtype=None),
        bad("operands must have one dtype, found float32 and bool", "[]", "bool[]", dtype="int16"),
        bad("zero_point must be int16, found float32[]", "[]", "[]", "[]", dtype="int16"),
        bad("without an axis the scale is a scalar, found float32[1]", "[]", "[1]", dtype="int16"),
    ],
)
