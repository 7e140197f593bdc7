"""Codes: quantized tensors, and products and convolutions of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import DType, dtype, float32, int8, int32, uint8
from fusewire.errors import FormatError
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node, Value
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.convolution import window_of
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.ops.windows import write_window
from fusewire.onnx.ops.writing import attrs_of, operand, require_filled, spelled
from fusewire.ops import conversion, elementwise, movement, quantization, quantized

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


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


def _optional(x: Value | None) -> Value | None:
    return None if x is None else single(x)


def _places(e: Emitter, node: Node) -> dict[str, Any]:
    attrs = attrs_of(node)
    axis, block = attrs["axis"], attrs["block"]
    rank = operand(node, 0).tensor.rank
    where = {} if axis is None else {"axis": spelled(e, axis, rank)}
    return where if block is None else {**where, "block_size": block}


def _require_bytes(*xs: Ref | None) -> None:
    for x in xs:
        if x is not None and x.dtype not in (int8, uint8):
            raise FormatError(f"ONNX multiplies codes of 8 bits, found {x.dtype}.")


def _require_known(e: Emitter, dim: Dim) -> None:
    """Refuse a sum of unknown length: of nothing, engines leave what memory held before."""
    if not isinstance(dim, int) or dim == 0:
        e.caution(f"Engines make no zeros of sums over {dim} products of codes.")


def _require_zero(e: Emitter, node: Node, place: int, ranks: tuple[int, ...]) -> None:
    value = node.inputs[place]
    if value is not None and value.tensor.rank not in ranks:
        e.caution(f"Engines do not take zero points of shape {value.tensor.shape}.")


def _window(node: Node) -> dict[str, Any]:
    window = write_window(node, node.outputs[0].tensor.rank - 2)
    if min(window["pads"]) < 0:
        raise FormatError("A convolution of codes has no negative padding in ONNX.")
    return {**window, "group": node.attrs["groups"]}


def _read_quantize(call: OnnxCall) -> Converted:
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


def _write_quantize(e: Emitter, node: Node, x: Ref, scale: Ref, zero: Ref | None) -> Ref:
    """Divide, round, add the zero point, saturate."""
    to = dtype(node.attrs["dtype"])  # type: ignore[arg-type]  # a DType
    e.target.require("QuantizeLinear", x.dtype, 0)
    e.target.require("QuantizeLinear", to, -1)
    attrs = _places(e, node)
    if zero is None:
        shape = operand(node, 1).tensor.shape
        if all(isinstance(dim, int) for dim in shape):
            # ONNX Runtime 1.31 moves the node about and loses output_dtype on the way.
            zero = e.constant(np.zeros(shape, to.numpy))
        else:
            attrs["output_dtype"] = element_of(to)
    if to.is_float:
        attrs["saturate"] = 1
    return e.raw("QuantizeLinear", [x, scale, zero], [to], attrs)[0]


def _read_dequantize(call: OnnxCall) -> Converted:
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


def _write_dequantize(e: Emitter, node: Node, x: Ref, scale: Ref, zero: Ref | None) -> Ref:
    """Subtract the zero point and multiply."""
    e.target.require("DequantizeLinear", x.dtype, 0)
    e.target.require("DequantizeLinear", scale.dtype, 1)
    return e.raw("DequantizeLinear", [x, scale, zero], [scale.dtype], _places(e, node))[0]


def _read_dynamic_quantize(call: OnnxCall) -> Converted:
    return quantization.dynamic_quantize(call[0])


def _write_dynamic_quantize(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Quantize to bytes by what x holds."""
    require_filled(e, node)
    return e.many("DynamicQuantizeLinear", x, made=[uint8, float32, uint8])


def _unsigned(e: Emitter, codes: Ref, zero: Ref | None) -> tuple[Ref, Ref]:
    """Move signed codes and their zero point to unsigned ones: the differences stay."""
    by = e.constant(np.array(128, np.int32))
    moved = [e.cast(e("Add", e.cast(x, int32), by), uint8) for x in (codes, zero) if x is not None]
    return moved[0], moved[1] if zero is not None else e.constant(np.array(128, np.uint8))


def _is_mixed(e: Emitter, left: Ref, right: Ref) -> bool:
    """Tell whether products of unsigned and signed codes are to be gone around."""
    return e.target.saturates and left.dtype is uint8 and right.dtype is int8


def _read_matmul_integer(call: OnnxCall) -> Converted:
    zeros = [_optional(call.get(i)) for i in (2, 3)]
    return quantized.matmul_integer(call[0], call[1], *zeros)


def _write_matmul_integer(
    e: Emitter, node: Node, a: Ref, b: Ref, a_zero: Ref | None, b_zero: Ref | None
) -> Ref:
    """Multiply matrices of codes; zero points are one a matrix, or one a column of the right."""
    _require_bytes(a, b)
    _require_known(e, operand(node, 0).tensor.shape[-1])
    require_filled(e, node, (0, 1))
    _require_zero(e, node, 2, ranks=(0,))
    _require_zero(e, node, 3, ranks=(0, 1))
    if _is_mixed(e, a, b):
        b, b_zero = _unsigned(e, b, b_zero)
    return e("MatMulInteger", a, b, a_zero, b_zero, dtype=int32)


def _write_matmul_nbits(e: Emitter, node: Node, *operands: Ref | None) -> Ref:
    """Dequantize and multiply, as ONNX says it: engines may still find that to be one op."""
    given = [x for x in operands if x is not None]
    return e.run(quantized.matmul_nbits.expansion(node), given, inline=True)[0][0]


def _read_conv_integer(call: OnnxCall) -> Converted:
    x_zero, w_zero = (_optional(call.get(i)) for i in (2, 3))
    x, attrs = window_of(call, call[0], call[1], x_zero)
    return quantized.conv_integer(x, call[1], x_zero, w_zero, **attrs)


def _write_conv_integer(
    e: Emitter, node: Node, x: Ref, w: Ref, x_zero: Ref | None, w_zero: Ref | None
) -> Ref:
    """Convolve codes."""
    _require_bytes(x, w)
    _require_known(e, operand(node, 1).tensor.shape[1])
    require_filled(e, node, (0, 1))
    _require_zero(e, node, 3, ranks=(0,))
    window = _window(node)
    if _is_mixed(e, w, x):
        # Here the weights are on the left.
        x, x_zero = _unsigned(e, x, x_zero)
    return e("ConvInteger", x, w, x_zero, w_zero, dtype=int32, **window)


def _read_qlinear_matmul(call: OnnxCall) -> Converted:
    return quantized.qlinear_matmul(*(single(x) for x in call.rest))


def _write_qlinear_matmul(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Multiply matrices of codes and give codes."""
    a, a_scale, a_zero, b, b_scale, b_zero, *made = xs
    y_zero = made[1]
    _require_bytes(a, b, y_zero)
    _require_known(e, operand(node, 0).tensor.shape[-1])
    require_filled(e, node, (0, 3))
    for place in (1, 2, 6, 7):
        _require_zero(e, node, place, ranks=(0,))
    for place in (4, 5):
        _require_zero(e, node, place, ranks=(0, 1))
    e.target.require("QLinearMatMul", a_scale.dtype, 1)
    if _is_mixed(e, a, b):
        b, b_zero = _unsigned(e, b, b_zero)
    given = (a, a_scale, a_zero, b, b_scale, b_zero, *made)
    return e("QLinearMatMul", *given, dtype=y_zero.dtype)


def _read_qlinear_conv(call: OnnxCall) -> Converted:
    x, x_scale, x_zero, w, *rest = (single(call[i]) for i in range(8))
    x, attrs = window_of(call, x, w, x_zero)
    return quantized.qlinear_conv(x, x_scale, x_zero, w, *rest, call.get(8), **attrs)


def _write_qlinear_conv(e: Emitter, node: Node, *xs: Ref | None) -> Ref:
    """Convolve codes and give codes."""
    x, x_scale, x_zero, w, w_scale, w_zero, *made = xs
    y_zero = made[1]
    _require_bytes(x, w, y_zero)
    _require_known(e, operand(node, 3).tensor.shape[1])
    require_filled(e, node, (0, 3))
    assert y_zero is not None
    assert x_scale is not None
    if x_scale.dtype is not float32:
        raise FormatError(f"ONNX's QLinearConv has scales of float32, found {x_scale.dtype}.")
    assert x is not None
    assert w is not None
    if _is_mixed(e, x, w):
        w, w_zero = _unsigned(e, w, w_zero)
    given = (x, x_scale, x_zero, w, w_scale, w_zero, *made)
    return e("QLinearConv", *given, dtype=y_zero.dtype, **_window(node))


READERS: Mapping[str, Read] = {
    "QuantizeLinear": _read_quantize,
    "DequantizeLinear": _read_dequantize,
    "com.microsoft:QuantizeLinear": _read_quantize,
    "com.microsoft:DequantizeLinear": _read_dequantize,
    "DynamicQuantizeLinear": _read_dynamic_quantize,
    "MatMulInteger": _read_matmul_integer,
    "ConvInteger": _read_conv_integer,
    "QLinearMatMul": _read_qlinear_matmul,
    "QLinearConv": _read_qlinear_conv,
}


WRITERS: Mapping[str, Write] = {
    "quantize": _write_quantize,
    "dequantize": _write_dequantize,
    "dynamic_quantize": _write_dynamic_quantize,
    "matmul_integer": _write_matmul_integer,
    "matmul_nbits": _write_matmul_nbits,
    "conv_integer": _write_conv_integer,
    "qlinear_matmul": _write_qlinear_matmul,
    "qlinear_conv": _write_qlinear_conv,
}
