"""Comparisons, logic, choices, and bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import bool_, uint64
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.graph import Node
from fusewire.onnx.ops.conversion import as_bits
from fusewire.onnx.ops.reading import cast, scalar
from fusewire.onnx.ops.rows import OnnxRow, readers, writers
from fusewire.onnx.ops.writing import choose, compare, number
from fusewire.ops import elementwise, logic

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

_UNSIGNED = {d.bits: d for d in dtypes.UNSIGNED}
_SIGNED = {d.bits: d for d in dtypes.SIGNED}


def _shift(e: Emitter, x: Ref, y: Ref, direction: str) -> Ref:
    """Shift unsigned numbers; by the width or more gives 0."""
    width = x.dtype.bits
    far = e("Not", compare(e, "Less", y, number(e, width, y)))
    moved = e("BitShift", x, choose(e, far, number(e, 0, y), y), direction=direction)
    return choose(e, far, number(e, 0, x), moved)


def _write_not_equal(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Turn round what is equal."""
    return e("Not", compare(e, "Equal", x, y))


def _write_where(e: Emitter, node: Node, condition: Ref, x: Ref, y: Ref) -> Ref:
    """Take x where the condition holds."""
    return choose(e, condition, x, y)


def _read_clip(call: OnnxCall) -> Converted:
    x = call[0]
    if call.opset < 11:
        held = [call.attr(name) for name in ("min", "max")]
        bounds = [None if n is None else constant(np.array(n, x.tensor.dtype.numpy)) for n in held]
    else:
        bounds = [scalar(call.get(position)) for position in (1, 2)]
    return x if bounds == [None, None] else elementwise.clip(x, *bounds)


def _write_clip(e: Emitter, node: Node, x: Ref, low: Ref | None, high: Ref | None) -> Ref:
    """Limit by scalars; by tensors it is a maximum and a minimum."""
    bounds = [v for v in node.inputs[1:] if v is not None]
    if any(v.tensor.rank for v in bounds):
        raise FormatError("ONNX's Clip takes scalars as bounds.")
    return e("Clip", x, low, high)


def _read_shift(call: OnnxCall) -> Converted:
    direction = call.needed("direction")
    if direction not in ("LEFT", "RIGHT"):
        call.refuse(f"direction must be LEFT or RIGHT, found {direction!r}.")
    x, y = call[0], call[1]
    if direction == "LEFT":
        return logic.shift_left(x, y)
    if y.tensor.dtype.is_signed:
        # A negative amount leaves only signs, as one of the width or more does.
        y = logic.where(logic.less(y, 0), y.tensor.dtype.bits, y)
    return logic.shift_right(x, y)


def _write_shift_left(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Shift bits up; a negative count is a very large one."""
    unsigned = _UNSIGNED[x.dtype.bits]
    return e.cast(_shift(e, e.cast(x, unsigned), e.cast(y, unsigned), "LEFT"), x.dtype)


def _write_shift_right(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Shift bits down; what is negative is flipped on the way, so that signs come in."""
    unsigned = _UNSIGNED[x.dtype.bits]
    count = e.cast(y, unsigned)
    if x.dtype is unsigned:
        return _shift(e, x, count, "RIGHT")
    negative = compare(e, "Less", x, number(e, 0, x))
    bits = e.cast(choose(e, negative, e("BitwiseNot", x), x), unsigned)
    moved = e.cast(_shift(e, bits, count, "RIGHT"), x.dtype)
    return choose(e, negative, e("BitwiseNot", moved), moved)


def _read_isinf(call: OnnxCall) -> Converted:
    x = call[0]
    negative, positive = (call.flag(f"detect_{side}", 1) for side in ("negative", "positive"))
    found = logic.isinf(x)
    if negative and positive:
        return found
    wide = cast(x, dtypes.float32) if x.tensor.dtype.is_narrow else x
    sides = [logic.greater(wide, 0.0)] if positive else []
    sides += [logic.less(wide, 0.0)] if negative else []
    # Of neither side, none is.
    return logic.logical_and(found, *(sides or [logic.logical_not(found)]))


def _write_isfinite(e: Emitter, node: Node, x: Ref) -> Ref:
    """Compare with infinity, which no NaN is below."""
    if x.dtype.is_narrow:
        x = e.cast(x, dtypes.float32)
    return compare(e, "Less", e("Abs", x), number(e, math.inf, x))


def _write_population_count(e: Emitter, node: Node, x: Ref) -> Ref:
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


def _write_signbit(e: Emitter, node: Node, x: Ref) -> Ref:
    """Look at the uppermost bit."""
    bits = as_bits(e, x, _SIGNED[x.dtype.bits])
    return compare(e, "Less", bits, number(e, 0, bits))


def _write_copysign(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Join the bits of the size of x and the sign of y."""
    unsigned = _UNSIGNED[x.dtype.bits]
    sign = e.constant(np.array(1 << (x.dtype.bits - 1), unsigned.numpy))
    size = e.constant(np.array((1 << (x.dtype.bits - 1)) - 1, unsigned.numpy))
    parts = (
        e("BitwiseAnd", as_bits(e, x, unsigned), size),
        e("BitwiseAnd", as_bits(e, y, unsigned), sign),
    )
    return as_bits(e, e("BitwiseOr", *parts), x.dtype)


def _write_nextafter(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
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


ROWS = (
    OnnxRow(logic.equal, "Equal", gives=bool_, broadcasts=True),
    OnnxRow(logic.less, "Less", gives=bool_, broadcasts=True),
    OnnxRow(logic.less_equal, "LessOrEqual", gives=bool_, broadcasts=True),
    OnnxRow(logic.greater, "Greater", gives=bool_, broadcasts=True),
    OnnxRow(logic.greater_equal, "GreaterOrEqual", gives=bool_, broadcasts=True),
    OnnxRow(logic.logical_and, "And", broadcasts=True),
    OnnxRow(logic.logical_or, "Or", broadcasts=True),
    OnnxRow(logic.logical_xor, "Xor", broadcasts=True),
    OnnxRow(logic.bitwise_and, "BitwiseAnd", broadcasts=True),
    OnnxRow(logic.bitwise_or, "BitwiseOr", broadcasts=True),
    OnnxRow(logic.bitwise_xor, "BitwiseXor", broadcasts=True),
    OnnxRow(logic.logical_not, "Not"),
    OnnxRow(logic.bitwise_not, "BitwiseNot"),
    OnnxRow(logic.isnan, "IsNaN", gives=bool_),
    OnnxRow(logic.isinf, "IsInf", gives=bool_, reader=_read_isinf),
    OnnxRow(logic.where, "Where", writer=_write_where),
    OnnxRow(elementwise.clip, "Clip", reader=_read_clip, writer=_write_clip),
)
READERS: Mapping[str, Read] = {**readers(ROWS), "BitShift": _read_shift}
WRITERS: Mapping[str, Write] = {
    **writers(ROWS),
    "not_equal": _write_not_equal,
    "shift_left": _write_shift_left,
    "shift_right": _write_shift_right,
    "population_count": _write_population_count,
    "isfinite": _write_isfinite,
    "signbit": _write_signbit,
    "copysign": _write_copysign,
    "nextafter": _write_nextafter,
}
