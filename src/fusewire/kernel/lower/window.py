"""Sliding windows over spatial axes: the cells they cover, and pooling over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusewire.dtypes import DType, int32, int64
from fusewire.ir.graph import Node, Value
from fusewire.kernel.form import Bound, Guard, identity
from fusewire.kernel.index import Index, flatten
from fusewire.kernel.lower.body import Body, Element, Indices, simplified
from fusewire.kernel.lower.shapes import Ints, ints, shape_of


@dataclass(frozen=True)
class Sliding:
    """How a window slides over spatial axes."""

    sizes: Ints
    strides: Ints
    padding: tuple[Ints, ...]
    dilations: Ints
    input_dilations: Ints

    @staticmethod
    def of(node: Node, sizes: Sequence[int]) -> Sliding:
        """Complete the attributes of a convolution or a pooling."""
        ones = (1,) * len(sizes)

        def given(key: str) -> Ints:
            attr = node.attrs.get(key)
            return ones if attr is None else ints(attr)

        padding = node.attrs["padding"]
        pairs = ((0, 0),) * len(sizes) if padding is None else padding
        assert isinstance(pairs, tuple)
        return Sliding(
            tuple(sizes),
            given("strides"),
            tuple(ints(pair) for pair in pairs),
            given("dilations"),
            given("input_dilations"),
        )

    def cells(
        self, places: Sequence[Index], offsets: Sequence[Index], dims: Sequence[int]
    ) -> tuple[Indices, list[Bound]]:
        """Give the cell that an offset of a window at a place sees, and where there is one."""
        found: list[Index] = []
        bounds: list[Bound] = []
        for axis, (place, offset, dim) in enumerate(zip(places, offsets, dims, strict=True)):
            low, _ = self.padding[axis]
            cell = place * self.strides[axis] + offset * self.dilations[axis] - low
            apart = self.input_dilations[axis]
            if apart > 1:
                bounds.append(Bound(cell % apart, 0, 1))
                cell = cell // apart
            bounds.append(Bound(cell, 0, dim))
            found.append(cell)
        return tuple(found), bounds


def _pool(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = value.node
    assert node is not None
    (x,) = node.operands
    sizes = ints(node.attrs["window"])
    sliding = Sliding.of(node, sizes)
    largest = node.op == "max_pool"
    filling = identity("maximum", value.tensor.dtype) if largest else 0

    def make(inner: Indices) -> list[str]:
        cells, bounds = sliding.cells(index[2:], inner, shape_of(x)[2:])
        found = body.element(x, (*index[:2], *cells), simplified([*guard, *bounds]))
        return [body.masked(found, simplified(bounds), filling)]

    needs = (*index, *(bound.index for bound in guard))
    (found,) = body.fold("maximum" if largest else "add", sizes, needs, make)
    if node.op != "average_pool":
        return found
    divisor = _counted(body, node, sliding, index, guard)
    return body.cast(body.compute("divide", body.widened(found), divisor), value.tensor.dtype)


def _counted(body: Body, node: Node, sliding: Sliding, index: Indices, guard: Guard) -> str:
    """Count the cells that an average is over; tables have how many an axis adds to it."""
    (x,) = node.operands
    of = np.float64 if x.tensor.dtype.bits == 64 else np.float32
    found = None
    for axis, dim in enumerate(shape_of(x)[2:]):
        low, high = sliding.padding[axis]
        first, last = (-low, dim + high) if node.attrs["count_padding"] else (0, dim)
        places = np.arange(shape_of(node.outputs[0])[axis + 2])[:, None] * sliding.strides[axis]
        cells = places - low + np.arange(sliding.sizes[axis]) * sliding.dilations[axis]
        counts = ((cells >= first) & (cells < last)).sum(1).astype(of)
        part = body.table(counts, (index[axis + 2],), guard)
        found = part if found is None else body.compute("multiply", found, part)
    assert found is not None
    one = body.literal(1, body.dtype(found))
    return body.compute("maximum", found, one)


def _pool_with_indices(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = value.node
    assert node is not None
    (x,) = node.operands
    sizes, dims = ints(node.attrs["window"]), shape_of(x)[2:]
    sliding = Sliding.of(node, sizes)
    of: DType = x.tensor.dtype

    def cell(inner: Indices) -> tuple[Indices, Guard, str]:
        cells, bounds = sliding.cells(index[2:], inner, dims)
        order = (cells[::-1], dims[::-1]) if node.attrs["column_major"] else (cells, dims)
        plane = flatten(index[:2], shape_of(x)[:2]) * math.prod(dims)
        place = body.place(plane + flatten(*order))
        return cells, simplified(bounds), body.masked(place, simplified(bounds), -1)

    def largest(inner: Indices) -> list[str]:
        cells, inside, place = cell(inner)
        found = body.element(x, (*index[:2], *cells), simplified([*guard, *inside]))
        return [body.masked(found, inside, identity("maximum", of)), place]

    def first(inner: Indices) -> list[str]:
        _, inside, place = cell(inner)
        return [body.cast(body.holds(inside), int32), place]

    needs = (*index, *(bound.index for bound in guard))
    best, place = body.fold("argmax", sizes, needs, largest)
    if value.index == 0:
        return best
    # Where all that is there is as low as padding, the first that is there is the largest.
    _, fallback = body.fold("argmax", sizes, needs, first)
    missed = body.compute("less", place, body.literal(0, int32))
    return body.cast(body.compute("where", missed, fallback, place), int64)


ELEMENTS: dict[str, Element] = {
    "max_pool": _pool,
    "sum_pool": _pool,
    "average_pool": _pool,
    "max_pool_with_indices": _pool_with_indices,
}
