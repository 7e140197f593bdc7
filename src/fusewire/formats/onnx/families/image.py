"""Resizing and sampling images, and boxes in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusewire.dtypes import float32, int64
from fusewire.errors import FormatError
from fusewire.formats.onnx.emitter import Emitter, Ref
from fusewire.formats.onnx.families.convolution import require_filled
from fusewire.formats.onnx.families.pieces import indices, operand
from fusewire.ir.graph import Node

COORDINATES = {
    "half_pixel": "half_pixel",
    "half_pixel_symmetric": "half_pixel_symmetric",
    "pytorch_half_pixel": "pytorch_half_pixel",
    "align_corners": "align_corners",
    "asymmetric": "asymmetric",
    "crop": "tf_crop_and_resize",
}
ROUNDINGS = {
    "half_down": "round_prefer_floor",
    "half_up": "round_prefer_ceil",
    "floor": "floor",
    "ceil": "ceil",
}
MODES = {"nearest": "nearest", "linear": "linear", "cubic": "cubic"}


def _how(node: Node) -> dict[str, Any]:
    attrs: Any = node.attrs
    return {
        "mode": MODES[attrs["mode"]],
        "coordinate_transformation_mode": COORDINATES[attrs["coordinates"]],
        "nearest_mode": ROUNDINGS[attrs["rounding"]],
        "cubic_coeff_a": attrs["cubic_a"],
        "antialias": int(attrs["antialias"]),
        "exclude_outside": int(attrs["exclude_outside"]),
        "extrapolation_value": attrs["extrapolation"],
    }


def resize(e: Emitter, node: Node, x: Ref, roi: Ref | None) -> Ref:
    """Resize to sizes, or by scales where those are given and lead to the sizes."""
    require_filled(node)
    attrs: Any = node.attrs
    shape, sizes, scales = operand(node, 0).tensor.shape, attrs["sizes"], attrs["scales"]
    if not shape:
        return e("Identity", x)
    if scales is None:
        return e("Resize", x, roi, None, e.shape(sizes), **_how(node))
    for dim, made, scale in zip(shape, sizes, scales, strict=True):
        known = isinstance(dim, int) and isinstance(made, int)
        if not known or math.floor(dim * np.float32(scale)) != made:
            raise FormatError(f"By ONNX, a scale of {scale} does not make {made} of {dim}.")
    return e("Resize", x, roi, e.constant(np.array(scales, np.float32)), **_how(node))


def dynamic_resize(
    e: Emitter, node: Node, x: Ref, sizes: Ref, scales: Ref | None, roi: Ref | None
) -> Ref:
    """Resize to sizes that the run tells."""
    require_filled(node)
    if not operand(node, 0).tensor.rank:
        return e("Identity", x)
    if scales is not None:
        return e("Resize", x, roi, e.cast(scales, float32), **_how(node))
    return e("Resize", x, roi, None, indices(e, sizes), **_how(node))


def grid_sample(e: Emitter, node: Node, x: Ref, grid: Ref) -> Ref:
    """Read images at places."""
    require_filled(node)
    attrs: Any = node.attrs
    if (attrs["mode"], attrs["padding"]) == ("cubic", "border"):
        raise FormatError("Engines do not agree about cubic sampling beyond the border.")
    if grid.dtype is not x.dtype:
        grid = e.cast(grid, x.dtype)
    return e(
        "GridSample", x, grid, mode=MODES[attrs["mode"]], padding_mode=attrs["padding"],
        align_corners=int(attrs["align_corners"]),
    )  # fmt: skip


def roi_align(e: Emitter, node: Node, x: Ref, rois: Ref, batches: Ref) -> Ref:
    """Pool what boxes hold."""
    require_filled(node)
    attrs: Any = node.attrs
    height, width = attrs["sizes"]
    return e(
        "RoiAlign", x, rois, indices(e, batches),
        output_height=height, output_width=width, sampling_ratio=attrs["sampling"],
        spatial_scale=attrs["scale"], mode={"average": "avg", "max": "max"}[attrs["mode"]],
        coordinate_transformation_mode="half_pixel" if attrs["half_pixel"]
        else "output_half_pixel",
    )  # fmt: skip


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
    center = int(bool(node.attrs["center"]))
    return e(
        "NonMaxSuppression", boxes, scores, most, *limits, dtype=int64, center_point_box=center
    )


WRITERS = {
    "resize": resize,
    "dynamic_resize": dynamic_resize,
    "grid_sample": grid_sample,
    "roi_align": roi_align,
    "non_max_suppression": non_max_suppression,
}
