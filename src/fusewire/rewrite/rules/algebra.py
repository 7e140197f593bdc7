"""Arithmetic identities that hold for every bit pattern, and why the tempting others do not.

Complex numbers are left out of identities with numbers: 1 * z is not z when z holds infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire.dtypes import DType
from fusewire.facts.known import Facts
from fusewire.ir.builder import constant
from fusewire.ir.graph import Node, Value
from fusewire.ops.declare import Op
from fusewire.ops.elementwise import (
    add,
    divide,
    floor_divide,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    reciprocal,
    square,
    subtract,
    truncate_divide,
)
from fusewire.ops.logic import bitwise_and, bitwise_or, bitwise_xor
from fusewire.ops.movement import broadcast_to
from fusewire.rewrite.pattern import is_number, maker, shaped, splat
from fusewire.rewrite.rule import Outcome, RuleTable, on

TABLE = RuleTable("algebra")
SIGN_OF_ZERO = "x {} is not x where x is -0.0: the sum is 0.0."


def full_like(value: Value, number: Any) -> Value:
    """Give the number in the type of a value."""
    type_ = value.tensor
    return broadcast_to(constant(np.array(number, type_.dtype.numpy)), shape=type_.shape)


def _neutral(op: Op[Value], number: float | str, either: bool, because: str) -> None:
    """Declare that a number on the right (on either side) of an op changes nothing."""

    def value_of(of: DType) -> float:
        low, high = (-math.inf, math.inf) if of.is_float else of.range
        named = {"lowest": low, "highest": high, "ones": -1 if of.kind == "int" else high}
        return named[number] if isinstance(number, str) else number

    def apply(node: Node, facts: Facts) -> Outcome:
        x, y = node.operands
        of = x.tensor.dtype
        if of.is_complex or (of.is_float and op in (floor_divide, truncate_divide)):
            return None
        for kept, other in ((x, y), (y, x))[: 1 + either]:
            found = splat(other)
            if found is None or found != value_of(of):
                continue
            if of.is_float and number == 0 and (math.copysign(1, found) < 0) != (op is add):
                return SIGN_OF_ZERO.format("+ 0.0" if op is add else "- -0.0")
            return shaped(kept, node.outputs[0].tensor)
        return None

    def build(x: Value) -> Value:
        of = x.tensor.dtype
        given = -0.0 if op is add and of.is_float else value_of(of)
        return op(x, constant(np.array(given, of.numpy)))

    TABLE.rule(f"{op.name}-neutral", op.name, because=because, example=on(build, _types(op)))(apply)


def _types(op: Op[Any]) -> str:
    return "T[n, 3]" if "float32" in {d.name for d in op.dtypes} else "int32[n, 3]"


_neutral(add, 0, True, "Adding 0 changes no int, adding -0.0 no float.")
_neutral(subtract, 0, False, "Subtracting 0 changes no int, subtracting 0.0 no float.")
_neutral(multiply, 1, True, "One times x is x.")
_neutral(divide, 1, False, "x divided by one is x.")
_neutral(floor_divide, 1, False, "An int divided by one is itself.")
_neutral(truncate_divide, 1, False, "An int divided by one is itself.")
_neutral(maximum, "lowest", True, "Nothing is below the lowest value, and NaN stays NaN.")
_neutral(minimum, "highest", True, "Nothing is above the highest value, and NaN stays NaN.")
_neutral(bitwise_and, "ones", True, "All bits are kept.")
_neutral(bitwise_or, 0, True, "No bit is added.")
_neutral(bitwise_xor, 0, True, "No bit is flipped.")


@TABLE.rule(
    "multiply-by-zero",
    "multiply",
    "bitwise_and",
    because="An int times 0 is 0.",
    example=on(lambda x: multiply(x, 0), "int8[n]"),
)
def _by_zero(node: Node, facts: Facts) -> Outcome:
    of = node.outputs[0].tensor.dtype
    if not any(splat(v) == 0 for v in node.operands):
        return None
    if of.is_integer:
        return full_like(node.outputs[0], 0)
    return "x * 0 is NaN where x is NaN or infinite, and -0.0 where x is negative."


@TABLE.rule(
    "minus-itself",
    "subtract",
    "bitwise_xor",
    because="An int less itself is 0.",
    example=on(lambda x: subtract(x, x), "uint8[n]"),
)
def _minus_itself(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    if x is not y:
        return None
    if x.tensor.dtype.is_integer:
        return full_like(node.outputs[0], 0)
    return "x - x is NaN where x is NaN or infinite."


@TABLE.rule(
    "both-the-same",
    "maximum",
    "minimum",
    "bitwise_and",
    "bitwise_or",
    "logical_and",
    "logical_or",
    because="Of two equal values either will do, NaN too.",
    example=on(lambda x: maximum(x, x), "T[n]"),
)
def _same(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    return x if x is y else None


@TABLE.rule(
    "times-minus-one",
    "multiply",
    "divide",
    because="-1 * x and x / -1 are -x.",
    example=on(lambda x: multiply(x, -1), "T[n]"),
)
def _minus_one(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    if not x.tensor.dtype.is_signed:
        return None
    for kept, other in ((x, y), (y, x))[: 1 + (node.op == "multiply")]:
        if is_number(other, -1.0) and (same := shaped(kept, node.outputs[0].tensor)):
            return negative(same)
    return None


@TABLE.rule(
    "zero-minus",
    "subtract",
    because="0 - x is -x of ints, -0.0 - x of floats.",
    example=on(lambda x: subtract(constant(np.array(0, x.tensor.dtype.numpy)), x), "int32[n]"),
)
def _zero_minus(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    of = y.tensor.dtype
    if not of.is_signed or of.is_complex or y.type != node.outputs[0].type:
        return None
    if is_number(x, -0.0) or (of.is_integer and is_number(x, 0.0)):
        return negative(y)
    if is_number(x, 0.0):
        return "0.0 - x is 0.0 where x is 0.0, and -x would be -0.0."
    return None


@TABLE.rule(
    "one-over",
    "divide",
    because="One divided by x is the reciprocal.",
    example=on(lambda x: divide(constant(np.array(1, x.tensor.dtype.numpy)), x), "T[n]"),
)
def _one_over(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    return reciprocal(y) if is_number(x, 1.0) and y.type == node.outputs[0].type else None


@TABLE.rule(
    "divide-by-power-of-two",
    "divide",
    because="The reciprocal of a power of two is exact, so both round the same number.",
    example=on(lambda x: divide(x, 8.0), "T[n]"),
)
def _power_of_two(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    divisor, of = splat(y), y.tensor.dtype
    if divisor is None or not of.is_float:
        return None
    if not math.isfinite(divisor) or abs(math.frexp(divisor)[0]) != 0.5:
        return f"1 / {divisor:g} is not a number of {of}: the product would round twice."
    if not 4 / of.range[1] <= abs(divisor) <= of.range[1] / 4:
        return f"1 / {divisor:g} is too close to the limits of {of}."
    return multiply(x, constant(np.array(1 / divisor, of.numpy)))


_POWERS: dict[float, Callable[[Value], Value]] = {
    1.0: lambda x: x,
    2.0: square,
    -1.0: reciprocal,
}


@TABLE.rule(
    "small-power",
    "power",
    because="These powers are ops of their own, which round once.",
    example=on(lambda x: power(x, 2), "T[n]"),
    exact=False,
)
def _small_power(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    number = splat(y)
    if number is None or x.type != node.outputs[0].type:
        return None
    if number == 0:
        return full_like(node.outputs[0], 1)
    if number == 0.5:
        return "power(x, 0.5) is inf of -inf and 0.0 of -0.0, and sqrt(x) NaN and -0.0."
    if number not in _POWERS or (number == -1 and not x.tensor.dtype.is_float):
        return None
    return _POWERS[number](x)


_COMPOSED: dict[tuple[str, str], tuple[Op[Value], Op[Value]]] = {
    ("add", "add"): (add, add),
    ("add", "subtract"): (add, subtract),
    ("subtract", "add"): (subtract, subtract),
    ("subtract", "subtract"): (subtract, add),
    ("multiply", "multiply"): (multiply, multiply),
}


@TABLE.rule(
    "constants-compose",
    "add",
    "subtract",
    "multiply",
    because="Ints wrap, so sums and products may be taken in any order.",
    example=on(lambda x: subtract(add(x, 7), np.full(3, 9, x.tensor.dtype.numpy)), "int8[n, 3]"),
)
def _compose(node: Node, facts: Facts) -> Outcome:
    x, second = node.operands
    inner = maker(x, "add", "subtract", "multiply")
    if inner is None or (inner.op, node.op) not in _COMPOSED or second.constant is None:
        return None
    kept, first = inner.operands
    if first.constant is None:
        return None
    if not x.tensor.dtype.is_integer:
        return "floats round after each step."
    outer, between = _COMPOSED[inner.op, node.op]
    return outer(kept, between(first, second))
