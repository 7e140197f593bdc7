"""Integer arithmetic, exact and wrapping."""

from __future__ import annotations

from typing import Any

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering import wide
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Lower,
    Ov,
    Table,
    at_least,
    const,
    convert,
    elementwise,
    ints,
    number,
    on_ints,
    select,
    shift_right,
    stored,
    turned,
    type_name,
    wrapped,
)
from fusewire.backends.openvino.lowering.floats import maximum, minimum
from fusewire.dtypes import uint32
from fusewire.ir.graph import Node


def divided(x: Ov, y: Ov) -> Ov:
    """Divide int32 and round toward 0; by 0 gives 0.

    The engine divides in float32, which has 24 bits: what is left over is divided once more.
    """
    none = ops.equal(y, const(0))
    by = select(none, const(1), y)
    quotient = _approximate(x, by)
    for _ in range(2):
        rest = ops.subtract(x, ops.multiply(quotient, by))
        quotient = ops.add(quotient, _approximate(rest, by))
    # At most one too far now: the rest has the sign of the dividend and is smaller than y.
    rest = ops.subtract(x, ops.multiply(quotient, by))
    wrong = ops.logical_and(
        ops.not_equal(rest, const(0)),
        ops.not_equal(ops.less(rest, const(0)), ops.less(x, const(0))),
    )
    toward = select(ops.equal(ops.less(x, const(0)), ops.less(by, const(0))), const(-1), const(1))
    quotient = ops.add(quotient, select(wrong, toward, const(0)))
    return select(none, const(0), quotient)


def _approximate(x: Ov, y: Ov) -> Ov:
    # To the nearest: the engine's division of 6 by 3 may lie below 2.
    quotient = ops.divide(convert(x, "f32"), convert(y, "f32"))
    return convert(ops.round(quotient, "half_to_even"), "i32")


def floored(x: Ov, y: Ov) -> tuple[Ov, Ov]:
    """Give the quotient rounded down and its rest; by 0 gives 0 and 0."""
    quotient = divided(x, y)
    rest = ops.subtract(x, ops.multiply(quotient, y))
    apart = ops.not_equal(ops.less(rest, const(0)), ops.less(y, const(0)))
    down = ops.logical_and(apart, ops.not_equal(rest, const(0)))
    none = ops.equal(y, const(0))
    rest = select(none, const(0), ops.add(rest, select(down, y, const(0))))
    return select(down, select(none, const(0), ops.subtract(quotient, const(1))), quotient), rest


def _fmod(x: Ov, y: Ov) -> Ov:
    rest = ops.subtract(x, ops.multiply(divided(x, y), y))
    return select(ops.equal(y, const(0)), const(0), rest)


def _chosen(function: Lower) -> Lower:
    """Take the larger or smaller; uint32 with its upper bit turned, there and back."""

    def lower(s: Any, node: Node, x: Ov, y: Ov) -> Ov:
        of = node.outputs[0].tensor.dtype
        if of is not uint32:
            return stored(function(ints(x), ints(y)), of) if of.is_integer else function(x, y)
        return turned(function(turned(x), turned(y)))

    return lower


def _shift_left(s: Any, node: Node, x: Ov, y: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    x, y = ints(x), ints(y)
    inside = _inside(y, of.bits)
    moved = ops.bitwise_left_shift(x, select(inside, y, const(0)))
    return wrapped(select(inside, moved, const(0)), of)


def _inside(count: Ov, bits: int) -> Ov:
    return ops.logical_and(at_least(count, const(0)), ops.less(count, const(bits)))


def _shift_right(s: Any, node: Node, x: Ov, y: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    x, y = ints(x), ints(y)
    inside = _inside(y, of.bits)
    count = select(inside, y, const(31))
    if of is not uint32:
        return stored(ops.bitwise_right_shift(x, count), of)
    # One place with a zero on top, then the rest: the engine copies the sign.
    rest = ops.maximum(ops.subtract(count, const(1)), const(0))
    moved = ops.bitwise_right_shift(shift_right(x, 1), rest)
    moved = select(ops.equal(count, const(0)), x, moved)
    return select(inside, moved, const(0))


def _population(s: Any, node: Node, x: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    x = ints(x)
    if of.bits < 32:
        x = ops.bitwise_and(x, const((1 << of.bits) - 1))

    def masked(value: Ov, mask: int) -> Ov:
        return ops.bitwise_and(value, const(mask))

    x = ops.subtract(x, masked(shift_right(x, 1), 0x55555555))
    x = ops.add(masked(x, 0x33333333), masked(shift_right(x, 2), 0x33333333))
    x = masked(ops.add(x, shift_right(x, 4)), 0x0F0F0F0F)
    return stored(shift_right(ops.multiply(x, const(0x01010101)), 24), of)


def _abs(s: Any, node: Node, x: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    return x if of.kind == "uint" else on_ints(ops.abs)(s, node, x)


def _sign(s: Any, node: Node, x: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    if of.kind == "uint":
        return stored(convert(ops.not_equal(ints(x), const(0)), "i32"), of)
    return stored(ops.sign(ints(x)), of) if of.is_integer else ops.sign(x)


def _square(x: Ov) -> Ov:
    return ops.multiply(x, x)


def no_floats(what: str) -> Any:
    """Refuse floats: the engine divides, rounds, and multiplies back."""

    def refuses(node: Node) -> str | None:
        if not node.outputs[0].tensor.dtype.is_float:
            return None
        return (
            f"OpenVINO computes {what} of floats from a rounded quotient, which may be off by one."
        )

    return refuses


def _clip(s: Any, node: Node, x: Ov, low: Ov | None, high: Ov | None) -> Ov:
    if low is not None:
        x = _chosen(maximum)(s, node, x, low)
    return x if high is None else _chosen(minimum)(s, node, x, high)


def _negative(x: Ov) -> Ov:
    return ops.subtract(number(0, x), x) if type_name(x) == "i32" else ops.negative(x)


TABLE: Table = {
    "add": Entry(on_ints(ops.add), "fiu", wide=wide.add),
    "subtract": Entry(on_ints(ops.subtract), "fiu", wide=wide.subtract),
    "multiply": Entry(on_ints(ops.multiply), "fiu", wide=wide.multiply),
    "negative": Entry(on_ints(_negative), "fi", wide=wide.negative),
    "square": Entry(on_ints(_square), "fiu", wide=lambda s, node, x: wide.multiply(s, node, x, x)),
    "abs": Entry(_abs, "fiu", wide=wide.absolute),
    "sign": Entry(_sign, "fiu", wide=wide.sign),
    "maximum": Entry(_chosen(maximum), "fiu", wide=wide.maximum),
    "minimum": Entry(_chosen(minimum), "fiu", wide=wide.minimum),
    "clip": Entry(_clip, "fiu", wide=wide.clip),
    "floor_divide": Entry(
        on_ints(lambda x, y: floored(x, y)[0]), "fi", refuses=no_floats("the quotient")
    ),
    "truncate_divide": Entry(on_ints(divided), "i"),
    "remainder": Entry(on_ints(lambda x, y: floored(x, y)[1]), "fi", refuses=no_floats("the rest")),
    "fmod": Entry(on_ints(_fmod), "fi", refuses=no_floats("the rest")),
    "power": Entry(elementwise(ops.power)),
    "bitwise_and": Entry(on_ints(ops.bitwise_and), "iu", wide=wide.each(ops.bitwise_and)),
    "bitwise_or": Entry(on_ints(ops.bitwise_or), "iu", wide=wide.each(ops.bitwise_or)),
    "bitwise_xor": Entry(on_ints(ops.bitwise_xor), "iu", wide=wide.each(ops.bitwise_xor)),
    "bitwise_not": Entry(on_ints(ops.bitwise_not), "iu", wide=wide.each(ops.bitwise_not)),
    "shift_left": Entry(_shift_left, "iu"),
    "shift_right": Entry(_shift_right, "iu"),
    "population_count": Entry(_population, "iu"),
}
