"""Casts, by value or by bits.

ONNX leaves NaN and what is out of range undefined; we do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import DType, bool_, dtype, float32, float64, string
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.graph import Node, Value
from fusewire.onnx.elements import DTYPES, element_of
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.ops.writing import attrs_of, choose, compare, number
from fusewire.ops import conversion, elementwise, logic

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

# Before opset 6 dtypes were said by name.
_NAMES = (
    "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16",
    "DOUBLE", "UINT32", "UINT64", "COMPLEX64", "COMPLEX128",
)  # fmt: skip
# From which digits of a float32 on the next power of two is taken; the second where the exponent is
# 0, whose own power is half way up.
_RISES = {"up": (1, 0x400001), "nearest": (0x400000, 0x600000), "down": (0x800000, 0x800000)}


def _converted(call: OnnxCall, x: Value, to: DType) -> Value:
    if x.tensor.dtype is to:
        return x
    if to is dtypes.float8_e8m0fnu:
        return _to_exponent(call, x)
    if to.is_integer and to.is_narrow and x.tensor.dtype.is_float:
        # Upper bits are dropped, as of a wider integer.
        x = conversion.cast(x, dtype=dtypes.int32)
    small = to.is_float and to.bits == 8
    return conversion.cast(x, dtype=to, saturate=small and call.flag("saturate", 1))


def _to_exponent(call: OnnxCall, x: Value) -> Value:
    """Round to a power of two: the exponent of a float32 is the code, 0xFF is no number."""
    rounding = call.attr("round_mode", "up")
    if rounding not in _RISES:
        call.refuse(f"round_mode must be one of {', '.join(_RISES)}, found {rounding!r}.")
    x = cast(x, dtypes.float32)
    bits = conversion.bitcast(x, dtype=dtypes.uint32)
    code = logic.bitwise_and(logic.shift_right(bits, 23), 0xFF)
    rest = logic.bitwise_and(bits, 0x7FFFFF)
    from_, small = (constant(np.uint32(n)) for n in _RISES[rounding])
    rises = logic.greater_equal(rest, logic.where(logic.equal(code, 0), small, from_))
    found = elementwise.add(code, cast(rises, dtypes.uint32))
    if call.flag("saturate", 1):
        found = elementwise.minimum(found, 0xFE)
        wrong = logic.isnan(x)
    else:
        found = elementwise.minimum(found, 0xFF)
        wrong = logic.less(elementwise.abs_(x), 2.0**-127)
    found = logic.where(wrong, constant(np.uint32(0xFF)), found)
    return conversion.bitcast(cast(found, dtypes.uint8), dtype=dtypes.float8_e8m0fnu)


def _read_cast(call: OnnxCall) -> Converted:
    held = call.needed("to")
    if isinstance(held, str):
        if held.upper() not in _NAMES:
            call.refuse(f"to is {held!r}, which is not a dtype. Known: {', '.join(_NAMES)}.")
        return _converted(call, call[0], DTYPES[_NAMES.index(held.upper()) + 1])
    return _converted(call, call[0], call.dtype("to"))


def _write_cast(e: Emitter, node: Node, x: Ref) -> Ref:
    """Convert values."""
    attrs = attrs_of(node)
    to = dtype(attrs["dtype"])
    if string in (x.dtype, to):
        raise FormatError("ONNX leaves open how numbers are spelled: text is not cast.")
    if x.dtype.is_float and to.is_integer:
        return to_integer(e, x, to)
    if to.is_float and to.is_narrow and x.dtype is not to:
        # By way of float32: of integers out of range, engines make NaN where infinity is right.
        x = e.cast(x, float32) if x.dtype.is_integer else x
        saturate = int(attrs["saturate"])
        e.target.require("Cast", x.dtype, 0)
        e.target.require("Cast", to, -1)
        return e.raw("Cast", [x], [to], {"to": element_of(to), "saturate": saturate})[0]
    return x if x.dtype is to else e.cast_anew(x, to)


def to_integer(e: Emitter, x: Ref, to: DType) -> Ref:
    """Round toward 0, NaN to 0, and what is out of range to the nearest bound."""
    low, high = (int(limit) for limit in to.range)
    # Bounds of 32 bits need float64; those of 64 bits are beyond it, and are put in afterwards.
    x = e.cast(x, float64 if to.bits >= 32 else float32 if x.dtype.bits < 32 else x.dtype)
    below = np.nextafter(x.dtype.numpy.type(2.0**to.bits), 0) if to.bits == 64 else None
    if below is not None and to.kind == "int":
        below = np.nextafter(x.dtype.numpy.type(2.0**63), 0)
    top = high if below is None else below
    known = choose(e, e("IsNaN", x, dtype=bool_), number(e, 0, x), x)
    found = e.cast(e("Clip", known, number(e, low, x), number(e, top, x)), to)
    if below is None:
        return found
    limit = e.constant(np.array(high, to.numpy))
    return choose(e, compare(e, "Greater", x, number(e, top, x)), limit, found)


def _read_cast_like(call: OnnxCall) -> Converted:
    return _converted(call, call[0], call[1].tensor.dtype)


def _read_bitcast(call: OnnxCall) -> Converted:
    x, to = call[0], call.dtype("to")
    of = x.tensor.dtype
    if of is to:
        return x
    if dtypes.bool_ in (of, to):
        # A bool is a byte that is 0 or 1.
        if {of, to} <= {dtypes.bool_, dtypes.int8, dtypes.uint8}:
            return conversion.cast(x, dtype=to)
        call.refuse(f"bits of {of} are to be read as {to}: they must have the same width.")
    if of.bits == to.bits < 8 and of.is_integer and to.is_integer:
        # Signed or not: what is out of range wraps around, which keeps the bits.
        return conversion.cast(x, dtype=to)
    return conversion.bitcast(x, dtype=to)


def _write_bitcast(e: Emitter, node: Node, x: Ref) -> Ref:
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


READERS: Mapping[str, Read] = {
    "Cast": _read_cast,
    "CastLike": _read_cast_like,
    "BitCast": _read_bitcast,
}


WRITERS: Mapping[str, Write] = {
    "cast": _write_cast,
    "bitcast": _write_bitcast,
}
