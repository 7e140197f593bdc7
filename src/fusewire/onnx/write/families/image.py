"""Sampling images at places, and boxes in them."""

from __future__ import annotations

from fusewire.dtypes import float32, int64
from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import attrs_of, indices
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.families.convolution import require_filled
from fusewire.onnx.write.model import Ref


def grid_sample(e: Emitter, node: Node, x: Ref, grid: Ref) -> Ref:
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


def roi_align(e: Emitter, node: Node, x: Ref, rois: Ref, batches: Ref) -> Ref:
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


def non_max_suppression(
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


WRITERS = {
    "grid_sample": grid_sample,
    "roi_align": roi_align,
    "non_max_suppression": non_max_suppression,
}
