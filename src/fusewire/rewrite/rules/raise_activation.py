"""Activations that programs write as many ops, as one op each, for which engines have kernels.

A product is taken apart into a number and its factors, and what a step is taken of into a
polynomial, so that one rule knows every order in which exporters write them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fusewire.facts.known import Facts
from fusewire.ir.graph import Node, Value
from fusewire.ops.activation import gelu, hard_sigmoid, hard_swish, quick_gelu, sigmoid, silu, swish
from fusewire.ops.elementwise import add, clip, divide, erf, multiply
from fusewire.rewrite.pattern import is_private, maker, splat
from fusewire.rewrite.rule import Outcome, RuleTable, on

TABLE = RuleTable("raise_activation")
SHARED = "a result on the way is used elsewhere, so both would have to be computed."
QUICK = 1.702
# Coefficients by the power of x.
Polynomial: TypeAlias = Mapping[int, float]
_STEPS: Mapping[str, Polynomial] = {
    "erf": {1: math.sqrt(0.5)},
    "tanh": {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715},
}
_MOST_FACTORS = 4


def _is_near(found: float, wanted: float) -> bool:
    return abs(found - wanted) <= 1e-6 * abs(wanted)


def _number(value: Value) -> float | None:
    found = splat(value)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _product(node: Node, facts: Facts) -> tuple[float, list[Value]]:
    """Take a product apart into a number and factors; what others use too stays whole."""
    scale = 1.0
    factors: list[Value] = []
    waiting = [(v, node.op == "divide" and i == 1) for i, v in enumerate(node.operands)]
    while waiting:
        value, is_divisor = waiting.pop()
        number = _number(value)
        inner = maker(value, "multiply", "divide")
        if number:
            scale = scale / number if is_divisor else scale * number
        elif is_divisor or len(factors) + len(waiting) > _MOST_FACTORS:
            return 0.0, []
        elif inner is None or facts.uses(value) > 1:
            factors.append(value)
        else:
            waiting += [(v, inner.op == "divide" and i == 1) for i, v in enumerate(inner.operands)]
    return scale, factors


def _polynomial(value: Value, x: Value, depth: int = 6) -> Polynomial | None:
    """Give the coefficients of a value as a polynomial of x, or None if it is none."""
    if value is x:
        return {1: 1.0}
    number = _number(value)
    if number is not None:
        return {0: number}
    node = maker(value, "add", "multiply", "divide", "square", "power")
    if node is None or depth == 0:
        return None
    parts = [_polynomial(v, x, depth - 1) for v in node.operands]
    left, right = parts[0], parts[-1]
    if left is None or right is None:
        return None
    if node.op == "add":
        return {n: left.get(n, 0.0) + right.get(n, 0.0) for n in {*left, *right}}
    if node.op == "power":
        return _times(_times(left, left), left) if dict(right) == {0: 3.0} else None
    if node.op == "divide":
        divisor = right.get(0, 0.0)
        return {n: c / divisor for n, c in left.items()} if [*right] == [0] and divisor else None
    return _times(left, right)


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    found: dict[int, float] = {}
    for n, a in left.items():
        for m, b in right.items():
            found[n + m] = found.get(n + m, 0.0) + a * b
    return found


def _pairs(node: Node, facts: Facts) -> Iterator[tuple[float, Value, Value]]:
    """List a product of two factors and a number, both ways round."""
    scale, factors = _product(node, facts)
    if len(factors) == 2:
        yield scale, factors[0], factors[1]
        yield scale, factors[1], factors[0]


def _raised(node: Node, x: Value, facts: Facts, made: Value) -> Outcome:
    """Give what stands for a node, if only it needs what lies between it and x."""
    if made.type != node.outputs[0].type:
        return None
    return made if is_private(node, (x,), facts) else SHARED


@TABLE.rule(
    "raise-silu",
    "multiply",
    because="x times its sigmoid is what silu means.",
    example=on(lambda x: multiply(sigmoid(x), x), "T[n, 3]"),
)
def _silu(node: Node, facts: Facts) -> Outcome:
    for x, step in (node.operands, node.operands[::-1]):
        inner = maker(step, "sigmoid")
        if inner is not None and inner.inputs[0] is x:
            return _raised(node, x, facts, silu(x))
    return None


@TABLE.rule(
    "raise-swish",
    "multiply",
    because="x times the sigmoid of a multiple of x is what swish means; quick_gelu at 1.702.",
    example=on(lambda x: multiply(sigmoid(multiply(x, QUICK)), x), "T[n, 3]"),
)
def _swish(node: Node, facts: Facts) -> Outcome:
    for x, step in (node.operands, node.operands[::-1]):
        inner = maker(step, "sigmoid")
        scaled = maker(inner.inputs[0], "multiply") if inner is not None else None
        alpha = None if scaled is None else _number(scaled.operands[1])
        if scaled is not None and scaled.inputs[0] is x and alpha is not None:
            op = quick_gelu if _is_near(alpha, QUICK) else swish
            return _raised(node, x, facts, op(x, alpha=alpha))
    return None


@TABLE.rule(
    "raise-gelu",
    "multiply",
    "divide",
    because="Half of x times one more than erf or tanh, in whatever order, is gelu.",
    example=on(
        lambda x: multiply(multiply(x, 0.5), add(erf(multiply(x, math.sqrt(0.5))), 1.0)), "T[n, 3]"
    ),
    exact=False,
)
def _gelu(node: Node, facts: Facts) -> Outcome:
    for scale, x, step in _pairs(node, facts):
        moved = maker(step, "add")
        if moved is None:
            continue
        share = _number(moved.operands[1])
        half, parts = _half(moved.operands[0], facts)
        if share is None or half is None or parts is None:
            continue
        found = _polynomial(parts.operands[0], x)
        wanted = _STEPS[parts.op]
        if found is None or found.keys() != wanted.keys():
            continue
        near = all(_is_near(found[n], wanted[n]) for n in wanted)
        if near and _is_near(scale * share, 0.5) and _is_near(half, share):
            return _raised(node, x, facts, gelu(x, approximate=parts.op == "tanh"))
    return None


def _half(value: Value, facts: Facts) -> tuple[float | None, Node | None]:
    """Find a step and the number that it is multiplied by."""
    step = maker(value, *_STEPS)
    if step is not None:
        return 1.0, step
    scaled = maker(value, "multiply")
    if scaled is None:
        return None, None
    return _number(scaled.operands[1]), maker(scaled.operands[0], *_STEPS)


def _limited(value: Value) -> tuple[Value, float, float] | None:
    """Find what is limited to a range by constants."""
    node = maker(value, "clip", "relu6", "minimum")
    if node is None:
        return None
    if node.op == "relu6":
        return node.operands[0], 0.0, 6.0
    if node.op == "minimum":
        inner, high = maker(node.inputs[0], "relu", "maximum"), _number(node.operands[1])
        if inner is None or high is None:
            return None
        low = 0.0 if inner.op == "relu" else _number(inner.operands[1])
        return None if low is None else (inner.operands[0], low, high)
    low, high = (None if v is None else _number(v) for v in node.inputs[1:3])
    return None if low is None or high is None else (node.operands[0], low, high)


def _ramp(scale: float, value: Value, x: Value) -> tuple[float, float] | None:
    """Give slope and place of a line of x that a number brings to 0..1."""
    found = _limited(value)
    if found is None or found[1] != 0 or not _is_near(scale * found[2], 1.0):
        return None
    line = _polynomial(found[0], x, 2)
    if line is None or line.keys() != {0, 1}:
        return None
    return line[1] * scale, line[0] * scale


def _below(value: Value) -> Value:
    """Find the x of a line of x: the operand that is no number."""
    for _ in range(2):
        node = maker(value, "add", "multiply", "divide")
        if node is None:
            return value
        value = node.operands[0]
    return value


@TABLE.rule(
    "raise-hard-sigmoid",
    "clip",
    "multiply",
    "divide",
    because="A line limited to 0..1, or to a range that is brought to it, is hard_sigmoid.",
    example=on(lambda x: divide(clip(add(x, 3.0), 0.0, 6.0), 6.0), "float32[n, 3]"),
    exact=False,
)
def _hard_sigmoid(node: Node, facts: Facts) -> Outcome:
    scale, factors = (1.0, [node.outputs[0]]) if node.op == "clip" else _product(node, facts)
    limited = _limited(factors[0]) if len(factors) == 1 else None
    x = None if limited is None else _below(limited[0])
    line = None if x is None else _ramp(scale, factors[0], x)
    if x is None or line is None or line[0] == 1.0:
        return None
    return _raised(node, x, facts, hard_sigmoid(x, alpha=line[0], beta=line[1]))


@TABLE.rule(
    "raise-hard-swish",
    "multiply",
    "divide",
    because="x times a line of x limited to 0..1, of slope 1/6 through 1/2, is hard_swish. To "
    "divide by 6 last overflows close to the limits of the dtype, and hard_swish does not.",
    example=on(lambda x: multiply(x, divide(clip(add(x, 3.0), 0.0, 6.0), 6.0)), "float32[n, 3]"),
    exact=False,
)
def _hard_swish(node: Node, facts: Facts) -> Outcome:
    for scale, x, step in _pairs(node, facts):
        whole = maker(step, "hard_sigmoid")
        line: Any = _ramp(scale, step, x)
        if whole is not None and whole.inputs[0] is x and scale == 1.0:
            line = whole.attrs["alpha"], whole.attrs["beta"]
        if line is not None and _is_near(line[0], 1 / 6) and _is_near(line[1], 0.5):
            return _raised(node, x, facts, hard_swish(x))
    return None
