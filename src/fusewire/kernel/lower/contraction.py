"""Sums of products: matrices, and windows of convolutions. 16-bit floats are summed in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusewire.ir.graph import Node, Value
from fusewire.kernel.form import Guard
from fusewire.kernel.index import Index
from fusewire.kernel.lower.body import Body, Element, Indices, simplified
from fusewire.kernel.lower.shapes import ints, shape_of, whole
from fusewire.kernel.lower.window import Sliding


def _node(value: Value) -> Node:
    assert value.node is not None
    return value.node


def products(
    body: Body,
    value: Value,
    extents: Sequence[int],
    needs: Sequence[Index],
    factors: Callable[[Indices], tuple[str, str]],
) -> str:
    """Sum the products of two factors over axes; give it in the dtype of the value."""

    def make(inner: Indices) -> list[str]:
        left, right = factors(inner)
        return [body.compute("multiply", body.widened(left), body.widened(right))]

    if all(extent == 1 for extent in extents):
        (found,) = make((Index(),) * len(extents))
    else:
        (found,) = body.fold("add", extents, needs, make)
    return body.cast(found, value.tensor.dtype)


def _matmul(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    a, b = _node(value).operands
    near, far = shape_of(a), shape_of(b)
    rank = max(len(near) - 2, len(far) - 2, 0)
    batch, rest = index[:rank], index[rank:]
    row = rest[:1] if len(near) > 1 else ()
    column = rest[-1:] if len(far) > 1 else ()

    def outer(shape: Sequence[int]) -> Indices:
        own = shape[:-2]
        parts = batch[rank - len(own) :]
        return tuple(Index() if d == 1 else part for part, d in zip(parts, own, strict=True))

    def factors(inner: Indices) -> tuple[str, str]:
        left = body.element(a, (*outer(near), *row, *inner), guard)
        return left, body.element(b, (*outer(far), *inner, *column), guard)

    needs = (*index, *(bound.index for bound in guard))
    return products(body, value, near[-1:], needs, factors)


def _dot_general(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    contract, batch = node.attrs["contract"], node.attrs["batch"]
    assert isinstance(contract, tuple)
    assert isinstance(batch, tuple)
    shared = len(ints(batch[0]))
    free = index[shared:]
    parts: list[Callable[[Indices], Indices]] = []
    extents: list[int] = []
    for x, summed, common in zip(node.operands, contract, batch, strict=True):
        rank = x.tensor.rank
        inner_axes = [axis % rank for axis in ints(summed)]
        outer_axes = [axis % rank for axis in ints(common)]
        used = {*inner_axes, *outer_axes}
        own = [axis for axis in range(rank) if axis not in used]
        places = dict(zip(outer_axes, index, strict=False))
        places |= dict(zip(own, free, strict=False))
        free = free[len(own) :]
        extents = [shape_of(x)[axis] for axis in inner_axes]
        parts.append(_placed(places, inner_axes, rank))

    def factors(inner: Indices) -> tuple[str, str]:
        a, b = node.operands
        left = body.element(a, parts[0](inner), guard)
        return left, body.element(b, parts[1](inner), guard)

    needs = (*index, *(bound.index for bound in guard))
    return products(body, value, extents, needs, factors)


def _placed(
    outer: dict[int, Index], inner_axes: Sequence[int], rank: int
) -> Callable[[Indices], Indices]:
    def place(inner: Indices) -> Indices:
        full = {**outer, **dict(zip(inner_axes, inner, strict=True))}
        return tuple(full[axis] for axis in range(rank))

    return place


def _conv(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = _node(value)
    x, w, bias = node.inputs
    assert x is not None
    assert w is not None
    filters, channels, *sizes = shape_of(w)
    groups = whole(node, "groups")
    sliding = Sliding.of(node, sizes)
    image, place, *spatial = index
    first = (place // max(filters // groups, 1)) * channels if groups > 1 else Index()

    def factors(inner: Indices) -> tuple[str, str]:
        cells, bounds = sliding.cells(spatial, inner[1:], shape_of(x)[2:])
        inside = simplified([*guard, *bounds])
        left = body.element(x, (image, first + inner[0], *cells), inside)
        right = body.element(w, (place, *inner), guard)
        return body.masked(left, simplified(bounds)), right

    needs = (*index, *(bound.index for bound in guard))
    total = products(body, value, (channels, *sizes), needs, factors)
    if bias is None:
        return total
    return body.compute("add", total, body.element(bias, (place,), guard))


ELEMENTS: dict[str, Element] = {
    "matmul": _matmul,
    "dot_general": _dot_general,
    "conv": _conv,
}
