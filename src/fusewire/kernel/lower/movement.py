"""Ops that move elements: index maps, and a choice where an element comes from one of several."""

from __future__ import annotations

import numpy as np

from fusewire.ir.graph import Node, Value
from fusewire.kernel.form import Bound, Guard
from fusewire.kernel.index import Held, Index, at, flatten, unflatten
from fusewire.kernel.lower.body import Body, Element, Indices, simplified
from fusewire.kernel.lower.shapes import Ints, axis_of, broadcast, ints, replaced, shape_of
from fusewire.ops.slicing import pad_positions


def _node(value: Value) -> Node:
    assert value.node is not None
    return value.node


def _reshape(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    (x,) = _node(value).operands
    return body.element(x, unflatten(flatten(index, shape_of(value)), shape_of(x)), guard)


def _transpose(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    perm = [axis % len(index) for axis in ints(node.attrs["perm"])]
    places = {axis: index[place] for place, axis in enumerate(perm)}
    return body.element(node.operands[0], tuple(places[i] for i in range(len(index))), guard)


def _broadcast_to(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    (x,) = _node(value).operands
    return body.element(x, broadcast(index, x), guard)


def _slice(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    steps = zip(index, ints(node.attrs["starts"]), ints(node.attrs["strides"]), strict=True)
    return body.element(node.operands[0], tuple(i * n + first for i, first, n in steps), guard)


def _concat(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    axis = axis_of(node, len(index))
    low, high = index[axis].range
    found, start = None, 0
    for x in node.operands:
        size = shape_of(x)[axis]
        first, start = start, start + size
        if size == 0 or high < first or low >= start:
            continue
        place = index[axis] - first
        inside = (*guard, Bound(place, 0, size))
        part = body.element(x, replaced(index, axis, place), simplified(inside))
        if found is not None:
            # What was found so far is right before this part.
            after = body.holds((Bound(index[axis], first, high + 1),))
            part = body.compute("where", after, part, found)
        found = part
    return body.literal(0, value.tensor.dtype) if found is None else found


def _pad(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    x, filling = node.inputs
    assert x is not None
    mode, padding = node.attrs["mode"], node.attrs["padding"]
    assert isinstance(padding, tuple)
    pairs = [ints(pair) for pair in padding]
    if mode != "constant":
        places = [
            _mirrored(body, part, dim, pair, str(mode), guard)
            for part, dim, pair in zip(index, shape_of(x), pairs, strict=True)
        ]
        return body.element(x, tuple(places), guard)
    of = value.tensor.dtype
    if 0 in shape_of(x):
        return body.literal(0, of) if filling is None else body.element(filling, (), guard)
    moved = tuple(part - low for part, (low, _) in zip(index, pairs, strict=True))
    inside = simplified(Bound(p, 0, d) for p, d in zip(moved, shape_of(x), strict=True))
    found = body.element(x, moved, (*guard, *inside))
    if filling is None:
        return body.masked(found, inside)
    other = body.element(filling, (), guard)
    return body.compute("where", body.holds(inside), found, other) if inside else found


def _mirrored(body: Body, part: Index, dim: int, padding: Ints, mode: str, guard: Guard) -> Index:
    """Find where an element of an axis comes from that repeats what it has."""
    low, high = padding
    if low <= 0 and high <= 0:
        return part - low
    cut = max(-low, 0)
    kept = dim - cut - max(-high, 0)
    table = pad_positions(kept, max(low, 0), max(high, 0), mode) + cut
    return at(Held(body.table(table.astype(np.int32), (part,), guard), dim))


def _iota(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    of = value.tensor.dtype
    place = body.place(index[axis_of(node, len(index))])
    return body.cast(place, of)


def _shape_of(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    (x,) = _node(value).operands
    return body.table(np.array(shape_of(x), value.tensor.dtype.numpy), index, guard)


ELEMENTS: dict[str, Element] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "slice": _slice,
    "concat": _concat,
    "pad": _pad,
    "iota": _iota,
    "shape_of": _shape_of,
}
