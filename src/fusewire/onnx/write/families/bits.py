"""Logic, comparisons, choices, and bits."""

from __future__ import annotations

import math

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import DType, bool_, uint64
from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.writing import (
    attrs_of,
    choose,
    compare,
    comparison,
    number,
    plain,
)
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref, Write

_UNSIGNED = {d.bits: d for d in dtypes.UNSIGNED}
_SIGNED = {d.bits: d for d in dtypes.SIGNED}


def _tested(op: str) -> Write:
    return lambda e, node, x: e(op, x, dtype=bool_)


def isfinite(e: Emitter, node: Node, x: Ref) -> Ref:
    """Compare with infinity, which no NaN is below."""
    if x.dtype.is_narrow:
        x = e.cast(x, dtypes.float32)
    return compare(e, "Less", e("Abs", x), number(e, math.inf, x))


def clip(e: Emitter, node: Node, x: Ref, low: Ref | None, high: Ref | None) -> Ref:
    """Limit by scalars; by tensors it is a maximum and a minimum."""
    bounds = [v for v in node.inputs[1:] if v is not None]
    if any(v.tensor.rank for v in bounds):
        raise FormatError("ONNX's Clip takes scalars as bounds.")
    return e("Clip", x, low, high)


def _shift(e: Emitter, x: Ref, y: Ref, direction: str) -> Ref:
    """Shift unsigned numbers; by the width or more gives 0."""
    width = x.dtype.bits
    far = e("Not", compare(e, "Less", y, number(e, width, y)))
    moved = e("BitShift", x, choose(e, far, number(e, 0, y), y), direction=direction)
    return choose(e, far, number(e, 0, x), moved)


def shift_left(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Shift bits up; a negative count is a very large one."""
    unsigned = _UNSIGNED[x.dtype.bits]
    return e.cast(_shift(e, e.cast(x, unsigned), e.cast(y, unsigned), "LEFT"), x.dtype)


def shift_right(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Shift bits down; what is negative is flipped on the way, so that signs come in."""
    unsigned = _UNSIGNED[x.dtype.bits]
    count = e.cast(y, unsigned)
    if x.dtype is unsigned:
        return _shift(e, x, count, "RIGHT")
    negative = compare(e, "Less", x, number(e, 0, x))
    bits = e.cast(choose(e, negative, e("BitwiseNot", x), x), unsigned)
    moved = e.cast(_shift(e, bits, count, "RIGHT"), x.dtype)
    return choose(e, negative, e("BitwiseNot", moved), moved)


def population_count(e: Emitter, node: Node, x: Ref) -> Ref:
    """Add up neighbouring bits, then pairs of them, and so on."""
    bits = e.cast(e.cast(x, _UNSIGNED[x.dtype.bits]), uint64)
    for step in (1, 2, 4, 8, 16, 32):
        if step >= x.dtype.bits:
            break
        group = (1 << step) - 1
        mask = sum(group << place for place in range(0, 64, 2 * step))
        kept = e.constant(np.uint64(mask))
        above = e("BitShift", bits, e.constant(np.uint64(step)), direction="RIGHT")
        bits = e("Add", e("BitwiseAnd", bits, kept), e("BitwiseAnd", above, kept))
    return e.cast(bits, x.dtype)


def bitcast(e: Emitter, node: Node, x: Ref) -> Ref:
    """Read bits as another dtype; ONNX can from opset 26 on."""
    to = attrs_of(node)["dtype"]
    return as_bits(e, x, to)


def as_bits(e: Emitter, x: Ref, to: DType) -> Ref:
    """Read the bits of x as a dtype of the same width."""
    if to is x.dtype:
        return x
    if x.dtype.is_integer and to.is_integer:
        return e.cast(x, to)
    for of, place in ((x.dtype, 0), (to, -1)):
        e.target.require("BitCast", of, place)
    return e.raw("BitCast", [x], [to], {"to": element_of(to)})[0]


def signbit(e: Emitter, node: Node, x: Ref) -> Ref:
    """Look at the uppermost bit."""
    bits = as_bits(e, x, _SIGNED[x.dtype.bits])
    return compare(e, "Less", bits, number(e, 0, bits))


def copysign(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Join the bits of the size of x and the sign of y."""
    unsigned = _UNSIGNED[x.dtype.bits]
    sign = e.constant(np.array(1 << (x.dtype.bits - 1), unsigned.numpy))
    size = e.constant(np.array((1 << (x.dtype.bits - 1)) - 1, unsigned.numpy))
    parts = (
        e("BitwiseAnd", as_bits(e, x, unsigned), size),
        e("BitwiseAnd", as_bits(e, y, unsigned), sign),
    )
    return as_bits(e, e("BitwiseOr", *parts), x.dtype)


def nextafter(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Count the bits of the size one up or down; from 0, to the smallest number toward y."""
    signed = _SIGNED[x.dtype.bits]
    zero, bits = number(e, 0, x), as_bits(e, x, signed)
    one = number(e, 1, bits)
    grows = e("Not", e("Xor", compare(e, "Less", x, y), compare(e, "Greater", x, zero)))
    stepped = choose(e, grows, e("Add", bits, one), e("Sub", bits, one))
    lowest = number(e, signed.range[0] + 1, bits)
    least = choose(e, compare(e, "Less", y, zero), lowest, one)
    moved = as_bits(e, choose(e, compare(e, "Equal", x, zero), least, stepped), x.dtype)
    found = choose(e, compare(e, "Equal", x, y), y, moved)
    # A sum with NaN is NaN.
    broken = e("Or", e("IsNaN", x, dtype=bool_), e("IsNaN", y, dtype=bool_))
    return choose(e, broken, e("Add", x, y), found)


WRITERS = {
    "equal": comparison("Equal"),
    "not_equal": lambda e, node, x, y: e("Not", compare(e, "Equal", x, y)),
    "less": comparison("Less"),
    "less_equal": comparison("LessOrEqual"),
    "greater": comparison("Greater"),
    "greater_equal": comparison("GreaterOrEqual"),
    "logical_and": plain("And"),
    "logical_or": plain("Or"),
    "logical_xor": plain("Xor"),
    "logical_not": plain("Not"),
    "bitwise_and": plain("BitwiseAnd"),
    "bitwise_or": plain("BitwiseOr"),
    "bitwise_xor": plain("BitwiseXor"),
    "bitwise_not": plain("BitwiseNot"),
    "shift_left": shift_left,
    "shift_right": shift_right,
    "population_count": population_count,
    "isnan": _tested("IsNaN"),
    "isinf": _tested("IsInf"),
    "isfinite": isfinite,
    "signbit": signbit,
    "where": lambda e, node, condition, x, y: choose(e, condition, x, y),
    "clip": clip,
    "bitcast": bitcast,
    "copysign": copysign,
    "nextafter": nextafter,
}
