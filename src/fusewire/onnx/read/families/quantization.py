"""Codes: quantized tensors, and products and convolutions of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.dtypes import DType, float32, int32, uint8
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.onnx.read.families.convolution import window_of
from fusewire.ops import conversion, elementwise, movement, quantization, quantized


def single(x: Value) -> Value:
    """Give a vector of one element as a scalar: files say scales of whole tensors either way."""
    return movement.reshape(x, shape=()) if x.tensor.shape == (1,) else x


def _zero(call: OnnxCall, position: int, of: DType) -> Value | None:
    """Give a zero point, unless it is 0 for codes that are floats."""
    zero = call.get(position)
    if zero is None or of.is_integer:
        return None if zero is None else single(zero)
    known = call.array(zero)
    return None if known is not None and not known.astype("float32").any() else single(zero)


def _place(call: OnnxCall, x: Value, scale: Value) -> dict[str, Any]:
    """Tell what each scale is for: the tensor, an index of an axis, or a block of an axis."""
    if scale.tensor.rank == 0:
        return {"axis": None, "block": None}
    axis = call.attr("axis", 1) if x.tensor.rank > 1 else 0
    return {"axis": axis, "block": call.attr("block_size", 0) or None}


def _quantize(call: OnnxCall) -> Converted:
    x, scale = call[0], single(call[1])
    zero = call.get(2)
    of = call.dtype("output_dtype", uint8) if call.attr("output_dtype") else uint8
    of = of if zero is None else zero.tensor.dtype
    if scale.tensor.dtype.is_integer or scale.tensor.dtype.is_narrow:
        scale = cast(scale, float32 if x.tensor.dtype is int32 else x.tensor.dtype)
    if call.attr("precision"):
        scale = cast(scale, call.dtype("precision"))
    if x.tensor.dtype is not int32:
        x = cast(x, scale.tensor.dtype)
    place, zero = _place(call, x, scale), _zero(call, 2, of)
    if of.is_integer or (zero is None and call.flag("saturate", 1)):
        return quantization.quantize(x, scale, zero, dtype=of, **place)
    # Floats that do not saturate, or with a zero point that only the run can tell.
    spread = quantization.spread_scale(scale, x.tensor, **place)
    found = elementwise.divide(cast(x, scale.tensor.dtype), spread)
    if zero is not None:
        moved = quantization.spread_scale(zero, x.tensor, **place)
        found = elementwise.add(found, cast(moved, scale.tensor.dtype))
    return conversion.cast(found, dtype=of, saturate=call.flag("saturate", 1))


def _dequantize(call: OnnxCall) -> Converted:
    x, scale = call[0], single(call[1])
    to = scale.tensor.dtype
    to = float32 if to.is_narrow else to
    to = call.dtype("output_dtype") if call.attr("output_dtype") else to
    scale = cast(scale, to)
    place, zero = _place(call, x, scale), _zero(call, 2, x.tensor.dtype)
    if zero is None or x.tensor.dtype.is_integer:
        return quantization.dequantize(x, scale, zero, **place)
    moved = cast(quantization.spread_scale(zero, x.tensor, **place), to)
    spread = quantization.spread_scale(scale, x.tensor, **place)
    return elementwise.multiply(elementwise.subtract(cast(x, to), moved), spread)


def _dynamic_quantize(call: OnnxCall) -> Converted:
    return quantization.dynamic_quantize(call[0])


def _optional(x: Value | None) -> Value | None:
    return None if x is None else single(x)


def _matmul_integer(call: OnnxCall) -> Converted:
    zeros = [_optional(call.get(i)) for i in (2, 3)]
    return quantized.matmul_integer(call[0], call[1], *zeros)


def _conv_integer(call: OnnxCall) -> Converted:
    x_zero, w_zero = (_optional(call.get(i)) for i in (2, 3))
    x, attrs = window_of(call, call[0], call[1], x_zero)
    return quantized.conv_integer(x, call[1], x_zero, w_zero, **attrs)


def _qlinear_matmul(call: OnnxCall) -> Converted:
    return quantized.qlinear_matmul(*(single(x) for x in call.rest))


def _qlinear_conv(call: OnnxCall) -> Converted:
    x, x_scale, x_zero, w, *rest = (single(call[i]) for i in range(8))
    x, attrs = window_of(call, x, w, x_zero)
    return quantized.qlinear_conv(x, x_scale, x_zero, w, *rest, call.get(8), **attrs)


TABLE: Mapping[str, Read] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "com.microsoft:QuantizeLinear": _quantize,
    "com.microsoft:DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}
