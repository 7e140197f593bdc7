"""Arithmetic, and functions of one operand.

Functions that ONNX lacks are made of others, without losing digits. Integer division never divides
by what would stop the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from fusewire import dtypes
from fusewire.dtypes import bool_, float64
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.ops.rows import OnnxRow, aligned, readers, writers
from fusewire.onnx.ops.writing import (
    choose,
    compare,
    has_kernel,
    larger,
    number,
    operand,
    plain,
    smaller,
)
from fusewire.ops import elementwise
from fusewire.ops.declare import Op

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


def _divisor(e: Emitter, node: Node, y: Ref) -> tuple[Ref, Ref | None, Ref | None]:
    """Give a divisor that is safe, and where it was 0 or -1: the smallest number by -1 traps."""
    held = operand(node, 1).constant
    is_signed = y.dtype.kind == "int"
    if held is not None and not ((held.array == 0) | (is_signed & (held.array == -1))).any():
        return y, None, None
    one = number(e, 1, y)
    none = compare(e, "Equal", y, number(e, 0, y))
    turned = compare(e, "Equal", y, number(e, -1, y)) if is_signed else None
    unsafe = none if turned is None else e("Or", none, turned)
    return choose(e, unsafe, one, y), none, turned


def _read_divide(call: OnnxCall) -> Converted:
    x, y = aligned(call)
    _note_division(call, y)
    # Integers are divided as C does.
    op = elementwise.divide if x.tensor.dtype.is_float else elementwise.truncate_divide
    return op(x, y)


def _note_division(call: OnnxCall, divisor: Value) -> None:
    """Note a division of integers that would end the process of an engine, if it may be one."""
    if divisor.tensor.dtype.is_float:
        return
    known = call.array(divisor)
    if known is None or ((known == 0) | (known == -1)).any():
        call.importer.hazards.append(f"{call.label} may divide integers by 0, or by -1.")


def _write_truncate_divide(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Divide integers toward 0; by 0 gives 0."""
    safe, none, turned = _divisor(e, node, y)
    found = e("Div", x, safe)
    if turned is not None:
        found = choose(e, turned, e("Neg", x), found)
    return found if none is None else choose(e, none, number(e, 0, x), found)


def _write_floor_divide(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Divide and round down, as NumPy does."""
    if x.dtype.is_float:
        rest = e("Mod", x, y, fmod=1)
        quotient = e("Div", e("Sub", x, rest), y)
        zero = number(e, 0, x)
        apart = e("Xor", compare(e, "Less", rest, zero), compare(e, "Less", y, zero))
        below = e("And", apart, e("Not", compare(e, "Equal", rest, zero)))
        whole = e("Round", choose(e, below, e("Sub", quotient, number(e, 1, x)), quotient))
        return choose(e, compare(e, "Equal", y, zero), e("Div", x, y), whole)
    found = _write_truncate_divide(e, node, x, y)
    if x.dtype.kind == "uint":
        return found
    rest, zero = e("Sub", x, e("Mul", found, y)), number(e, 0, x)
    apart = e("Xor", compare(e, "Less", rest, zero), compare(e, "Less", y, zero))
    inexact = e("And", apart, e("Not", compare(e, "Equal", rest, zero)))
    below = choose(e, inexact, e("Sub", found, number(e, 1, x)), found)
    held = operand(node, 1).constant
    if held is not None and (held.array != 0).all():
        return below
    return choose(e, compare(e, "Equal", y, zero), zero, below)


def _read_mod(call: OnnxCall) -> Converted:
    _note_division(call, call[1])
    return (elementwise.fmod if call.flag("fmod") else elementwise.remainder)(call[0], call[1])


def _write_remainder(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Give the rest of floor_divide."""
    zero = number(e, 0, x)
    if not x.dtype.is_float:
        safe, none, _ = _divisor(e, node, y)
        found = e("Mod", x, safe)
        return found if none is None else choose(e, none, zero, found)
    rest = e("Mod", x, y, fmod=1)
    apart = e("Xor", compare(e, "Less", rest, zero), compare(e, "Less", y, zero))
    moves = e("And", apart, e("Not", compare(e, "Equal", rest, zero)))
    return choose(e, moves, e("Add", rest, y), rest)


def _write_fmod(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Give the rest of truncate_divide: of integers by subtracting, as Mod rounds them."""
    if x.dtype.is_float:
        return e("Mod", x, y, fmod=1)
    safe, none, _ = _divisor(e, node, y)
    found = e("Sub", x, e("Mul", e("Div", x, safe), safe))
    return found if none is None else choose(e, none, number(e, 0, x), found)


def _read_power(call: OnnxCall) -> Converted:
    x, y = aligned(call)
    of = x.tensor.dtype
    if y.tensor.dtype is of:
        return elementwise.power(x, y)
    # The result has the dtype of the base; what it is computed in must hold both.
    if y.tensor.dtype.is_float and not of.is_float:
        wide = dtypes.float64
        found = elementwise.power(cast(x, wide), cast(y, wide))
        return cast(found, of)
    return elementwise.power(x, cast(y, of))


def _write_power(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Raise floats to powers."""
    if x.dtype.is_integer:
        e.caution(f"Engines compute powers of {x.dtype} in float64, which has fewer digits.")
    return e("Pow", x, y)


def _folded(op: Op[Any]) -> Read:
    """Combine any number of operands from the left."""
    return lambda call: reduce(op, call.rest)


def _write_maximum(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Take the larger."""
    return larger(e, x, y)


def _write_minimum(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Take the smaller."""
    return smaller(e, x, y)


def _read_mean(call: OnnxCall) -> Converted:
    total = reduce(elementwise.add, call.rest)
    return elementwise.divide(total, float(len(call.inputs)))


def _read_identity(call: OnnxCall) -> Converted:
    return call[0]


def _write_sign(e: Emitter, node: Node, x: Ref) -> Ref:
    """Give the sign; engines disagree about that of NaN, which is NaN here."""
    if x.dtype.is_float:
        return choose(e, e("IsNaN", x, dtype=bool_), x, e("Sign", x))
    if has_kernel(e.target, "Sign", x):
        return e("Sign", x)
    zero = number(e, 0, x)
    above, below = (e.cast(compare(e, op, x, zero), x.dtype) for op in ("Greater", "Less"))
    return e("Sub", above, below)


def _write_square(e: Emitter, node: Node, x: Ref) -> Ref:
    """Multiply by itself."""
    return e("Mul", x, x)


def _write_tan(e: Emitter, node: Node, x: Ref) -> Ref:
    """Take the tangent; in float64 as a quotient, because engines lack it."""
    if x.dtype is float64:
        return e("Div", e("Sin", x), e("Cos", x))
    return e("Tan", x)


ROWS = (
    OnnxRow(elementwise.add, "Add", broadcasts=True),
    OnnxRow(elementwise.subtract, "Sub", broadcasts=True),
    OnnxRow(elementwise.multiply, "Mul", broadcasts=True),
    OnnxRow(elementwise.power, "Pow", reader=_read_power, writer=_write_power),
    OnnxRow(elementwise.maximum, "Max", reader=_folded(elementwise.maximum), writer=_write_maximum),
    OnnxRow(elementwise.minimum, "Min", reader=_folded(elementwise.minimum), writer=_write_minimum),
    OnnxRow(elementwise.negative, "Neg"),
    OnnxRow(elementwise.reciprocal, "Reciprocal"),
    OnnxRow(elementwise.sqrt, "Sqrt"),
    OnnxRow(elementwise.exp, "Exp"),
    OnnxRow(elementwise.log, "Log"),
    OnnxRow(elementwise.sin, "Sin"),
    OnnxRow(elementwise.cos, "Cos"),
    OnnxRow(elementwise.asin, "Asin"),
    OnnxRow(elementwise.acos, "Acos"),
    OnnxRow(elementwise.atan, "Atan"),
    OnnxRow(elementwise.sinh, "Sinh"),
    OnnxRow(elementwise.cosh, "Cosh"),
    OnnxRow(elementwise.tanh, "Tanh"),
    OnnxRow(elementwise.asinh, "Asinh"),
    OnnxRow(elementwise.acosh, "Acosh"),
    OnnxRow(elementwise.atanh, "Atanh"),
    OnnxRow(elementwise.erf, "Erf"),
    OnnxRow(elementwise.ceil, "Ceil"),
    OnnxRow(elementwise.floor, "Floor"),
    OnnxRow(elementwise.round_, "Round"),
    OnnxRow(elementwise.abs_, "Abs"),
    OnnxRow(elementwise.sign, "Sign", writer=_write_sign),
    OnnxRow(elementwise.tan, "Tan", writer=_write_tan),
)
READERS: Mapping[str, Read] = {
    **readers(ROWS),
    "Div": _read_divide,
    "Mod": _read_mod,
    "Sum": _folded(elementwise.add),
    "Mean": _read_mean,
    "Identity": _read_identity,
}
WRITERS: Mapping[str, Write] = {
    **writers(ROWS),
    "divide": plain("Div"),
    "truncate_divide": _write_truncate_divide,
    "floor_divide": _write_floor_divide,
    "remainder": _write_remainder,
    "fmod": _write_fmod,
    "square": _write_square,
}
