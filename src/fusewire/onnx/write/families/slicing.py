"""Cutting parts out, adding borders, splitting."""

from __future__ import annotations

from typing import Any

from fusewire.errors import FormatError
from fusewire.ir.dims import Dim, Shape, lower_bound
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import (
    attrs_of,
    choose,
    compare,
    indices,
    larger,
    operand,
    static_sizes,
)
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref
from fusewire.ops.inference import axes_of
from fusewire.ops.slicing import pad_positions

# What ONNX takes for "before the first": any number that is below every axis.
_BEFORE = -(2**62)


def slice_(e: Emitter, node: Node, x: Ref) -> Ref:
    """Cut along the axes that are not taken whole."""
    attrs = attrs_of(node)
    shape = operand(node, 0).tensor.shape
    parts = zip(shape, attrs["starts"], attrs["limits"], attrs["strides"], strict=True)
    cut = [
        (axis, start, limit, stride)
        for axis, (dim, start, limit, stride) in enumerate(parts)
        if (start, limit, stride) != (0, dim, 1)
    ]
    if not cut:
        return e("Identity", x)
    made = node.outputs[0].tensor.shape
    axes, strides = [axis for axis, *_ in cut], [stride for *_, stride in cut]
    # Where nothing is left, bounds may be anything: they must not count from the end.
    starts = tuple(
        0 if made[axis] == 0 else -1 if stride < 0 and start == shape[axis] - 1 else start
        for axis, start, _, stride in cut
    )
    ends = [
        e.integers(0) if made[axis] == 0 else _end(e, limit, stride)
        for axis, _, limit, stride in cut
    ]
    return e("Slice", x, e.shape(starts), e.joined(ends), e.integers(*axes), e.integers(*strides))


def _end(e: Emitter, limit: Dim, stride: int) -> Ref:
    """Give where a slice ends; what is negative is before the first, and not from the end."""
    if isinstance(limit, int):
        return e.integers(limit if limit >= 0 else _BEFORE if stride < 0 else 0)
    found = e.size(limit)
    if stride > 0:
        bound = lower_bound(limit)
        return found if bound is not None and bound >= 0 else larger(e, found, e.integers(0))
    none = compare(e, "Less", found, e.integers(0))
    return choose(e, none, e.integers(_BEFORE), found)


def split(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Cut an axis into parts."""
    axis = node.attrs["axis"]
    sizes = attrs_of(node)["sizes"]
    assert isinstance(axis, int)
    return e.many("Split", x, e.shape(sizes), made=[x.dtype] * len(sizes), axis=axis)


def pad(e: Emitter, node: Node, x: Ref, value: Ref | None) -> Ref:
    """Cut off where the padding is negative, then add."""
    padding = attrs_of(node)["padding"]
    mode = attrs_of(node)["mode"]
    shape = operand(node, 0).tensor.shape
    if not padding:
        return e("Identity", x)
    sides = [side for pair in padding for side in pair]
    if mode == "constant":
        pads = e.shape(tuple(low for low, _ in padding) + tuple(high for _, high in padding))
        return e("Pad", x, pads, value, mode=mode)
    if all(isinstance(side, int) for side in sides) and static_sizes(operand(node, 0)) is not None:
        return _gathered(e, x, shape, padding, mode)
    return _mirrored(e, x, padding, mode)


def _gathered(e: Emitter, x: Ref, shape: Shape, padding: Any, mode: str) -> Ref:
    """Pad by places that are known: any mode, and as often as it repeats."""
    for axis, (dim, (low, high)) in enumerate(zip(shape, padding, strict=True)):
        if (low, high) == (0, 0):
            continue
        assert isinstance(dim, int)
        first, last = max(-low, 0), dim + min(high, 0)
        places = pad_positions(last - first, max(low, 0), max(high, 0), mode) + first
        x = e("Gather", x, e.constant(places.astype("int64")), axis=axis)
    return x


def _mirrored(e: Emitter, x: Ref, padding: Any, mode: str) -> Ref:
    """Pad by what an axis of unknown size has, which ONNX can if none of it is cut off."""
    if mode == "symmetric":
        raise FormatError("ONNX has no padding that repeats the border, for sizes the run tells.")
    sides = [low for low, _ in padding] + [high for _, high in padding]
    known = [side for side in sides if isinstance(side, int)]
    if len(known) < len(sides):
        raise FormatError(f"ONNX leaves open what padding by {padding} does in mode {mode}.")
    if min(known) < 0:
        x = e("Pad", x, e.integers(*(min(side, 0) for side in known)))
    return e("Pad", x, e.integers(*(max(side, 0) for side in known)), mode=mode)


def dynamic_slice(
    e: Emitter, node: Node, x: Ref, starts: Ref, limits: Ref, strides: Ref | None
) -> Ref:
    """Slice as Python does, which is as ONNX does."""
    rank = operand(node, 0).tensor.rank
    if not rank:
        return e("Identity", x)
    given = attrs_of(node)["axes"]
    # Axes keep their order: starts and limits are in the same.
    axes = e.integers(*(axes_of(None, rank) if given is None else given))
    steps = None if strides is None else indices(e, strides)
    return e("Slice", x, indices(e, starts), indices(e, limits), axes, steps)


def dynamic_pad(e: Emitter, node: Node, x: Ref, padding: Ref, value: Ref | None) -> Ref:
    """Pad by what the run tells; beyond zeros, ONNX leaves open what cutting off does."""
    mode = attrs_of(node)["mode"]
    if not operand(node, 0).tensor.rank:
        return e("Identity", x)
    if mode == "symmetric":
        raise FormatError("ONNX has no padding that repeats the border.")
    return e("Pad", x, indices(e, padding), value, mode=mode)


WRITERS = {
    "slice": slice_,
    "split": split,
    "pad": pad,
    "dynamic_slice": dynamic_slice,
    "dynamic_pad": dynamic_pad,
}
