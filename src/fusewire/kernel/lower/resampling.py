"""Resizing, by tables of source elements and weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusewire.ir.graph import Array, Node, Value
from fusewire.kernel.form import Guard
from fusewire.kernel.index import Held, Index, at
from fusewire.kernel.lower.body import Body, Element, Indices
from fusewire.kernel.lower.shapes import shape_of
from fusewire.ops.resampling import COORDINATES, ROUNDINGS, ResizedAxis, taps_of


@dataclass(frozen=True)
class _Taps:
    """For each place on an axis, the elements that count and their weights, [places, taps]."""

    elements: Array
    weights: Array


def _taps(node: Node, axis: int) -> _Taps | None:
    """Find the taps of one axis; None where it keeps its size."""
    (x,) = node.operands
    size, count = shape_of(x)[axis], shape_of(node.outputs[0])[axis]
    scales = node.attrs["scales"]
    scale = count / max(size, 1)
    if isinstance(scales, tuple):
        given = scales[axis]
        assert isinstance(given, float | int)
        scale = float(given)
    found = ResizedAxis(size, count, scale)
    if found.is_same:
        return None
    places = COORDINATES[str(node.attrs["coordinates"])](found, np.arange(count, dtype=np.float64))
    if node.attrs["mode"] == "nearest":
        nearest = ROUNDINGS[str(node.attrs["rounding"])](places)[:, None]
        return _Taps(nearest.clip(0, size - 1).astype(np.int32), np.ones((count, 1)))
    cubic = node.attrs["cubic_a"]
    assert isinstance(cubic, float | int)
    elements, weights = taps_of(
        found,
        places,
        str(node.attrs["mode"]),
        cubic,
        bool(node.attrs["antialias"]),
        bool(node.attrs["exclude_outside"]),
    )
    used = (weights != 0).any(0)
    used[0] |= not used.any()
    return _Taps(elements[:, used].clip(0, size - 1).astype(np.int32), weights[:, used])


def _resize(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = value.node
    assert node is not None
    (x,) = node.operands
    taps = [_taps(node, axis) for axis in range(len(index))]
    moved = [axis for axis, found in enumerate(taps) if found is not None]
    nearest = node.attrs["mode"] == "nearest"
    wide = np.float64 if value.tensor.dtype.bits == 64 else np.float32

    def element(inner: Indices) -> tuple[str, list[str]]:
        places, weights = list(index), []
        for axis, tap in zip(moved, inner, strict=True):
            found = taps[axis]
            assert found is not None
            at_ = (index[axis], tap)
            place = body.table(found.elements, at_, guard)
            places[axis] = at(Held(place, shape_of(x)[axis]))
            if not nearest:
                weights.append(body.table(found.weights.astype(wide), at_, guard))
        return body.element(x, tuple(places), guard), weights

    if nearest:
        return element((Index(),) * len(moved))[0]

    def make(inner: Indices) -> list[str]:
        found, weights = element(inner)
        found = body.widened(found)
        for weight in weights:
            found = body.compute("multiply", found, weight)
        return [found]

    extents = [found.elements.shape[1] for found in taps if found is not None]
    if not extents:
        return body.element(x, index, guard)
    needs = (*index, *(bound.index for bound in guard))
    (total,) = body.fold("add", extents, needs, make)
    return body.cast(total, value.tensor.dtype)


ELEMENTS: dict[str, Element] = {"resize": _resize}
