"""Image sampling, and boxes in images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fusewire.dtypes import float32, int64
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import unbacked
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.reading import cast, counted, is_told, length, scalar
from fusewire.onnx.ops.writing import attrs_of, indices, require_filled
from fusewire.ops import (
    contraction,
    cumulative,
    detection,
    dynamic,
    elementwise,
    image,
    indexing,
    logic,
    movement,
    reduction,
)
from fusewire.ops.shape import dim_of
from fusewire.ops.slicing import slice_axis

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

# Of a box; their edges are a constant.
_MOST_PARTS = 4096
MODES = {
    "bilinear": "linear",
    "linear": "linear",
    "nearest": "nearest",
    "bicubic": "cubic",
    "cubic": "cubic",
}


def _read_grid_sample(call: OnnxCall) -> Converted:
    mode = call.attr("mode", "linear")
    if mode not in MODES:
        call.refuse(f"mode is one of {', '.join(MODES)}; found {mode!r}.")
    return image.grid_sample(
        call[0],
        call[1],
        mode=MODES[mode],
        padding=call.attr("padding_mode", "zeros"),
        align_corners=call.flag("align_corners"),
    )


def _write_grid_sample(e: Emitter, node: Node, x: Ref, grid: Ref) -> Ref:
    """Read images at places."""
    require_filled(e, node)
    attrs = attrs_of(node)
    if (attrs["mode"], attrs["padding"]) == ("cubic", "border"):
        e.caution("Engines do not agree about cubic sampling beyond the border.")
    if grid.dtype is not x.dtype:
        grid = e.cast(grid, x.dtype)
    return e(
        "GridSample",
        x,
        grid,
        mode=attrs["mode"],
        padding_mode=attrs["padding"],
        align_corners=int(attrs["align_corners"]),
    )


def _read_affine_grid(call: OnnxCall) -> Converted:
    theta, asked, aligned = call[0], call[1], call.flag("align_corners")
    known = call.dims(asked)
    if known is not None:
        found = image.affine_grid(theta, sizes=known[2:], align_corners=aligned)
        if is_told(found, theta):
            return found
    # The sizes are those of a tensor of ones, in which places are counted.
    sizes = slice_axis(cast(asked, int64), 0, np.s_[2:])
    rank = length(asked, "size") - 2
    one = constant(np.ones((), theta.tensor.dtype.numpy))
    ones = dynamic.dynamic_full(one, sizes, dims=tuple(unbacked() for _ in range(rank)))
    columns = []
    for axis in reversed(range(rank)):
        place = cumulative.cumsum(ones, axis=axis, exclusive=True)
        last = elementwise.subtract(cast(dim_of(ones, axis), theta.tensor.dtype), 1.0)
        whole = elementwise.maximum(last, 1.0) if aligned else elementwise.add(last, 1.0)
        centred = elementwise.subtract(elementwise.multiply(place, 2.0), last)
        columns.append(elementwise.divide(centred, whole))
    places = movement.stack(*columns, ones, axis=-1)
    moved = contraction.dot_general(places, theta, contract=((rank,), (2,)))
    return movement.transpose(moved, perm=(rank, *range(rank), rank + 1))


def _read_non_max_suppression(call: OnnxCall) -> Converted:
    limits = [scalar(call.get(position)) for position in (2, 3, 4)]
    return detection.non_max_suppression(
        call[0], call[1], *limits, center=call.flag("center_point_box")
    )


def _write_non_max_suppression(
    e: Emitter,
    node: Node,
    boxes: Ref,
    scores: Ref,
    most: Ref | None,
    overlap: Ref | None,
    threshold: Ref | None,
) -> Ref:
    """Choose boxes; ONNX does so in float32."""
    if boxes.dtype.bits > 32:
        raise FormatError(f"ONNX's NonMaxSuppression is for float32, found {boxes.dtype}.")
    boxes, scores = (e.cast(x, float32) for x in (boxes, scores))
    most = None if most is None else indices(e, most)
    limits = [None if x is None else e.cast(x, float32) for x in (overlap, threshold)]
    center = int(attrs_of(node)["center"])
    return e(
        "NonMaxSuppression", boxes, scores, most, *limits, dtype=int64, center_point_box=center
    )


def _read_roi_align(call: OnnxCall) -> Converted:
    mode = {"avg": "average", "max": "max"}.get(call.attr("mode", "avg"))
    if mode is None:
        call.refuse(f"mode is avg or max, found {call.attr('mode')!r}.")
    # Before opset 16 nothing was said, and places were those of output_half_pixel.
    default = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    places = call.attr("coordinate_transformation_mode", default)
    return detection.roi_align(
        call[0],
        call[1],
        call[2],
        sizes=(call.attr("output_height", 1), call.attr("output_width", 1)),
        sampling=call.attr("sampling_ratio", 0),
        scale=call.attr("spatial_scale", 1.0),
        mode=mode,
        half_pixel=places == "half_pixel",
    )


def _write_roi_align(e: Emitter, node: Node, x: Ref, rois: Ref, batches: Ref) -> Ref:
    """Pool what boxes hold."""
    require_filled(e, node)
    attrs = attrs_of(node)
    height, width = attrs["sizes"]
    return e(
        "RoiAlign",
        x,
        rois,
        indices(e, batches),
        output_height=height,
        output_width=width,
        sampling_ratio=attrs["sampling"],
        spatial_scale=attrs["scale"],
        mode={"average": "avg", "max": "max"}[attrs["mode"]],
        coordinate_transformation_mode="half_pixel" if attrs["half_pixel"] else "output_half_pixel",
    )


def _read_max_roi_pool(call: OnnxCall) -> Converted:
    """Take the largest in parts of boxes: one axis after the other, by masks."""
    x, rois = call[0], call[1]
    of = x.tensor.dtype
    pooled = call.needed("pooled_shape")
    shape = [call.within(size, _MOST_PARTS, "a size of pooled_shape") for size in pooled]
    batch, *corners = (slice_axis(rois, 1, np.s_[i : i + 1]) for i in range(5))
    scale = call.attr("spatial_scale", 1.0)
    left, top, right, bottom = (
        elementwise.floor(elementwise.add(elementwise.multiply(c, scale), 0.5)) for c in corners
    )
    low = constant(np.array(-np.inf, of.numpy))
    found = indexing.gather(x, movement.squeeze(cast(batch, int64), axes=(1,)), axis=0)
    for axis, start, end, count in ((3, left, right, shape[1]), (2, top, bottom, shape[0])):
        inside = _inside(counted(x, axis, of), start, end, count)
        # Axes of the mask: boxes, channels, what is between, parts, places.
        others = (1, 2) if axis == 3 else (1, 4)
        masked = logic.where(
            movement.expand_dims(inside, axes=others),
            movement.expand_dims(found, axes=(axis,)),
            low,
        )
        found = reduction.reduce_max(masked, axes=(axis + 1,))
    return logic.where(logic.equal(found, low), constant(np.zeros((), of.numpy)), found)


def _inside(places: Value, start: Value, end: Value, count: int) -> Value:
    """Tell which places of an axis are in which part of which box: [boxes, parts, places]."""
    size = elementwise.maximum(elementwise.add(elementwise.subtract(end, start), 1.0), 1.0)
    each = elementwise.divide(size, float(count))
    parts = constant(np.arange(count + 1, dtype=places.tensor.dtype.numpy))
    edges = elementwise.multiply(each, parts)
    first = elementwise.add(elementwise.floor(slice_axis(edges, 1, np.s_[:-1])), start)
    last = elementwise.add(elementwise.ceil(slice_axis(edges, 1, np.s_[1:])), start)
    first, last = (movement.expand_dims(edge, axes=(2,)) for edge in (first, last))
    return logic.logical_and(logic.greater_equal(places, first), logic.less(places, last))


READERS: Mapping[str, Read] = {
    "GridSample": _read_grid_sample,
    "AffineGrid": _read_affine_grid,
    "NonMaxSuppression": _read_non_max_suppression,
    "RoiAlign": _read_roi_align,
    "MaxRoiPool": _read_max_roi_pool,
}


WRITERS: Mapping[str, Write] = {
    "grid_sample": _write_grid_sample,
    "roi_align": _write_roi_align,
    "non_max_suppression": _write_non_max_suppression,
}
