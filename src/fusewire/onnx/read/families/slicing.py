"""Cutting parts out, adding borders, splitting."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from fusewire import dtypes
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, ceildiv, floordiv
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast, known_dims, length, named, scalar, with_sizes
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.onnx.read.families.movement import listed
from fusewire.ops import cumulative, dynamic, elementwise, indexing, movement, scatter, slicing
from fusewire.ops.inference import axes_of, axis_of
from fusewire.ops.shape import shape_of

_LAST = 2**63 - 1
_MODES = ("constant", "reflect", "edge", "wrap")


def _slice(call: OnnxCall) -> Converted:
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


def _spread(values: Value, axes: Value, rank: int, rest: int) -> Value:
    """Write what is given for some axes, which the run tells, into a list for all."""
    every = constant(np.full(rank, rest, np.int64))
    return scatter.scatter_elements(every, axes, cast(values, dtypes.int64), axis=0)


def _pad(call: OnnxCall) -> Converted:
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


def _center_crop_pad(call: OnnxCall) -> Converted:
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


def _split(call: OnnxCall) -> Converted:
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


TABLE: Mapping[str, Read] = {
    "Slice": _slice,
    "Pad": _pad,
    "CenterCropPad": _center_crop_pad,
    "Split": _split,
}
