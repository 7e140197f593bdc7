"""Reductions and running reductions: exact for integers, with NaN and infinities kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering import wide
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Lower,
    Ov,
    Pair,
    Table,
    above,
    concat,
    const,
    convert,
    dim_of,
    ints,
    number,
    rank_of,
    select,
    shape_of,
    stored,
    wrapped,
)
from fusewire.backends.openvino.lowering.floats import exp, maximum, minimum
from fusewire.backends.openvino.lowering.movement import attr, axis_of
from fusewire.backends.openvino.lowering.wide import widened
from fusewire.backends.openvino.storage import LONG
from fusewire.dtypes import uint32
from fusewire.ir.dims import size
from fusewire.ir.graph import Node
from fusewire.ops.inference import axes_of

# Sums below this are exact in float32, in which the engine reduces whatever it is given.
EXACT = 2**24


def reduced_axes(node: Node) -> list[int]:
    """List the axes that are combined away."""
    return list(axes_of(attr(node, "axes"), node.operands[0].tensor.rank))


def over(node: Node, reduce: Callable[..., Ov], x: Ov) -> Ov:
    """Reduce as the engine does, but for the first or last axis of three.

    OpenVINO 2026.4 fuses numbers for each place of the middle axis, which are added to the result
    or multiplied with it, and takes the wrong ones. It does not for matrices.
    """
    axes, keepdims = reduced_axes(node), bool(attr(node, "keepdims"))
    if not axes:
        return x
    if rank_of(x) != 3 or axes not in ([0], [2]):
        return reduce(x, const(axes), keepdims)
    shape, (axis,) = shape_of(x), axes
    kept = ops.gather(shape, const([1, 2] if axis == 0 else [0, 1]), const(0))
    sizes = [ops.reduce_prod(kept, const([0]), True)]
    sizes.insert(axis // 2, dim_of(x, axis))
    total = reduce(ops.reshape(x, concat(sizes, 0), False), const(axis // 2), False)
    outer = [kept]
    if keepdims:
        outer.insert(axis // 2, const([1]))
    return ops.reshape(total, concat(outer, 0), False)


def _sum(s: Any, node: Node, x: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    if not of.is_integer:
        return over(node, ops.reduce_sum, x)
    return wrapped(_exact_sum(node, ints(x)), of)


def _exact_sum(node: Node, x: Ov) -> Ov:
    """Add int32 up by running sums, which the engine computes in int32."""
    axes, rank = reduced_axes(node), rank_of(x)
    if not axes:
        return x
    kept = [axis for axis in range(rank) if axis not in axes]
    front = ops.transpose(x, const([*kept, *axes])) if rank > 1 else x
    # Something is put in front of each row, so that rows of nothing have a last sum as well.
    outer = ops.gather(shape_of(x), const(np.array(kept, np.int32)), const(0))
    rows = ops.reshape(front, concat([outer, const([-1])], 0), False) if _is_filled(node) else None
    if rows is None:
        count = ops.reduce_prod(ops.gather(shape_of(x), const(axes), const(0)), const([0]), True)
        rows = ops.reshape(front, concat([outer, count], 0), False)
    last = len(kept)
    rows = ops.pad(rows, const([0] * last + [1]), const([0] * (last + 1)), "constant", const(0))
    sums = ops.cum_sum(rows, const(last))
    total = ops.gather(sums, const(-1), const(last))
    if not attr(node, "keepdims"):
        return total
    return ops.unsqueeze(total, const(axes))


def _is_filled(node: Node) -> bool:
    return all(isinstance(dim, int) and dim > 0 for dim in node.operands[0].tensor.shape)


def _extreme(name: str) -> Lower:
    reduce = getattr(ops, f"reduce_{name}")
    sign = 1 if name == "max" else -1

    def lower(s: Any, node: Node, x: Ov) -> Ov:
        of = node.outputs[0].tensor.dtype
        if not reduced_axes(node):
            return x
        if of.kind == "bool":
            logical = ops.reduce_logical_or if name == "max" else ops.reduce_logical_and
            return over(node, logical, x)
        if of.is_float:
            return _float_extreme(node, reduce, x, sign)
        low, high = of.range
        found = _int_extreme(node, reduce, ints(x), of.bits, sign)
        if _is_filled(node):
            return stored(found, of)
        some = over(node, ops.reduce_max, ops.broadcast(const(1.0, "f32"), shape_of(x)))
        none = const(max(low if sign > 0 else high, -(2**31)))
        return stored(select(above(some, const(0.0, "f32")), found, none), of)

    return lower


def _float_extreme(node: Node, reduce: Callable[..., Ov], x: Ov, sign: int) -> Ov:
    """Mend the engine's: it skips NaN, and has the largest float32 for an infinity."""
    bound = number(-sign * np.inf, x)
    some = number(1.0, x)
    real = select(ops.equal(x, bound), number(0.0, x), some)
    flag = over(node, ops.reduce_max, select(ops.is_nan(x), number(2.0, x), real))
    found = select(ops.less(flag, some), bound, over(node, reduce, x))
    return select(above(flag, some), number(np.nan, x), found)


def _int_extreme(node: Node, reduce: Callable[..., Ov], x: Ov, bits: int, sign: int) -> Ov:
    """Compare upper halves first, then lower halves where those are equal."""
    if bits <= 16:
        return convert(over(node, reduce, convert(x, "f32")), "i32")
    axes = const(reduced_axes(node))
    upper = ops.bitwise_right_shift(x, const(16))
    best = convert(reduce(convert(upper, "f32"), axes, True), "i32")
    lower = ops.bitwise_and(x, const(0xFFFF))
    ruled_out = const(-1 if sign > 0 else 1 << 16)
    lower = select(ops.equal(upper, best), lower, ruled_out)
    rest = convert(reduce(convert(lower, "f32"), axes, True), "i32")
    found = ops.add(ops.bitwise_left_shift(best, const(16)), rest)
    return found if attr(node, "keepdims") else ops.squeeze(found, axes)


def _mean(s: Any, node: Node, x: Ov) -> Ov:
    found, shape = over(node, ops.reduce_mean, x), node.operands[0].tensor.shape
    dims = [shape[axis] for axis in reduced_axes(node)]
    if all(isinstance(dim, int) and dim > 0 for dim in dims):
        return found
    # Of nothing, NaN, which the engine gives as 0.
    counts = [convert(s.scalar(dim), "f32") for dim in dims if not isinstance(dim, int) or not dim]
    for count in counts:
        found = ops.add(found, ops.divide(number(0.0, x), count))
    return found


def _cumsum(s: Any, node: Node, x: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    axis = const(axis_of(node, rank_of(x)))
    flags = bool(attr(node, "exclusive")), bool(attr(node, "reverse"))
    found = ops.cum_sum(ints(x), axis, *flags)
    return wrapped(found, of) if of.is_integer else found


def _running(join: Callable[[Ov, Ov], Ov], start: Callable[[Node], Any]) -> Lower:
    """Combine with what came before at distances 1, 2, 4, ... until all of it is in."""

    def lower(s: Any, node: Node, x: Ov) -> Ov:
        of = node.outputs[0].tensor.dtype
        rank, first = rank_of(x), number(start(node), ints(x))
        axis = axis_of(node, rank)
        count = int(node.operands[0].tensor.shape[axis])  # type: ignore[arg-type] # or refused
        reverse = bool(attr(node, "reverse"))
        x = ints(x)
        if attr(node, "exclusive"):
            x = _shifted(x, axis, 1, reverse, first)
        step = 1
        while step < count:
            x = join(_shifted(x, axis, step, reverse, first), x)
            x = wrapped(x, of) if of.is_integer and step * 2 >= count else x
            step *= 2
        return stored(x, of) if of.is_integer else x

    return lower


def _shifted(x: Ov, axis: int, step: int, reverse: bool, first: Ov) -> Ov:
    """Move along an axis by some places, with a constant coming in."""
    rank = rank_of(x)
    ahead = [step if i == axis else 0 for i in range(rank)]
    none = [0] * rank
    pads = (none, ahead) if reverse else (ahead, none)
    grown = ops.pad(x, const(pads[0]), const(pads[1]), "constant", first)
    bounds = (step, 2**31 - 1) if reverse else (0, -step)
    return ops.slice(grown, const([bounds[0]]), const([bounds[1]]), const([1]), const([axis]))


def _logaddexp(x: Ov, y: Ov) -> Ov:
    larger = maximum(x, y)
    apart = exp(ops.negative(ops.abs(ops.subtract(x, y))))
    term = ops.log(ops.add(apart, number(1.0, x)))
    same = ops.equal(x, y)
    return ops.add(larger, select(same, number(np.log(2.0), x), term))


def _refuses_running(node: Node) -> str | None:
    shape, of = node.operands[0].tensor.shape, node.outputs[0].tensor.dtype
    if not isinstance(shape[attr(node, "axis")], int):
        return "OpenVINO has only running sums; others are built for a length that is known."
    if of.is_integer and of.bits >= 32:
        return f"OpenVINO pads {of} through float32, which loses digits."
    return None


def _limit(node: Node, sign: int) -> Any:
    of = node.outputs[0].tensor.dtype
    if of.is_float:
        return sign * np.inf
    return of.range[0 if sign < 0 else 1]


def position(largest: bool, exact: bool = True) -> Lower:
    """Find the first or last extreme; NaN is one, wherever it is, where that is asked for."""
    mode = "max" if largest else "min"

    def lower(s: Any, node: Node, x: Ov) -> Ov:
        axis = axis_of(node, rank_of(x))
        of = node.operands[0].tensor.dtype
        keepdims = bool(attr(node, "keepdims"))
        if node.operands[0].tensor.shape[axis] == 0:
            return ops.broadcast(const(0), s.shape(node.outputs[0].tensor.shape))
        x = ops.bitwise_xor(x, const(-(2**31))) if of is uint32 else ints(x)
        flipped = bool(attr(node, "last"))
        if flipped:
            x = ops.slice(x, const([-1]), const([-(2**31)]), const([-1]), const([axis]))
        found = _first(x, axis, mode)
        if exact and of.is_float:
            nan = convert(ops.is_nan(x), "f32")
            broken = ops.reduce_max(nan, const([axis]), True)
            found = select(above(broken, number(0.0, nan)), _first(nan, axis, "max"), found)
        if flipped:
            last = ops.gather(shape_of(x), const(axis), const(0))
            found = ops.subtract(ops.subtract(last, const(1)), found)
        if not isinstance(node.operands[0].tensor.shape[axis], int):
            # Of nothing, 0: the engine finds what lies beyond its memory.
            some = convert(ops.not_equal(dim_of(x, axis), const([0])), "i32")
            found = ops.multiply(found, some)
        return found if keepdims else ops.squeeze(found, const([axis]))

    return lower


def _first(x: Ov, axis: int, mode: str) -> Ov:
    return ops.topk(x, const(1), axis, mode, "value", "i32", True).output(1)


def each(lower: Lower) -> Lower:
    """Reduce real and imaginary parts alike: the op is linear."""

    def both(s: Any, node: Node, x: Pair) -> Pair:
        return lower(s, node, x[0]), lower(s, node, x[1])

    return both


def _product(s: Any, node: Node, x: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    found = over(node, ops.reduce_prod, ints(x))
    return wrapped(found, of) if of.is_integer else found


def _wide_product(s: Any, node: Node, x: Pair) -> Pair:
    """Multiply one by one, with all bits."""
    rank, axes, count = rank_of(x[0]), reduced_axes(node), _factors(node)
    assert count is not None, "or refused"
    kept = [axis for axis in range(rank) if axis not in axes]
    rows = [ops.transpose(half, const([*axes, *kept])) if rank > 1 else half for half in x]
    shape = s.shape([node.operands[0].tensor.shape[axis] for axis in kept])
    found = widened(ops.broadcast(const(1), shape))
    if axes:
        rows = [ops.reshape(half, concat([const([count]), shape], 0), False) for half in rows]
        for place in range(count):
            found = wide.multiply(s, node, found, _row(rows, place))
    else:
        found = x
    if not attr(node, "keepdims") or not axes:
        return found
    return ops.unsqueeze(found[0], const(axes)), ops.unsqueeze(found[1], const(axes))


def _row(rows: Sequence[Ov], place: int) -> Pair:
    low, high = (ops.gather(half, const(place), const(0)) for half in rows)
    return low, high


# As many sizes as a shape may have.
_MOST_FACTORS = 64


def _factors(node: Node) -> int | None:
    """Count what is multiplied; None if that is not known, or too much to do one by one."""
    shape = node.operands[0].tensor.shape
    found = size([shape[axis] for axis in reduced_axes(node)])
    return found if isinstance(found, int) and found <= _MOST_FACTORS else None


def _refuses_product(node: Node) -> str | None:
    if node.outputs[0].tensor.dtype not in LONG or _factors(node) is not None:
        return None
    return f"OpenVINO multiplies at most {_MOST_FACTORS} integers of 64 bits, of a number it knows."


TABLE: Table = {
    "reduce_sum": Entry(_sum, "fiu", complex=each(_sum)),
    "reduce_prod": Entry(_product, "fi", wide=_wide_product, refuses=_refuses_product),
    "reduce_max": Entry(_extreme("max"), "fib"),
    "reduce_min": Entry(_extreme("min"), "fib"),
    "reduce_any": Entry(lambda s, node, x: over(node, ops.reduce_logical_or, x), "b"),
    "reduce_all": Entry(lambda s, node, x: over(node, ops.reduce_logical_and, x), "b"),
    "reduce_mean": Entry(_mean),
    "argmax": Entry(position(True), "fiub"),
    "argmin": Entry(position(False), "fiub"),
    "cumsum": Entry(_cumsum, "fiu", complex=each(_cumsum)),
    "cumprod": Entry(_running(ops.multiply, lambda n: 1), "fi", refuses=_refuses_running),
    "cummax": Entry(_running(maximum, lambda n: _limit(n, -1)), "fi", refuses=_refuses_running),
    "cummin": Entry(_running(minimum, lambda n: _limit(n, 1)), "fi", refuses=_refuses_running),
    "cumlogsumexp": Entry(_running(_logaddexp, lambda n: -np.inf), refuses=_refuses_running),
}
