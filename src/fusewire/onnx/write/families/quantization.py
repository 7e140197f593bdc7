"""Numbers as codes, and products of codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.dtypes import dtype, float32, int8, int32, uint8
from fusewire.errors import FormatError
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.writing import attrs_of, operand, spelled
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.families.convolution import require_filled, sliding
from fusewire.onnx.write.model import Ref


def _places(e: Emitter, node: Node) -> dict[str, Any]:
    attrs = attrs_of(node)
    axis, block = attrs["axis"], attrs["block"]
    rank = operand(node, 0).tensor.rank
    where = {} if axis is None else {"axis": spelled(e, axis, rank)}
    return where if block is None else {**where, "block_size": block}


def quantize(e: Emitter, node: Node, x: Ref, scale: Ref, zero: Ref | None) -> Ref:
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


def dequantize(e: Emitter, node: Node, x: Ref, scale: Ref, zero: Ref | None) -> Ref:
    """Subtract the zero point and multiply."""
    e.target.require("DequantizeLinear", x.dtype, 0)
    e.target.require("DequantizeLinear", scale.dtype, 1)
    return e.raw("DequantizeLinear", [x, scale, zero], [scale.dtype], _places(e, node))[0]


def dynamic_quantize(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Quantize to bytes by what x holds."""
    require_filled(e, node)
    return e.many("DynamicQuantizeLinear", x, made=[uint8, float32, uint8])


def _require_bytes(*xs: Ref | None) -> None:
    for x in xs:
        if x is not None and x.dtype not in (int8, uint8):
            raise FormatError(f"ONNX multiplies codes of 8 bits, found {x.dtype}.")


def matmul_integer(
    e: Emitter, node: Node, a: Ref, b: Ref, a_zero: Ref | None, b_zero: Ref | None
) -> Ref:
    """Multiply matrices of codes; zero points are one a matrix, or one a column of the right."""
    _require_bytes(a, b)
    _require_known(e, operand(node, 0).tensor.shape[-1])
    require_filled(e, node, (0, 1))
    _require_zero(e, node, 2, ranks=(0,))
    _require_zero(e, node, 3, ranks=(0, 1))
    return e("MatMulInteger", a, b, a_zero, b_zero, dtype=int32)


def _require_known(e: Emitter, dim: Dim) -> None:
    """Refuse a sum of unknown length: of nothing, engines leave what memory held before."""
    if not isinstance(dim, int) or dim == 0:
        e.caution(f"Engines make no zeros of sums over {dim} products of codes.")


def _require_zero(e: Emitter, node: Node, place: int, ranks: tuple[int, ...]) -> None:
    value = node.inputs[place]
    if value is not None and value.tensor.rank not in ranks:
        e.caution(f"Engines do not take zero points of shape {value.tensor.shape}.")


def conv_integer(
    e: Emitter, node: Node, x: Ref, w: Ref, x_zero: Ref | None, w_zero: Ref | None
) -> Ref:
    """Convolve codes."""
    _require_bytes(x, w)
    _require_known(e, operand(node, 1).tensor.shape[1])
    require_filled(e, node, (0, 1))
    _require_zero(e, node, 3, ranks=(0,))
    window = _window(node)
    return e("ConvInteger", x, w, x_zero, w_zero, dtype=int32, **window)


def _window(node: Node) -> dict[str, Any]:
    window = sliding(node, node.outputs[0].tensor.rank - 2)
    if min(window["pads"]) < 0:
        raise FormatError("A convolution of codes has no negative padding in ONNX.")
    return {**window, "group": node.attrs["groups"]}


def qlinear_matmul(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Multiply matrices of codes and give codes."""
    a, a_scale, _, b, _, _, _, y_zero = xs
    _require_bytes(a, b, y_zero)
    _require_known(e, operand(node, 0).tensor.shape[-1])
    require_filled(e, node, (0, 3))
    for place in (1, 2, 6, 7):
        _require_zero(e, node, place, ranks=(0,))
    for place in (4, 5):
        _require_zero(e, node, place, ranks=(0, 1))
    e.target.require("QLinearMatMul", a_scale.dtype, 1)
    return e("QLinearMatMul", *xs, dtype=y_zero.dtype)


def qlinear_conv(e: Emitter, node: Node, *xs: Ref | None) -> Ref:
    """Convolve codes and give codes."""
    x, x_scale, _, w, _, _, _, y_zero, _ = xs
    _require_bytes(x, w, y_zero)
    _require_known(e, operand(node, 3).tensor.shape[1])
    require_filled(e, node, (0, 3))
    assert y_zero is not None
    assert x_scale is not None
    if x_scale.dtype is not float32:
        raise FormatError(f"ONNX's QLinearConv has scales of float32, found {x_scale.dtype}.")
    return e("QLinearConv", *xs, dtype=y_zero.dtype, **_window(node))


WRITERS = {
    "quantize": quantize,
    "dequantize": dequantize,
    "dynamic_quantize": dynamic_quantize,
    "matmul_integer": matmul_integer,
    "conv_integer": conv_integer,
    "qlinear_matmul": qlinear_matmul,
    "qlinear_conv": qlinear_conv,
}
