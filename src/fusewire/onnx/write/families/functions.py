"""Functions of one operand. Those that ONNX lacks are made of others, without losing digits."""

from __future__ import annotations

import math

from fusewire.dtypes import bool_, float32, float64
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import (
    choose,
    compare,
    has_kernel,
    number,
    plain,
    widened,
)
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref, Write


def sign(e: Emitter, node: Node, x: Ref) -> Ref:
    """Give the sign; engines disagree about that of NaN, which is NaN here."""
    if x.dtype.is_float:
        return choose(e, e("IsNaN", x, dtype=bool_), x, e("Sign", x))
    if has_kernel(e.target, "Sign", x):
        return e("Sign", x)
    zero = number(e, 0, x)
    above, below = (e.cast(compare(e, op, x, zero), x.dtype) for op in ("Greater", "Less"))
    return e("Sub", above, below)


def rsqrt(e: Emitter, node: Node, x: Ref) -> Ref:
    """Divide one by the root, rounded once for 16 bits."""
    wide = widened(e, x, float32)
    return e.cast(e("Reciprocal", e("Sqrt", wide)), x.dtype)


def cbrt(e: Emitter, node: Node, x: Ref) -> Ref:
    """Raise to a third in float64, and step once toward the root, as a third is not exact."""
    wide = e.cast(x, float64)
    size = e("Abs", wide)
    root = e("Pow", size, number(e, 1.0 / 3.0, wide))
    square = e("Mul", root, root)
    step = e("Div", e("Sub", root, e("Div", size, square)), number(e, 3.0, wide))
    near = e("Sub", root, step)
    # At 0 and infinity the step has no value, and the root needs none.
    kept = choose(e, e("IsNaN", step, dtype=bool_), root, near)
    return e.cast(e("Mul", kept, e("Sign", wide)), x.dtype)


def exp2(e: Emitter, node: Node, x: Ref) -> Ref:
    """Raise 2 to a power."""
    return e("Pow", number(e, 2.0, x), x)


def expm1(e: Emitter, node: Node, x: Ref) -> Ref:
    """Compute e^x - 1 by Kahan: the rounding of e^x cancels against its logarithm's."""
    wide = widened(e, x, float32)
    one = number(e, 1.0, wide)
    grown = e("Exp", wide)
    less = e("Sub", grown, one)
    near = e("Mul", less, e("Div", wide, e("Log", grown)))
    # Far out there is nothing to cancel, and the logarithm has no value.
    far = e("Or", e("IsInf", grown, dtype=bool_), compare(e, "Less", grown, number(e, 0.1, wide)))
    found = choose(e, far, less, near)
    return e.cast(choose(e, compare(e, "Equal", grown, one), wide, found), x.dtype)


def log1p(e: Emitter, node: Node, x: Ref) -> Ref:
    """Compute log(1 + x) by Kahan: the rounding of 1 + x is divided out."""
    wide = widened(e, x, float32)
    one = number(e, 1.0, wide)
    moved = e("Add", wide, one)
    log = e("Log", moved)
    near = e("Mul", log, e("Div", wide, e("Sub", moved, one)))
    found = choose(e, e("IsInf", moved, dtype=bool_), log, near)
    return e.cast(choose(e, compare(e, "Equal", moved, one), wide, found), x.dtype)


def logarithm(base: float) -> Write:
    """Take the logarithm to a base, rounded once for 16 bits."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        wide = widened(e, x, float32)
        found = e("Mul", e("Log", wide), number(e, 1.0 / math.log(base), wide))
        return e.cast(found, x.dtype)

    return write


def tan(e: Emitter, node: Node, x: Ref) -> Ref:
    """Take the tangent; in float64 as a quotient, because engines lack it."""
    if x.dtype is float64:
        return e("Div", e("Sin", x), e("Cos", x))
    return e("Tan", x)


def trunc(e: Emitter, node: Node, x: Ref) -> Ref:
    """Round toward 0."""
    return choose(e, compare(e, "Less", x, number(e, 0, x)), e("Ceil", x), e("Floor", x))


WRITERS = {
    "negative": plain("Neg"),
    "sign": sign,
    "square": lambda e, node, x: e("Mul", x, x),
    "reciprocal": plain("Reciprocal"),
    "sqrt": plain("Sqrt"),
    "rsqrt": rsqrt,
    "cbrt": cbrt,
    "exp": plain("Exp"),
    "exp2": exp2,
    "expm1": expm1,
    "log": plain("Log"),
    "log2": logarithm(2.0),
    "log10": logarithm(10.0),
    "log1p": log1p,
    "sin": plain("Sin"),
    "cos": plain("Cos"),
    "tan": tan,
    "asin": plain("Asin"),
    "acos": plain("Acos"),
    "atan": plain("Atan"),
    "sinh": plain("Sinh"),
    "cosh": plain("Cosh"),
    "tanh": plain("Tanh"),
    "asinh": plain("Asinh"),
    "acosh": plain("Acosh"),
    "atanh": plain("Atanh"),
    "erf": plain("Erf"),
    "ceil": plain("Ceil"),
    "floor": plain("Floor"),
    "round": plain("Round"),
    "trunc": trunc,
    "abs": plain("Abs"),
    "sigmoid": plain("Sigmoid"),
}
