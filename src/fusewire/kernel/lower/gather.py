"""Reads at indices given by operands, and writes of a block at one."""

from __future__ import annotations

from fusewire.ir.graph import Node, Value
from fusewire.kernel.form import Bound, Guard
from fusewire.kernel.index import Index, at
from fusewire.kernel.lower.body import Body, Element, Indices, simplified
from fusewire.kernel.lower.serial import ordered
from fusewire.kernel.lower.shapes import axis_of, replaced, shape_of, whole


def _node(value: Value) -> Node:
    assert value.node is not None
    return value.node


def _place(body: Body, indices: Value, index: Indices, extent: int, guard: Guard) -> Index:
    """Read an index; negative ones count from the end."""
    return body.held(body.element(indices, index, guard), extent, wraps=True)


def _gather(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    x, indices = node.operands
    axis = axis_of(node, x.tensor.rank)
    last = axis + indices.tensor.rank
    place = _place(body, indices, index[axis:last], shape_of(x)[axis], guard)
    return body.element(x, (*index[:axis], place, *index[last:]), guard)


def _gather_elements(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    x, indices = node.operands
    axis = axis_of(node, x.tensor.rank)
    place = _place(body, indices, index, shape_of(x)[axis], guard)
    return body.element(x, replaced(index, axis, place), guard)


def _gather_nd(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    x, indices = node.operands
    batch = whole(node, "batch_dims")
    outer = index[: indices.tensor.rank - 1]
    depth = shape_of(indices)[-1]
    places = [
        _place(body, indices, (*outer, at(i)), shape_of(x)[batch + i], guard) for i in range(depth)
    ]
    return body.element(x, (*index[:batch], *places, *index[len(outer) :]), guard)


def _update(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    x, update, starts = _node(value).operands
    inside: list[Bound] = []
    for axis, (part, dim) in enumerate(zip(shape_of(update), shape_of(x), strict=True)):
        start = body.element(starts, (at(axis),), guard)
        # A start is moved so that the block fits inside.
        inside.append(Bound(index[axis] - body.held(start, dim - part + 1), 0, part))
    holds = simplified(inside)
    old = body.element(x, index, guard)
    if 0 in shape_of(update):
        return old
    places = tuple(bound.index for bound in inside)
    new = body.element(update, places, (*guard, *holds))
    return body.compute("where", body.holds(holds), new, old) if holds else new


def _searchsorted(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    row, x = node.operands
    sought = body.element(x, index, guard)

    def make(inner: Indices) -> list[str]:
        is_before, is_same = ordered(body, body.element(row, inner, guard), sought, False)
        if node.attrs["right"]:
            is_before = body.compute("logical_or", is_before, is_same)
        return [body.cast(is_before, value.tensor.dtype)]

    needs = (*index, *(bound.index for bound in guard))
    return body.fold("add", shape_of(row), needs, make)[0]


ELEMENTS: dict[str, Element] = {
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "dynamic_update_slice": _update,
    "searchsorted": _searchsorted,
}
