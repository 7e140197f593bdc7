"""The rows of the lowering table, and the parts that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.dtypes import DType
from fusewire.ir.graph import Node

# A node of the engine or one of its outputs; the engine's Python API takes either.
Ov: TypeAlias = Any
# Two numbers that make one: real and imaginary, or the lower and the upper half.
Pair: TypeAlias = tuple[Ov, Ov]
# Called with the scope, the node and its operands.
Lower: TypeAlias = Callable[..., Any]

NUMPY: Mapping[str, str] = {
    "boolean": "bool",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "u16": "uint16",
    "i32": "int32",
    "f32": "float32",
}


@dataclass(frozen=True)
class Entry:
    """How an op is lowered.

    ``takes`` names the dtypes of data operands: f(loats of 16 and 32 bits), i(nts of up to 32
    bits), u(int32, in the bits of int32), b(ool). ``complex`` and ``wide`` are for complex64 and
    for 64-bit integers that need all their bits; they are given and give pairs for such operands.
    ``refuses`` gives a sentence for what the op cannot do here. ``own`` is for floats, and right
    where all of them are finite: what the engine has, without what mends it. ``is_sized`` is for
    what is right only where all sizes are known when it is compiled.
    """

    lower: Lower
    takes: str = "f"
    complex: Lower | None = None
    wide: Lower | None = None
    refuses: Callable[[Node], str | None] | None = None
    own: Lower | None = None
    is_sized: bool = False

    def may_lose(self, node: Node) -> bool:
        """Tell whether the engine has a node of its own for this, that may lose NaN."""
        return self.own is not None and node.operands[0].tensor.dtype.is_float


Table: TypeAlias = Mapping[str, Entry]


def const(value: Any, of: str = "i32") -> Ov:
    """Make a constant of the engine."""
    return ops.constant(np.array(value, NUMPY[of]))


def number(value: Any, like: Ov) -> Ov:
    """Make a scalar of the same element type."""
    return const(value, type_name(like))


def type_name(x: Ov) -> str:
    """Give the engine's short name of an element type."""
    found: str = x.get_element_type().get_type_name()
    return found


def convert(x: Ov, to: str) -> Ov:
    """Change the element type, if it is another."""
    if type_name(x) == to:
        return x
    # A conversion to bool makes the engine fail on one of several outputs (2026.4.1).
    return ops.not_equal(x, number(0, x)) if to == "boolean" else ops.convert(x, to)


def ints(x: Ov) -> Ov:
    """Bring small ints to int32, in which the engine computes exactly."""
    return convert(x, "i32") if type_name(x) in ("i8", "u8", "i16", "u16", "boolean") else x


def wrapped(x: Ov, of: DType) -> Ov:
    """Drop the bits of int32 that a smaller int has no room for, and store it as one.

    The engine itself would saturate: int8 100 + 100 gives 127.
    """
    if of.bits < 32:
        x = ops.bitwise_and(x, const((1 << of.bits) - 1))
        if of.is_signed:
            half = const(1 << (of.bits - 1))
            x = ops.subtract(ops.bitwise_xor(x, half), half)
    return stored(x, of)


def stored(x: Ov, of: DType) -> Ov:
    """Store int32 that is known to fit as a smaller int."""
    if of.bits > 16:
        return x
    return convert(x, f"{'i' if of.is_signed else 'u'}{max(of.bits, 8)}")


def shape_of(x: Ov) -> Ov:
    """Give the shape as int32."""
    return ops.shape_of(x, "i32")


def dim_of(x: Ov, axis: int) -> Ov:
    """Give the size of an axis as a list of one."""
    return ops.gather(shape_of(x), const([axis]), const(0))


def shift_right(x: Ov, count: int) -> Ov:
    """Shift bits of int32 down, filling with zeros."""
    down = ops.bitwise_right_shift(x, const(count))
    return ops.bitwise_and(down, const((1 << (32 - count)) - 1)) if count else x


def above(x: Ov, y: Ov) -> Ov:
    """Tell where the first is larger: the engine's own Greater holds of NaN (2026.4.1)."""
    return ops.less(y, x)


def at_least(x: Ov, y: Ov) -> Ov:
    """Tell where the first is not smaller; see above."""
    return ops.less_equal(y, x)


def is_same(x: Ov, y: Ov) -> Ov:
    """Tell where int32 are equal: the engine compares as float32, 2**30 equal to 2**30 + 1."""
    return ops.equal(ops.bitwise_xor(x, y), const(0))


def is_below(x: Ov, y: Ov) -> Ov:
    """Tell where int32 are smaller; see is_same."""
    return ops.logical_not(is_same(ops.maximum(x, y), x))


def is_below_unsigned(x: Ov, y: Ov) -> Ov:
    """Tell where int32 are smaller when read as uint32."""
    return is_below(turned(x), turned(y))


def turned(x: Ov) -> Ov:
    """Turn the upper bit, so that uint32 are ordered as int32."""
    return ops.bitwise_xor(x, const(-(2**31)))


def select(condition: Ov, x: Ov, y: Ov) -> Ov:
    """Choose; int32 by their bits, since the engine's own may pass them through float32."""
    shapes = [static_shape(port) for port in (condition, x, y)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) == 3 and 0 in (found := np.broadcast_shapes(*known)):
        # The engine would fold a choice by no conditions, and write beyond its memory (2026.4.1).
        return ops.broadcast(number(0, x), const(found))
    if type_name(x) != "i32":
        return ops.select(condition, x, y)
    mask = ops.subtract(const(0), ops.convert(condition, "i32"))
    rest = ops.bitwise_and(y, ops.bitwise_not(mask))
    return ops.bitwise_or(ops.bitwise_and(x, mask), rest)


def rank_of(x: Ov) -> int:
    """Give the number of axes, which is always known here."""
    return int(port_of(x).get_partial_shape().rank.get_length())


def port_of(x: Ov) -> Ov:
    """Give the one output of a node; an output is its own."""
    return x if hasattr(x, "get_node") else x.output(0)


def static_shape(x: Ov) -> tuple[int, ...] | None:
    """Give the shape as far as the engine knows it before it runs."""
    shape = port_of(x).get_partial_shape()
    return tuple(shape.to_shape()) if shape.is_static else None


def concat(xs: Sequence[Ov], axis: int) -> Ov:
    """Join along an axis; lists as rows of matrices.

    Of a list that several nodes use, the engine lets one of them compute in the memory that the
    others still read (2026.4.1): abs(z) and 2 * z of a joined z give 2 * abs(z).
    """
    if len(xs) == 1:
        return xs[0]
    if rank_of(xs[0]) > 1:
        return ops.concat(list(xs), axis)
    rows = [ops.unsqueeze(x, const([0])) for x in xs]
    return ops.squeeze(ops.concat(rows, 1), const([0]))


def elementwise(function: Callable[..., Ov]) -> Lower:
    """Lower to a function of the operands alone."""
    return lambda s, node, *xs: function(*xs)


def on_ints(function: Callable[..., Ov], floats: Callable[..., Ov] | None = None) -> Lower:
    """Compute ints in int32 and drop what overflows; floats by a function of their own."""

    def lower(s: Any, node: Node, *xs: Ov) -> Ov:
        of = node.outputs[0].tensor.dtype
        if not of.is_integer:
            return (floats or function)(*xs)
        return wrapped(function(*map(ints, xs)), of)

    return lower
