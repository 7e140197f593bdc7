"""64-bit integers as pairs of int32: the lower and the upper half of their bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Lower,
    Ov,
    Pair,
    const,
    is_below,
    is_below_unsigned,
    is_same,
    select,
    shift_right,
)
from fusewire.ir.graph import Node

_TOP = -(2**31)


def widened(x: Ov) -> Pair:
    """Make a pair of int32, copying the sign."""
    return x, ops.bitwise_right_shift(x, const(31))


def saturated(x: Pair, is_signed: bool = True) -> Ov:
    """Give the nearest int32: places out of reach stay out of reach."""
    low, high = x
    if not is_signed:
        fits = ops.logical_and(ops.equal(high, const(0)), ops.greater_equal(low, const(0)))
        return select(fits, low, const(2**31 - 1))
    fits = ops.equal(high, ops.bitwise_right_shift(low, const(31)))
    bound = select(ops.less(high, const(0)), const(_TOP), const(2**31 - 1))
    return select(fits, low, bound)


def _flag(x: Ov) -> Ov:
    return ops.convert(x, "i32")


def _sum(x: Pair, y: Pair) -> Pair:
    low = ops.add(x[0], y[0])
    carry = _flag(is_below_unsigned(low, x[0]))
    return low, ops.add(ops.add(x[1], y[1]), carry)


def opposite(x: Pair) -> Pair:
    """Change the sign."""
    return _sum((ops.bitwise_not(x[0]), ops.bitwise_not(x[1])), (const(1), const(0)))


def _is_signed(node: Node) -> bool:
    return node.operands[-1].tensor.dtype.is_signed


def _less(node: Node, x: Pair, y: Pair) -> Ov:
    above = is_below if _is_signed(node) else is_below_unsigned
    same = is_same(x[1], y[1])
    return ops.logical_or(above(x[1], y[1]), ops.logical_and(same, is_below_unsigned(x[0], y[0])))


def _equal(x: Pair, y: Pair) -> Ov:
    return ops.logical_and(is_same(x[0], y[0]), is_same(x[1], y[1]))


def select_pair(condition: Ov, x: Pair, y: Pair) -> Pair:
    """Choose both halves."""
    return select(condition, x[0], y[0]), select(condition, x[1], y[1])


def each(function: Callable[..., Ov]) -> Lower:
    """Treat both halves alike."""
    return lambda s, node, *xs: tuple(function(*halves) for halves in zip(*xs, strict=True))


def add(s: Any, node: Node, x: Pair, y: Pair) -> Pair:
    """Add with a carry."""
    return _sum(x, y)


def subtract(s: Any, node: Node, x: Pair, y: Pair) -> Pair:
    """Add the opposite."""
    return _sum(x, opposite(y))


def negative(s: Any, node: Node, x: Pair) -> Pair:
    """Change the sign."""
    return opposite(x)


def multiply(s: Any, node: Node, x: Pair, y: Pair) -> Pair:
    """Multiply 16 bits at a time, so that no product of two parts needs more than 32."""
    half = const(0xFFFF)
    (a, b), (c, d) = ((ops.bitwise_and(low, half), shift_right(low, 16)) for low in (x[0], y[0]))
    low, left, right, top = (ops.multiply(m, n) for m, n in ((a, c), (a, d), (b, c), (b, d)))
    middle = ops.add(
        shift_right(low, 16), ops.add(ops.bitwise_and(left, half), ops.bitwise_and(right, half))
    )
    upper = ops.add(ops.add(top, shift_right(left, 16)), shift_right(right, 16))
    upper = ops.add(upper, shift_right(middle, 16))
    upper = ops.add(upper, ops.add(ops.multiply(x[0], y[1]), ops.multiply(x[1], y[0])))
    lower = ops.bitwise_or(ops.bitwise_left_shift(middle, const(16)), ops.bitwise_and(low, half))
    return lower, upper


def absolute(s: Any, node: Node, x: Pair) -> Pair:
    """Drop the sign, if there is one."""
    return select_pair(ops.less(x[1], const(0)), opposite(x), x) if _is_signed(node) else x


def sign(s: Any, node: Node, x: Pair) -> Pair:
    """Give -1, 0 or 1."""
    some = _flag(ops.not_equal(ops.bitwise_or(x[0], x[1]), const(0)))
    if not _is_signed(node):
        return widened(some)
    return widened(select(ops.less(x[1], const(0)), const(-1), some))


def maximum(s: Any, node: Node, x: Pair, y: Pair) -> Pair:
    """Take the larger."""
    return select_pair(_less(node, x, y), y, x)


def minimum(s: Any, node: Node, x: Pair, y: Pair) -> Pair:
    """Take the smaller."""
    return select_pair(_less(node, x, y), x, y)


def clip(s: Any, node: Node, x: Pair, low: Pair | None, high: Pair | None) -> Pair:
    """Limit; the high bound wins."""
    x = x if low is None else maximum(s, node, x, low)
    return x if high is None else minimum(s, node, x, high)


# By op: comparisons of pairs.
COMPARISONS: dict[str, Callable[[Node, Pair, Pair], Ov]] = {
    "equal": lambda node, x, y: _equal(x, y),
    "not_equal": lambda node, x, y: ops.logical_not(_equal(x, y)),
    "less": _less,
    "greater": lambda node, x, y: _less(node, y, x),
    "less_equal": lambda node, x, y: ops.logical_not(_less(node, y, x)),
    "greater_equal": lambda node, x, y: ops.logical_not(_less(node, x, y)),
}


def compare(name: str) -> Lower:
    """Compare pairs."""
    return lambda s, node, x, y: COMPARISONS[name](node, x, y)
