"""Slices, padding, splits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import dtypes
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, ceildiv, floordiv, lower_bound
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.movement import listed
from fusewire.onnx.ops.reading import cast, known_dims, length, named, scalar, with_sizes
from fusewire.onnx.ops.writing import (
    attrs_of,
    choose,
    compare,
    indices,
    larger,
    operand,
    static_sizes,
)
from fusewire.ops import cumulative, dynamic, elementwise, indexing, movement, scatter, slicing
from fusewire.ops.inference import axes_of, axis_of
from fusewire.ops.shape import shape_of
from fusewire.ops.slicing import pad_positions

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

_LAST = 2**63 - 1
_MODES = ("constant", "reflect", "edge", "wrap")
# What ONNX takes for "before the first": any number that is below every axis.
_BEFORE = -(2**62)


def _spread(values: Value, axes: Value, rank: int, rest: int) -> Value:
    """Write what is given for some axes, which the run tells, into a list for all."""
    every = constant(np.full(rank, rest, np.int64))
    return scatter.scatter_elements(every, axes, cast(values, dtypes.int64), axis=0)


def _read_slice(call: OnnxCall) -> Converted:
    x, rank = call[0], call[0].tensor.rank
    starts, ends = (listed(call, name, i, 10) for i, name in enumerate(("starts", "ends"), 1))
    axes, steps = listed(call, "axes", 3, 10), call.get(4)
    if starts is None or ends is None:
        call.refuse("starts and ends are needed.")
    count = length(starts, "the list of starts")
    known = tuple(range(count)) if axes is None else call.ints(axes)
    bounds = [starts, ends] if steps is None else [starts, ends, steps]
    if known is None:
        spread = zip(bounds, (0, _LAST, 1), strict=False)
        bounds = call.settled(*(_spread(b, call[3], rank, rest) for b, rest in spread))
        known = tuple(range(rank))
    cut = axes_of(known, rank)
    dims = named([None if i in cut else dim for i, dim in enumerate(x.tensor.shape)])
    return with_sizes(call, dynamic.dynamic_slice, [x, *bounds], dims, axes=known)


def _write_slice(e: Emitter, node: Node, x: Ref) -> Ref:
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


def _write_dynamic_slice(
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


def _read_pad(call: OnnxCall) -> Converted:
    x, rank = call[0], call[0].tensor.rank
    mode = call.attr("mode", "constant")
    if mode not in _MODES:
        call.refuse(f"mode must be one of {', '.join(_MODES)}, found {mode!r}.")
    pads, axes = listed(call, "paddings" if call.opset < 2 else "pads", 1, 11), call.get(3)
    if pads is None:
        call.refuse("pads are needed.")
    value = _border(call) if mode == "constant" else None
    if axes is not None:
        # Those before, then those after, for some of the axes only.
        half = length(pads, "the list of pads") // 2
        parts = (slicing.slice_axis(pads, 0, slice(i, i + half)) for i in (0, half))
        pads = movement.concat(*(_spread(part, axes, rank, 0) for part in parts), axis=0)
        (pads,) = call.settled(pads)
    return padded(call, x, pads, value, mode)


def _border(call: OnnxCall) -> Value | None:
    if call.opset >= 11:
        return scalar(call.get(2))
    return constant(np.array(call.attr("value", 0.0), call[0].tensor.dtype.numpy))


def padded(
    call: OnnxCall, x: Value, pads: Value, value: Value | None = None, mode: str = "constant"
) -> Converted:
    """Pad by a list that may be known, in part or not at all, before the run."""
    rank = x.tensor.rank
    known = known_dims(call, pads, "the list of pads")
    if len(known) != 2 * rank:
        call.refuse(f"two pads an axis are needed, found {len(known)} for {x.type}.")
    dims: list[Dim | None] = []
    for dim, low, high in zip(x.tensor.shape, known[:rank], known[rank:], strict=True):
        dims.append(None if low is None or high is None else dim + low + high)
    return with_sizes(call, dynamic.dynamic_pad, [x, pads, value], named(dims), mode=mode)


def _write_pad(e: Emitter, node: Node, x: Ref, value: Ref | None) -> Ref:
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


def _write_dynamic_pad(e: Emitter, node: Node, x: Ref, padding: Ref, value: Ref | None) -> Ref:
    """Pad by what the run tells; beyond zeros, ONNX leaves open what cutting off does."""
    mode = attrs_of(node)["mode"]
    if not operand(node, 0).tensor.rank:
        return e("Identity", x)
    if mode == "symmetric":
        raise FormatError("ONNX has no padding that repeats the border.")
    return e("Pad", x, indices(e, padding), value, mode=mode)


def _read_center_crop_pad(call: OnnxCall) -> Converted:
    x, rank = call[0], call[0].tensor.rank
    axes = [axis_of(axis, rank) for axis in call.attr("axes", range(rank))]
    places = constant(np.array(axes, np.int64))
    target = cast(call[1], dtypes.int64)
    missing = elementwise.subtract(target, indexing.gather(shape_of(x), places, axis=0))
    # Rounded toward 0: what is odd is added at the end, and cut off at the end as well.
    low = elementwise.truncate_divide(missing, 2)
    sides = (low, elementwise.subtract(missing, low))
    pads = movement.concat(*(_spread(side, places, rank, 0) for side in sides), axis=0)
    pads, target = call.settled(pads, target)
    sizes = known_dims(call, target, "the shape")
    if len(sizes) != len(axes):
        call.refuse(f"one size an axis is needed, found {len(sizes)} for the axes {axes}.")
    wanted = dict(zip(axes, sizes, strict=True))
    dims = named([wanted.get(i, dim) for i, dim in enumerate(x.tensor.shape)])
    return with_sizes(call, dynamic.dynamic_pad, [x, pads, None], dims)


def _read_split(call: OnnxCall) -> Converted:
    x = call[0]
    axis = axis_of(call.attr("axis", 0), x.tensor.rank)
    sizes = listed(call, "split", 1, 13) or call.get(1)
    if sizes is None:
        return slicing.split(x, axis=axis, sizes=_parts(call, x.tensor.shape[axis]))
    known = call.dims(sizes)
    if known is not None:
        return slicing.split(x, axis=axis, sizes=known)
    count = length(sizes, "the list of sizes")
    ends = cumulative.cumsum(sizes, axis=0)
    starts = elementwise.subtract(ends, sizes)
    parts = []
    for place in range(count):
        bounds = [slicing.slice_axis(v, 0, slice(place, place + 1)) for v in (starts, ends)]
        dims = named([None if i == axis else dim for i, dim in enumerate(x.tensor.shape)])
        parts.append(dynamic.dynamic_slice(x, *bounds, axes=(axis,), dims=dims))
    return parts


def _parts(call: OnnxCall, dim: Dim) -> Sequence[Dim]:
    """Cut a size into equal parts; the last may be smaller where the number of them is said."""
    count = call.attr("num_outputs", len(call.outputs))
    if count != len(call.outputs):
        call.refuse(f"num_outputs is {count}, and {len(call.outputs)} outputs are named.")
    if call.opset < 18:
        if isinstance(dim, int) and dim % count:
            call.refuse(f"{dim} does not divide into {count} equal parts.")
        return [floordiv(dim, count)] * count
    each = ceildiv(dim, count)
    if isinstance(dim, int) and isinstance(each, int):
        ends = [min(each * i, dim) for i in range(count + 1)]
        return [b - a for a, b in itertools.pairwise(ends)]
    return [*([each] * (count - 1)), dim - each * (count - 1)]


def _write_split(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Cut an axis into parts."""
    axis = node.attrs["axis"]
    sizes = attrs_of(node)["sizes"]
    assert isinstance(axis, int)
    return e.many("Split", x, e.shape(sizes), made=[x.dtype] * len(sizes), axis=axis)


READERS: Mapping[str, Read] = {
    "Slice": _read_slice,
    "Pad": _read_pad,
    "CenterCropPad": _read_center_crop_pad,
    "Split": _read_split,
}


WRITERS: Mapping[str, Write] = {
    "slice": _write_slice,
    "split": _write_split,
    "pad": _write_pad,
    "dynamic_slice": _write_dynamic_slice,
    "dynamic_pad": _write_dynamic_pad,
}
