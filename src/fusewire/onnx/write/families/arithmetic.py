"""Arithmetic of two operands. Integer division never divides by what would stop the process."""

from __future__ import annotations

import math

from fusewire.dtypes import bool_
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import (
    choose,
    compare,
    larger,
    number,
    operand,
    plain,
    smaller,
)
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref


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


def truncate_divide(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Divide integers toward 0; by 0 gives 0."""
    safe, none, turned = _divisor(e, node, y)
    found = e("Div", x, safe)
    if turned is not None:
        found = choose(e, turned, e("Neg", x), found)
    return found if none is None else choose(e, none, number(e, 0, x), found)


def floor_divide(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Divide and round down, as NumPy does."""
    if x.dtype.is_float:
        rest = e("Mod", x, y, fmod=1)
        quotient = e("Div", e("Sub", x, rest), y)
        zero = number(e, 0, x)
        apart = e("Xor", compare(e, "Less", rest, zero), compare(e, "Less", y, zero))
        below = e("And", apart, e("Not", compare(e, "Equal", rest, zero)))
        whole = e("Round", choose(e, below, e("Sub", quotient, number(e, 1, x)), quotient))
        return choose(e, compare(e, "Equal", y, zero), e("Div", x, y), whole)
    found = truncate_divide(e, node, x, y)
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


def remainder(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
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


def fmod(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Give the rest of truncate_divide: of integers by subtracting, as Mod rounds them."""
    if x.dtype.is_float:
        return e("Mod", x, y, fmod=1)
    safe, none, _ = _divisor(e, node, y)
    found = e("Sub", x, e("Mul", e("Div", x, safe), safe))
    return found if none is None else choose(e, none, number(e, 0, x), found)


def power(e: Emitter, node: Node, x: Ref, y: Ref) -> Ref:
    """Raise floats to powers."""
    if x.dtype.is_integer:
        e.caution(f"Engines compute powers of {x.dtype} in float64, which has fewer digits.")
    return e("Pow", x, y)


def atan2(e: Emitter, node: Node, y: Ref, x: Ref) -> Ref:
    """Take the angle by the arc tangent of the quotient, in the half plane that the signs tell."""
    # Two infinities have no quotient, and the same angle as two ones.
    both = e("And", e("IsInf", x, dtype=bool_), e("IsInf", y, dtype=bool_))
    y, x = (choose(e, both, e("Sign", v), v) for v in (y, x))
    down, left = _is_negative(e, y), _is_negative(e, x)
    turn = choose(e, down, number(e, -math.pi, x), number(e, math.pi, x))
    slope = e("Atan", e("Div", y, x))
    angle = choose(e, left, e("Add", slope, turn), slope)
    # Nor have two zeros: their angle is 0 or pi by the sign of x, signed as y.
    zero = number(e, 0, x)
    none = e("And", compare(e, "Equal", x, zero), compare(e, "Equal", y, zero))
    return choose(e, none, choose(e, left, turn, y), angle)


def _is_negative(e: Emitter, x: Ref) -> Ref:
    """Tell the sign, also of 0: one over it is infinite and has the same."""
    zero = number(e, 0, x)
    return e("Or", compare(e, "Less", x, zero), compare(e, "Less", e("Reciprocal", x), zero))


WRITERS = {
    "add": plain("Add"),
    "subtract": plain("Sub"),
    "multiply": plain("Mul"),
    "divide": plain("Div"),
    "floor_divide": floor_divide,
    "truncate_divide": truncate_divide,
    "remainder": remainder,
    "fmod": fmod,
    "maximum": lambda e, node, x, y: larger(e, x, y),
    "minimum": lambda e, node, x, y: smaller(e, x, y),
    "power": power,
    "atan2": atan2,
}
