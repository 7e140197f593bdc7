"""Attention and rotary embedding that programs write as many ops, as one op each."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fusewire.dtypes import bool_
from fusewire.facts.known import Facts
from fusewire.ir.dims import floordiv
from fusewire.ir.graph import Node, Value
from fusewire.ops.contraction import matmul
from fusewire.ops.elementwise import add, cos, multiply, negative, sin
from fusewire.ops.inference import axis_of
from fusewire.ops.movement import broadcast_to, concat, reshape, transpose
from fusewire.ops.normalization import softmax
from fusewire.ops.slicing import slice_axis
from fusewire.ops.transformer import attention, rotary
from fusewire.rewrite.pattern import is_private, maker, splat
from fusewire.rewrite.rule import Outcome, RuleTable, on
from fusewire.rewrite.rules.raise_activation import SHARED

TABLE = RuleTable("raise_attention")
# Ops that give finite numbers of finite ones, overflow aside.
_KEEP_FINITE = (
    "add", "subtract", "multiply", "negative", "where", "reshape", "broadcast_to", "transpose",
    "slice", "concat", "expand_dims", "squeeze", "cast",
)  # fmt: skip
_MOST_LOOKED_AT, _MOST_SCALES = 32, 4
# Ops that do the same to both halves of the last axis, given how often it is looked through.
_ALONG = ("cos", "sin", "cast", "multiply", "reshape", "expand_dims", "broadcast_to")


class _Side(NamedTuple):
    """A factor without the numbers that it was multiplied by, and where it was found."""

    value: Value
    scale: float
    leaf: Value


class _Scores(NamedTuple):
    """What weights are the softmax of: scaled products, and what is added to them."""

    q: _Side
    turned: _Side
    scale: float
    mask: Value | None


def _is_last(axis: Any, value: Value) -> bool:
    rank = value.tensor.rank
    return axis_of(axis, rank) == rank - 1


def _is_finite(value: Value) -> bool:
    """Tell whether a value is never infinite, but for an overflow."""
    stack, count = [value], 0
    while stack:
        value, count = stack.pop(), count + 1
        if value.tensor.dtype.is_integer or value.tensor.dtype is bool_:
            continue
        if value.constant is not None:
            if not np.isfinite(value.constant.array).all():
                return False
            continue
        node = maker(value, *_KEEP_FINITE)
        if node is None or count > _MOST_LOOKED_AT:
            return False
        stack.extend(node.operands)
    return True


def _weights(value: Value) -> tuple[Node | None, bool]:
    """Find the softmax that weights are, and whether NaN of it is made 0."""
    chosen = maker(value, "where")
    if chosen is None:
        return maker(value, "softmax"), False
    test, none, kept = chosen.operands
    asked = maker(test, "isnan")
    is_guard = asked is not None and asked.inputs[0] is kept and splat(none) == 0
    return (maker(kept, "softmax") if is_guard else None), True


def _unscaled(value: Value) -> _Side:
    """Take off numbers that a value is multiplied by, and zeros that are added."""
    scale = 1.0
    for _ in range(_MOST_SCALES):
        node = maker(value, "multiply", "divide", "add")
        number = None if node is None else splat(node.inputs[1])
        if node is None or not isinstance(number, float) or node.operands[0].type != value.type:
            break
        if (number != 0) is (node.op == "add") or not math.isfinite(number):
            break
        if node.op != "add":
            scale = scale / number if node.op == "divide" else scale * number
        value = node.operands[0]
    moved = maker(value, "transpose")
    below = None if moved is None else _unscaled(moved.operands[0])
    if moved is None or below is None or below.value is moved.operands[0]:
        return _Side(value, scale, value)
    turned = transpose(below.value, perm=moved.attrs["perm"])
    return _Side(turned, scale * below.scale, below.leaf)


def _scores(value: Value, is_guarded: bool) -> _Scores | str | None:
    """Take scores apart; or say what keeps them from being those of attention."""
    mask: Value | None = None
    moved = maker(value, "add", "where")
    if moved is not None and moved.op == "where":
        mask, value = moved.operands[0], moved.operands[1]
        if splat(moved.inputs[2]) != -math.inf:
            return None
    elif moved is not None and splat(moved.inputs[1]) is None:
        product = [v for v in moved.operands if maker(_unscaled(v).value, "matmul")]
        value = product[0] if product else value
        mask = next((v for v in moved.operands if v is not value), None)
    inner = _unscaled(value)
    node = maker(inner.value, "matmul")
    if node is None or (moved is not None and moved.outputs[0].type != inner.value.type):
        return None
    if mask is not None and not is_guarded and (mask.tensor.dtype is bool_ or not _is_finite(mask)):
        return "where its mask lets a query see no key, this is NaN, and attention is 0."
    q, turned = map(_unscaled, node.operands)
    return _Scores(q, turned, inner.scale * q.scale * turned.scale, mask)


def _spelled_attention(q: Value, k: Value, v: Value) -> Value:
    return matmul(softmax(matmul(q, transpose(k, perm=(0, 1, 3, 2))), axis=-1), v)


@TABLE.rule(
    "raise-attention",
    "matmul",
    because="Averaging by the softmax of scaled products, plus a mask by which every query sees a "
    "key (or NaN made 0 where none is seen), is attention.",
    example=on(
        _spelled_attention, "float32[n, 2, 3, 4]", "float32[n, 2, 5, 4]", "float32[n, 2, 5, 6]"
    ),
    exact=False,
)
def _attention(node: Node, facts: Facts) -> Outcome:
    soft, is_guarded = _weights(node.operands[0])
    if soft is None or not _is_last(soft.attrs["axis"], soft.outputs[0]):
        return None
    found = _scores(soft.operands[0], is_guarded)
    v = node.operands[1]
    if isinstance(found, str):
        return found
    if found is None or maker(found.turned.value, "transpose") is None:
        return None
    q, turned = found.q.value, found.turned.value
    shapes = [x.tensor.shape for x in (q, turned, v)]
    if any(len(shape) != 4 or shape[:2] != shapes[0][:2] for shape in shapes):
        return None
    if shapes[0][3] != shapes[1][2] or shapes[1][3] != shapes[2][2]:
        return None
    made = attention(q, transpose(turned, perm=(0, 1, 3, 2)), v, found.mask, scale=found.scale)
    leaves = [found.q.leaf, found.turned.leaf, v, *([] if found.mask is None else [found.mask])]
    return made if is_private(node, leaves, facts) else SHARED


def _repeated(x: Value, groups: int) -> Value:
    """Repeat each head, as models do whose queries share keys and values."""
    batch, heads, positions, width = x.tensor.shape
    apart = reshape(x, shape=(batch, heads, 1, positions, width))
    each = broadcast_to(apart, shape=(batch, heads, groups, positions, width))
    return reshape(each, shape=(batch, heads * groups, positions, width))


@TABLE.rule(
    "attention-shared-heads",
    "attention",
    because="Queries share keys and values that are repeated: nobody needs to write them out.",
    example=on(
        lambda q, k, v: attention(q, _repeated(k, 3), _repeated(v, 3)),
        "float32[n, 6, 3, 4]",
        "float32[n, 2, 5, 4]",
        "float32[n, 2, 5, 6]",
    ),
    exact=False,
)
def _shared_heads(node: Node, facts: Facts) -> Outcome:
    q, k, v, *rest = node.inputs
    keys, values = _without_repeats(k), _without_repeats(v)
    if keys is None or values is None or keys.tensor.shape[1] != values.tensor.shape[1]:
        return None
    return attention(q, keys, values, *rest, **node.attrs)


def _without_repeats(value: Value | None) -> Value | None:
    """Return heads before each was repeated; None if they were not."""
    joined = maker(value, "reshape")
    each = maker(joined.operands[0] if joined is not None else None, "broadcast_to")
    apart = maker(each.operands[0] if each is not None else None, "reshape", "expand_dims")
    if value is None or each is None or apart is None:
        return None
    heads, shape, before = (
        x.tensor.shape for x in (apart.operands[0], each.outputs[0], each.operands[0])
    )
    if len(heads) != 4 or len(shape) != 5 or before != (*heads[:2], 1, *heads[2:]):
        return None
    is_repeat = shape == (*heads[:2], shape[2], *heads[2:])
    is_joined = value.tensor.shape == (heads[0], shape[1] * shape[2], *heads[2:])
    return apart.operands[0] if is_repeat and is_joined else None


def _is_doubled(value: Value) -> bool:
    """Tell whether both halves of the last axis are known to be the same."""
    for _ in range(_MOST_LOOKED_AT):
        joined = maker(value, "concat")
        if joined is not None:
            left, right = joined.operands if len(joined.operands) == 2 else (None, value)
            return left is right and _is_last(joined.attrs["axis"], value)
        node = maker(value, *_ALONG)
        if node is None or (node.op == "multiply" and splat(node.inputs[1]) is None):
            return False
        value = node.operands[0]
        if value.tensor.rank == 0 or value.tensor.shape[-1] != node.outputs[0].tensor.shape[-1]:
            return False
    return False


def _turned(value: Value, x: Value) -> bool:
    """Tell whether a value is x with its last halves swapped, the first of them negative."""
    joined = maker(value, "concat")
    if joined is None or len(joined.operands) != 2 or not _is_last(joined.attrs["axis"], value):
        return False
    turned = maker(joined.operands[0], "negative")
    total = x.tensor.shape[-1]
    half = floordiv(total, 2)
    if turned is None or 2 * half != total:
        return False
    return _is_part(turned.operands[0], x, half, total) and _is_part(joined.operands[1], x, 0, half)


def _is_part(value: Value, x: Value, start: Any, limit: Any) -> bool:
    node = maker(value, "slice", "split")
    if node is None or node.inputs[0] is not x:
        return False
    shape, attrs = x.tensor.shape, node.attrs
    if node.op == "split":
        sizes: Any = attrs["sizes"]
        ends = [sum(sizes[: value.index]), sum(sizes[: value.index + 1])]
        return _is_last(attrs["axis"], x) and ends == [start, limit]
    starts = (*([0] * (len(shape) - 1)), start)
    found = attrs["starts"], attrs["limits"], attrs["strides"]
    return found == (starts, (*shape[:-1], limit), (1,) * len(shape))


def _spelled_rotary(x: Value, angles: Value) -> Value:
    doubled = concat(angles, angles, axis=-1)
    low, high = slice_axis(x, 1, slice(0, 2)), slice_axis(x, 1, slice(2, 4))
    turned = concat(negative(high), low, axis=-1)
    return add(multiply(x, cos(doubled)), multiply(turned, sin(doubled)))


@TABLE.rule(
    "raise-rotary",
    "add",
    because="x times cosines plus x turned by a quarter times sines is rotary; both halves of the "
    "angles are the same, so one is taken.",
    example=on(_spelled_rotary, "float32[n, 4]", "float32[n, 2]"),
)
def _rotary(node: Node, facts: Facts) -> Outcome:
    sides = [maker(v, "multiply") for v in node.operands]
    if None in sides or sides[0] is sides[1]:
        return None
    options = [list(side.operands) for side in sides if side is not None]
    for straight, swung in (options, options[::-1]):
        for x, cosine in (straight, straight[::-1]):
            for turned, sine in (swung, swung[::-1]):
                if x.type != node.outputs[0].type or not _turned(turned, x):
                    continue
                if not (_is_doubled(cosine) and _is_doubled(sine)):
                    return "the halves of the angles are not known to be the same."
                half = slice(0, floordiv(x.tensor.shape[-1], 2))
                parts = (slice_axis(v, v.tensor.rank - 1, half) for v in (cosine, sine))
                made = rotary(x, *parts)
                return made if is_private(node, {x, cosine, sine}, facts) else SHARED
    return None
