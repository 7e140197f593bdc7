"""Reductions: folds over axes."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.dtypes import int64
from fusewire.ir.graph import Node, Value
from fusewire.kernel.form import Combine, Guard
from fusewire.kernel.index import Index
from fusewire.kernel.lower.body import Body, Element, Indices
from fusewire.kernel.lower.shapes import axis_of, ints, shape_of

COMBINES: dict[str, Combine] = {
    "reduce_sum": "add",
    "reduce_prod": "multiply",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_any": "logical_or",
    "reduce_all": "logical_and",
}


def reduced_axes(node: Node) -> tuple[int, ...]:
    """List the axes that a reduction combines, from the front."""
    rank = node.operands[0].tensor.rank
    if "axis" in node.attrs:
        return (axis_of(node, rank),)
    axes = node.attrs["axes"]
    return tuple(range(rank)) if axes is None else tuple(sorted(a % rank for a in ints(axes)))


def _full(node: Node, index: Indices, inner: Sequence[Index]) -> Indices:
    """Put the indices of reduced axes back among the others."""
    axes = reduced_axes(node)
    keep = bool(node.attrs["keepdims"])
    outer = iter([part for place, part in enumerate(index) if place not in axes] if keep else index)
    found = iter(inner)
    rank = node.operands[0].tensor.rank
    return tuple(next(found) if axis in axes else next(outer) for axis in range(rank))


def _reduce(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = value.node
    assert node is not None
    (x,) = node.operands
    extents = [shape_of(x)[axis] for axis in reduced_axes(node)]
    if all(extent == 1 for extent in extents):
        return body.element(x, _full(node, index, [Index()] * len(extents)), guard)

    def make(inner: Indices) -> list[str]:
        return [body.element(x, _full(node, index, inner), guard)]

    needs = (*index, *(bound.index for bound in guard))
    return body.fold(COMBINES[node.op], extents, needs, make)[0]


def _position(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = value.node
    assert node is not None
    (x,) = node.operands
    combine: Combine = "argmax" if node.op == "argmax" else "argmin"
    extent = shape_of(x)[reduced_axes(node)[0]]

    def make(inner: Indices) -> list[str]:
        # The last of equals is the first one from the end.
        place = inner[0] * -1 + (extent - 1) if node.attrs["last"] else inner[0]
        return [body.element(x, _full(node, index, [place]), guard), body.place(place)]

    needs = (*index, *(bound.index for bound in guard))
    _, place = body.fold(combine, [extent], needs, make)
    return body.cast(place, int64)


ELEMENTS: dict[str, Element] = {
    **dict.fromkeys(COMBINES, _reduce),
    "argmax": _position,
    "argmin": _position,
}
