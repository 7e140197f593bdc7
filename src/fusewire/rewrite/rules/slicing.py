"""Slices, joins, borders and repeats: those that undo, contain or follow one another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from fusewire.facts.known import Facts
from fusewire.ir.dims import Dim, is_at_most
from fusewire.ir.graph import Node, Value
from fusewire.ops.inference import axes_of, axis_of
from fusewire.ops.movement import broadcast_to, concat, tile
from fusewire.ops.slicing import flip, pad, slice_, slice_axis, split
from fusewire.rewrite.pattern import maker
from fusewire.rewrite.rule import Outcome, RuleTable, on

TABLE = RuleTable("slicing")
_MOST_PARTS = 256
Bounds = Sequence[tuple[Dim, Dim, int]]


def _bounds(node: Node) -> Bounds:
    """Read start, limit and stride of each axis of a slice."""
    parts: Any = zip(*(node.attrs[key] for key in ("starts", "limits", "strides")), strict=True)
    return list(parts)


def _sliced(x: Value, bounds: Bounds) -> Value:
    starts, limits, strides = zip(*bounds, strict=True)
    return slice_(x, starts=starts, limits=limits, strides=strides)


def _axis(node: Node) -> int:
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    return axis_of(axis, node.operands[0].tensor.rank)


@TABLE.rule(
    "slice-twice",
    "slice",
    because="A part of a part is a part.",
    example=on(
        lambda x: slice_axis(slice_axis(x, 0, slice(1, 7, 2)), 0, slice(2, None, -1)), "T[9, 2]"
    ),
)
def _slice_twice(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "slice")
    if inner is None:
        return None
    found: list[tuple[Dim, Dim, int]] = []
    dims = node.outputs[0].tensor.shape
    for (start, _, stride), (at, limit, step), dim in zip(
        _bounds(inner), _bounds(node), dims, strict=True
    ):
        if stride == 1:
            found.append((start + at, start + limit, step))
            continue
        known = all(isinstance(item, int) for item in (start, at, dim))
        if not known or dim == 0:
            return None
        first, by = start + at * stride, stride * step
        found.append((first, first + (dim - 1) * by + (1 if by > 0 else -1), by))
    return _sliced(inner.operands[0], found)


@TABLE.rule(
    "slice-of-concat",
    "slice",
    because="What is taken lies within one of the parts.",
    example=on(lambda x, y: slice_axis(concat(x, y, axis=0), 0, slice(3, 5)), "T[3, n]", "T[4, n]"),
)
def _slice_of_concat(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "concat")
    if inner is None:
        return None
    axis, bounds = _axis(inner), list(_bounds(node))
    start, limit, stride = bounds[axis]
    offset: Dim = 0
    for part in inner.operands:
        end = offset + part.tensor.shape[axis]
        if stride > 0 and is_at_most(offset, start) and is_at_most(limit, end):
            bounds[axis] = (start - offset, limit - offset, stride)
            return _sliced(part, bounds) if is_at_most(start, end) else None
        offset = end
    return None


@TABLE.rule(
    "split-of-concat",
    "split",
    because="The parts come apart as they were joined.",
    example=on(
        lambda x, y: split(concat(x, y, axis=1), axis=1, sizes=(3, 4)), "T[n, 3]", "T[n, 4]"
    ),
)
def _split_of_concat(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "concat")
    if len(node.outputs) == 1:
        return node.operands[0]
    if inner is None or _axis(inner) != _axis(node):
        return None
    sizes = tuple(v.tensor.shape[_axis(node)] for v in inner.operands)
    return inner.operands if sizes == node.attrs["sizes"] else None


@TABLE.rule(
    "concat-of-concat",
    "concat",
    because="Joined in several steps or at once is the same; parts without elements are nothing.",
    example=on(lambda x, y: concat(x, concat(y, x, axis=0), axis=0), "T[3, n]", "T[0, n]"),
)
def _concat_of_concat(node: Node, facts: Facts) -> Outcome:
    axis = _axis(node)
    parts: list[Value] = []
    for value in node.operands:
        inner = maker(value, "concat")
        joined = inner.operands if inner and _axis(inner) == axis else (value,)
        parts.extend(part for part in joined if part.tensor.shape[axis] != 0)
    if not parts or len(parts) == len(node.operands):
        return None
    if len(parts) > max(_MOST_PARTS, len(node.operands)):
        return f"{len(parts):,} parts would be joined at once, and {_MOST_PARTS} are enough."
    return concat(*parts, axis=axis)


@TABLE.rule(
    "concat-of-slices",
    "concat",
    because="Neighbouring parts of one tensor are a part of it.",
    example=on(
        lambda x: concat(slice_axis(x, 0, slice(0, 2)), slice_axis(x, 0, slice(2, 5)), axis=0),
        "T[7, n]",
    ),
)
def _concat_of_slices(node: Node, facts: Facts) -> Outcome:
    axis = _axis(node)
    parts = [node.operands[0]]
    for value in node.operands[1:]:
        merged = _merged(parts[-1], value, axis)
        parts[-1:] = [parts[-1], value] if merged is None else [merged]
    if len(parts) == len(node.operands):
        return None
    return parts[0] if len(parts) == 1 else concat(*parts, axis=axis)


def _merged(left: Value, right: Value, axis: int) -> Value | None:
    first, second = maker(left, "slice"), maker(right, "slice")
    if first is None or second is None or first.inputs != second.inputs:
        return None
    pairs = enumerate(zip(_bounds(first), _bounds(second), strict=True))
    bounds: list[tuple[Dim, Dim, int]] = []
    for place, (one, other) in pairs:
        follows = one[1] == other[0] and one[2] == other[2] == 1
        if not (follows if place == axis else one == other):
            return None
        bounds.append((one[0], other[1], one[2]))
    return _sliced(first.operands[0], bounds)


@TABLE.rule(
    "concat-of-split",
    "concat",
    because="All parts of a tensor, joined in their order, are the tensor.",
    example=on(lambda x: concat(*split(x, axis=1, sizes=(1, 2)), axis=1), "T[n, 3]"),
)
def _concat_of_split(node: Node, facts: Facts) -> Outcome:
    made = maker(node.operands[0], "split")
    if made is None or made.outputs != node.operands or _axis(made) != _axis(node):
        return None
    return made.operands[0]


@TABLE.rule(
    "pad-twice",
    "pad",
    because="Two borders of one value are one border.",
    example=on(
        lambda x: pad(pad(x, None, padding=((1, 0), (0, 2))), None, padding=((1, 1), (0, 1))),
        "T[n, 3]",
    ),
)
def _pad_twice(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "pad")
    if inner is None or inner.inputs[1] is not node.inputs[1]:
        return None
    if (inner.attrs["mode"], node.attrs["mode"]) != ("constant", "constant"):
        return None
    pairs: Any = list(zip(inner.attrs["padding"], node.attrs["padding"], strict=True))  # type: ignore[arg-type] # tuples of pairs
    if not all(is_at_most(0, side) for pair in pairs for side in itertools.chain(*pair)):
        return "a border that is cut off again takes elements with it, or not."
    padding = tuple((a + c, b + d) for (a, b), (c, d) in pairs)
    return pad(inner.inputs[0], node.inputs[1], padding=padding)


@TABLE.rule(
    "flip-twice",
    "flip",
    because="An axis turned twice is as it was.",
    example=on(lambda x: flip(flip(x, axes=(0, 1)), axes=(-1,)), "T[n, 3]"),
)
def _flip_twice(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "flip")
    if inner is None:
        return None
    rank = node.outputs[0].tensor.rank
    turned = [set(axes_of(n.attrs["axes"], rank)) for n in (inner, node)]  # type: ignore[arg-type] # by its type rule
    axes = tuple(sorted(turned[0] ^ turned[1]))
    return flip(inner.inputs[0], axes=axes) if axes else inner.inputs[0]


@TABLE.rule(
    "tile-of-one",
    "tile",
    because="Repeating an axis of size 1 is a broadcast.",
    example=on(lambda x: tile(x, repeats=(1, 4)), "T[n, 1]"),
)
def _tile_of_one(node: Node, facts: Facts) -> Outcome:
    repeats: Any = node.attrs["repeats"]
    shape = node.operands[0].tensor.shape
    if any(dim != 1 and count != 1 for dim, count in zip(shape, repeats, strict=True)):
        return None
    return broadcast_to(node.operands[0], shape=node.outputs[0].tensor.shape)
