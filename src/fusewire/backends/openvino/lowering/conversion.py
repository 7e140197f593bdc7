"""Casts, by value or by keeping the bits."""

from __future__ import annotations

from typing import Any

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering import wide
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Pair,
    Table,
    at_least,
    const,
    convert,
    ints,
    select,
    shift_right,
    stored,
    wrapped,
)
from fusewire.backends.openvino.lowering.floats import round_to_brain, round_to_half
from fusewire.backends.openvino.storage import FLOATS, LONG, MOVED_ONLY, STORAGE
from fusewire.dtypes import DType, bfloat16, bool_, complex64, float16, uint32
from fusewire.ir.graph import Node

_TOP = -(2**31)
_HALF, _WHOLE = float(2**31), float(2**32)


def unsigned_float(x: Ov) -> Ov:
    """Read int32 bits as uint32 and convert; 16 bits at a time have an exact float32."""
    upper, lower = convert(shift_right(x, 16), "f32"), ops.bitwise_and(x, const(0xFFFF))
    return ops.add(ops.multiply(upper, const(65536.0, "f32")), convert(lower, "f32"))


def _long_float(x: Pair, is_signed: bool) -> Ov:
    """Convert the magnitude, as a sum of two floats that are exact: one rounding is all."""
    below = ops.less(x[1], const(0))
    low, high = wide.select_pair(below, wide.opposite(x), x) if is_signed else x
    # Below 2**41: 24 bits and 17 bits.
    upper = ops.bitwise_or(ops.bitwise_left_shift(high, const(15)), shift_right(low, 17))
    small = _scaled_sum(upper, 17, ops.bitwise_and(low, const(0x1FFFF)), 0)
    # Above: 24 bits and 24 bits, of which the last stands for all that are left.
    middle = ops.bitwise_left_shift(ops.bitwise_and(high, const(0xFF)), const(16))
    middle = ops.bitwise_or(middle, shift_right(low, 16))
    rest = ops.not_equal(ops.bitwise_and(low, const(0xFFFF)), const(0))
    middle = ops.bitwise_or(middle, ops.convert(rest, "i32"))
    large = _scaled_sum(shift_right(high, 8), 40, middle, 16)
    found = select(ops.equal(shift_right(high, 9), const(0)), small, large)
    return select(below, ops.negative(found), found) if is_signed else found


def _scaled_sum(x: Ov, up: int, y: Ov, down: int) -> Ov:
    first, second = (
        ops.multiply(convert(part, "f32"), const(2.0**power, "f32"))
        for part, power in ((x, up), (y, down))
    )
    return ops.add(first, second)


def _to_float(x: Any, of: DType, to: DType) -> Ov:
    if of is complex64:
        found = x[0]
    elif isinstance(x, tuple):
        found = _long_float(x, of.is_signed)
    else:
        found = unsigned_float(x) if of is uint32 else convert(x, "f32")
    if (of in FLOATS and to in (float16, bfloat16) and of is not to) or (
        to in (float16, bfloat16) and of not in FLOATS
    ):
        return round_to_half(found) if to is float16 else round_to_brain(found)
    return found


def _within(x: Ov, low: float, high: float) -> Ov:
    """Limit a float32, with 0 for NaN."""
    limited = ops.minimum(ops.maximum(x, const(low, "f32")), const(high, "f32"))
    return select(ops.is_nan(x), const(0.0, "f32"), limited)


def float_to_int32(x: Ov) -> Ov:
    """Convert toward 0, out of range to the bound, NaN to 0."""
    # The largest float32 below 2**31.
    inside = convert(_within(x, -_HALF, _HALF - 128), "i32")
    return select(at_least(x, const(_HALF, "f32")), const(2**31 - 1), inside)


def _float_to_uint32(x: Ov) -> Ov:
    upper = at_least(x, const(_HALF, "f32"))
    low = convert(_within(x, 0.0, _HALF - 128), "i32")
    high = convert(_within(ops.subtract(x, const(_HALF, "f32")), 0.0, _HALF - 128), "i32")
    found = select(upper, ops.bitwise_xor(high, const(_TOP)), low)
    return select(at_least(x, const(_WHOLE, "f32")), const(-1), found)


def _float_to_long(x: Ov, is_signed: bool) -> Pair:
    """Split the magnitude in two, which is exact in float32."""
    size = ops.floor(ops.abs(x) if is_signed else ops.maximum(x, const(0.0, "f32")))
    upper = ops.floor(ops.multiply(size, const(1 / _WHOLE, "f32")))
    lower = ops.subtract(size, ops.multiply(upper, const(_WHOLE, "f32")))
    # Above 2**32 the lower half of what is infinite is no number; the bounds replace it.
    found = _float_to_uint32(lower), _float_to_uint32(upper)
    limit = _HALF if is_signed else _WHOLE
    over = at_least(upper, const(limit, "f32"))
    most = const(-1), const(2**31 - 1 if is_signed else -1)
    found = wide.select_pair(over, most, found)
    if is_signed:
        opposite = wide.opposite(found)
        least = const(0), const(_TOP)
        found = wide.select_pair(
            ops.less(x, const(0.0, "f32")), wide.select_pair(over, least, opposite), found
        )
    return wide.select_pair(ops.is_nan(x), (const(0), const(0)), found)


def _float_to_int(x: Ov, to: DType, is_narrow: bool) -> Any:
    if to in LONG and not is_narrow:
        return _float_to_long(x, to.is_signed)
    if to is uint32:
        return _float_to_uint32(x)
    if to.bits >= 32:
        return float_to_int32(x)
    low, high = to.range
    return stored(convert(_within(x, float(low), float(high)), "i32"), to)


def _int_to_int(x: Any, of: DType, to: DType, is_narrow: bool) -> Any:
    if isinstance(x, tuple):
        return x if to in LONG else wrapped(x[0], to)
    x = ints(x)
    if to not in LONG:
        return wrapped(x, to)
    if of is uint32 and not is_narrow:
        return x, ops.multiply(x, const(0))
    return x


def cast(s: Any, node: Node, x: Any) -> Any:
    """Convert by value."""
    (source,), (target,) = node.operands, node.outputs
    of, to = source.tensor.dtype, target.tensor.dtype
    if to is complex64:
        real = x[0] if of is complex64 else _to_float(x, of, to)
        return (real, x[1] if of is complex64 else ops.multiply(real, const(0.0, "f32")))
    if to is bool_:
        halves = x if isinstance(x, tuple) else (ints(x),)
        tests = [ops.not_equal(half, ops.convert_like(const(0), half)) for half in halves]
        return tests[0] if len(tests) == 1 else ops.logical_or(*tests)
    if to in FLOATS:
        return _to_float(x, of, to)
    x = x[0] if of is complex64 else x
    is_narrow = s.holding.is_narrow(target)
    if of in FLOATS or of is complex64:
        return _float_to_int(x, to, is_narrow)
    return _int_to_int(x, of, to, is_narrow)


def _refuses_cast(node: Node) -> str | None:
    of, to = node.operands[0].tensor.dtype, node.outputs[0].tensor.dtype
    for found in (of, to):
        if found in MOVED_ONLY:
            return f"OpenVINO computes in float32 and int32, so it cannot convert {found}."
    return None


def _bitcast(s: Any, node: Node, x: Any) -> Any:
    of, to = node.operands[0].tensor.dtype, node.outputs[0].tensor.dtype
    if isinstance(x, tuple) or STORAGE[of].inner == STORAGE[to].inner:
        return x
    return wrapped(ints(x), to) if to.is_integer else convert(wrapped(ints(x), to), "u8")


def _refuses_bitcast(node: Node) -> str | None:
    for value in (*node.operands, *node.outputs):
        if value.tensor.dtype in FLOATS:
            return f"OpenVINO has no way to see the bits of {value.tensor.dtype}."
    return None


TABLE: Table = {
    "cast": Entry(cast, "fiub", cast, cast, _refuses_cast),
    "bitcast": Entry(_bitcast, "iubo", wide=_bitcast, refuses=_refuses_bitcast),
}
