"""Quantized codes of up to 16 bits, computed in float32, which holds them exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.backends.openvino.api import openvino, ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    convert,
    rank_of,
    select,
    stored,
)
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.dtypes import DType, int32
from fusewire.ir.graph import Node, Value
from fusewire.numerics.codes import packed_halves


def _along(x: Ov, rank: int, axis: int | None) -> Ov:
    """Shape scales or zero points so that they broadcast: to rank 0, or along an axis."""
    if axis is None or rank_of(x) == 0:
        return x
    return ops.reshape(x, const([-1 if i == axis % rank else 1 for i in range(rank)]), False)


def _quantize(s: Any, node: Node, x: Ov, scale: Ov, zero: Ov | None) -> Ov:
    rank, axis, of = rank_of(x), attr(node, "axis"), node.outputs[0].tensor.dtype
    quotient = ops.divide(x, _along(scale, rank, axis))
    codes = ops.round(quotient, "half_to_even")
    low, high = (float(limit) for limit in of.range)
    if zero is not None:
        # Limited first: what is infinite stays out of reach of any zero point.
        codes = _limited(codes, low - high, high - low)
        codes = select(ops.is_nan(quotient), const(0.0, "f32"), codes)
        codes = ops.add(codes, _along(convert(zero, "f32"), rank, axis))
        return stored(convert(_limited(codes, low, high), "i32"), of)
    codes = select(ops.is_nan(quotient), const(0.0, "f32"), _limited(codes, low, high))
    return stored(convert(codes, "i32"), of)


def _limited(x: Ov, low: float, high: float) -> Ov:
    return ops.minimum(ops.maximum(x, const(low, "f32")), const(high, "f32"))


def _dequantize(s: Any, node: Node, x: Ov, scale: Ov, zero: Ov | None) -> Ov:
    rank, axis = rank_of(x), attr(node, "axis")
    codes = convert(x, "f32")
    if zero is not None and not _is_zero(node.operands[2]):
        codes = ops.subtract(codes, _along(convert(zero, "f32"), rank, axis))
    return ops.multiply(codes, _along(scale, rank, axis))


def _matmul_nbits(s: Any, node: Node, x: Ov, codes: Ov, scale: Ov, zero: Ov | None) -> Ov:
    """Multiply with codes that the engine keeps packed: it knows them by just these nodes."""
    stored = node.operands[1].tensor
    rows, inputs = (int(dim) for dim in stored.shape)  # type: ignore[arg-type]  # a constant's
    blocks = -(-inputs // attr(node, "block"))
    weights = convert(_held(node.operands[1], s, (rows, blocks, inputs // blocks)), "f32")
    if zero is not None and not _is_zero(node.operands[3]):
        zeros = _held(node.operands[3], s, (rows, blocks, 1))
        weights = ops.subtract(weights, convert(zeros, "f32"))
    weights = ops.multiply(weights, ops.reshape(scale, const([rows, blocks, 1]), False))
    return ops.matmul(x, ops.reshape(weights, const([rows, inputs]), False), False, True)


def _held(value: Value, s: Any, shape: tuple[int, ...]) -> Ov:
    """Make a constant of codes: of 4 bits two in a byte, the first one lower."""
    assert value.constant is not None, "only constants are offered"
    of = value.tensor.dtype
    array = np.asarray(value.constant.array)
    if of.bits == 8:
        return ops.constant(array.reshape(shape))
    packed = packed_halves(array.astype(np.int8).reshape(-1).view(np.uint8))
    # The engine reads it where it lies.
    s.kept.append(packed)
    element = openvino.Type.i4 if of.is_signed else openvino.Type.u4
    return ops.constant(openvino.Tensor(packed, openvino.Shape(shape), element))


def _refuses_nbits(node: Node) -> str | None:
    if any(value.constant is None for value in node.operands[1:]):
        return "OpenVINO packs codes that are constants."
    inputs, block = node.operands[1].tensor.shape[1], attr(node, "block")
    if not isinstance(inputs, int) or (block < inputs and inputs % block):
        return f"OpenVINO's blocks have one size, and {inputs} is not a multiple of {block}."
    return None


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not np.asarray(value.constant.array, np.int32).any()


def faked(s: Any, node: Node, x: Ov, scale: Ov, zero: Ov | None) -> Ov:
    """Quantize by the node that the engine's int8 kernels are made of.

    Half way between two codes it may choose the other one, and NaN is some code.
    """
    of, known = node.outputs[0].tensor.dtype, node.operands[1:]
    if of.bits != 8 or any(value.constant is None for value in known):
        return _quantize(s, node, x, scale, zero)
    low, high = (float(limit) for limit in of.range)
    steps, *rest = (np.asarray(v.constant.array, np.float32) for v in known if v.constant)
    middle = rest[0] if rest else np.float32(0)
    axis, rank = attr(node, "axis"), rank_of(x)
    ends = [_along(const((end - middle) * steps, "f32"), rank, axis) for end in (low, high)]
    made = ops.fake_quantize(x, *ends, const(low, "f32"), const(high, "f32"), 256)
    return convert(made, "i8" if of.is_signed else "u8")


def _refuses(node: Node) -> str | None:
    if attr(node, "block") is not None:
        return "OpenVINO's scales are for a tensor or along an axis, not for blocks."
    codes = (node.outputs if node.op == "quantize" else node.operands)[0].tensor.dtype
    return _refuses_codes(node, codes)


def _refuses_codes(node: Node, of: DType) -> str | None:
    given = node.operands[0].tensor.dtype
    if not of.is_integer or given is int32 or of.bits > 16:
        return f"OpenVINO quantizes floats to integers of up to 16 bits, found {given} and {of}."
    return None


TABLE: Table = {
    "quantize": Entry(_quantize, "fi", refuses=_refuses),
    "dequantize": Entry(_dequantize, "fi", refuses=_refuses),
    "matmul_nbits": Entry(_matmul_nbits, "fi", refuses=_refuses_nbits),
}
