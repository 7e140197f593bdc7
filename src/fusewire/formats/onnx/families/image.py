"""Resizing and sampling images, and boxes in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusewire.dtypes import float32, int64
from fusewire.errors import FormatError
from fusewire.formats.onnx.emitter import Emitter
from fusewire.formats.onnx.families.convolution import require_filled
from fusewire.formats.onnx.families.pieces import attrs_of, indices, operand
from fusewire.formats.onnx.model import Ref
from fusewire.ir.dims import Dim, Shape, floordiv
from fusewire.ir.graph import Array, Node
from fusewire.ops.resampling import COORDINATES as PLACES
from fusewire.ops.resampling import ROUNDINGS as ROUND
from fusewire.ops.resampling import Axis

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


def _how(node: Node) -> dict[str, Any]:
    attrs = attrs_of(node)
    return {
        "mode": attrs["mode"],
        "coordinate_transformation_mode": COORDINATES[attrs["coordinates"]],
        "nearest_mode": ROUNDINGS[attrs["rounding"]],
        "cubic_coeff_a": attrs["cubic_a"],
        "antialias": int(attrs["antialias"]),
        "exclude_outside": int(attrs["exclude_outside"]),
        "extrapolation_value": attrs["extrapolation"],
    }


def _require_common(e: Emitter, node: Node, made: Shape) -> None:
    """Refuse what engines do not agree about."""
    attrs = attrs_of(node)
    mode, dims = attrs["mode"], operand(node, 0).tensor.shape
    if attrs["coordinates"] == "crop" and any(a == b for a, b in zip(dims, made, strict=True)):
        e.caution("Engines do not crop an axis whose size stays as it is.")
    if mode == "linear" and attrs["exclude_outside"] and not attrs["antialias"]:
        e.caution("Engines exclude what is outside in cubic mode only.")
    changed = {axis - len(dims) for axis, dim in enumerate(dims) if made[axis] != dim}
    most = {"nearest": len(dims), "linear": 3 if len(dims) == 5 else 2, "cubic": 2}[mode]
    if mode != "nearest" and (len(dims) > 5 or changed - {*range(-most, 0)}):
        e.caution(f"Engines resize the last {most} axes in mode {mode}.")


def _exact_places(node: Node) -> dict[int, Array] | None:
    """Find the nearest elements where rounding to float32, as engines do, finds others."""
    attrs = attrs_of(node)
    shape, sizes, scales = operand(node, 0).tensor.shape, attrs["sizes"], attrs["scales"]
    if attrs["coordinates"] == "crop" or not all(isinstance(n, int) for n in (*shape, *sizes)):
        return None
    place, round_ = PLACES[attrs["coordinates"]], ROUND[attrs["rounding"]]
    found, agree = {}, attrs["coordinates"] != "half_pixel_symmetric"
    for axis, (dim, made) in enumerate(zip(shape, sizes, strict=True)):
        assert isinstance(dim, int)
        scale = made / dim if scales is None else scales[axis]
        if dim == made and scale == 1.0:
            continue
        wide, narrow = (
            round_(place(Axis(dim, made, float(of(scale))), np.arange(made, dtype=of)))
            for of in (np.float64, np.float32)
        )
        agree = agree and bool((wide == narrow).all())
        found[axis] = wide.clip(0, dim - 1).astype(np.int64)
    return None if agree else found


def _resized(
    e: Emitter, node: Node, x: Ref, roi: Ref | None, scales: Ref | None, sizes: Ref | None
) -> Ref:
    """Resize an image of at least four axes: with fewer, engines lack modes."""
    rank = operand(node, 0).tensor.rank
    missing = max(4 - rank, 0)
    if missing:
        x = e("Unsqueeze", x, e.integers(*range(missing)))
        ones = e.integers(*[1] * missing)
        sizes = None if sizes is None else e("Concat", ones, sizes, axis=0)
        scales = None if scales is None else e("Concat", e.cast(ones, float32), scales, axis=0)
    if roi is not None and missing:
        halves = e.many("Split", roi, made=[roi.dtype] * 2, axis=0, num_outputs=2)
        first, last = (e.constant(np.full(missing, n), roi.dtype) for n in (0.0, 1.0))
        roi = e("Concat", first, halves[0], last, halves[1], axis=0)
    found = e("Resize", x, roi, scales, sizes, **_how(node))
    return e("Squeeze", found, e.integers(*range(missing))) if missing else found


def resize(e: Emitter, node: Node, x: Ref, roi: Ref | None) -> Ref:
    """Resize to sizes, or by scales where those are given and lead to the sizes."""
    require_filled(e, node)
    attrs = attrs_of(node)
    shape, sizes, scales = operand(node, 0).tensor.shape, attrs["sizes"], attrs["scales"]
    if not shape:
        return e("Identity", x)
    _require_common(e, node, sizes)
    if attrs["mode"] == "nearest" and (places := _exact_places(node)) is not None:
        for axis, at in places.items():
            x = e("Gather", x, e.constant(at), axis=axis)
        return x
    if scales is None:
        return _resized(e, node, x, roi, None, e.shape(sizes))
    for dim, made, scale in zip(shape, sizes, scales, strict=True):
        if made != _scaled(dim, scale):
            raise FormatError(f"By ONNX, a scale of {scale} does not make {made} of {dim}.")
    return _resized(e, node, x, roi, e.constant(np.array(scales, np.float32)), None)


def _scaled(dim: Dim, scale: float) -> Dim | None:
    """Give the size that ONNX makes of another; None when only the run can tell."""
    if isinstance(dim, int):
        return math.floor(dim * float(np.float32(scale)))
    if scale == int(scale):
        return dim * int(scale)
    return floordiv(dim, int(1 / scale)) if 1 / scale == int(1 / scale) else None


def dynamic_resize(
    e: Emitter, node: Node, x: Ref, sizes: Ref, scales: Ref | None, roi: Ref | None
) -> Ref:
    """Resize to sizes that the run tells."""
    require_filled(e, node)
    if not operand(node, 0).tensor.rank:
        return e("Identity", x)
    _require_common(e, node, node.outputs[0].tensor.shape)
    if scales is not None:
        return _resized(e, node, x, roi, e.cast(scales, float32), None)
    # A list of known length, or models with such a node are refused.
    listed = e("Reshape", indices(e, sizes), e.integers(operand(node, 0).tensor.rank))
    return _resized(e, node, x, roi, None, listed)


def grid_sample(e: Emitter, node: Node, x: Ref, grid: Ref) -> Ref:
    """Read images at places."""
    require_filled(e, node)
    attrs = attrs_of(node)
    if (attrs["mode"], attrs["padding"]) == ("cubic", "border"):
        e.caution("Engines do not agree about cubic sampling beyond the border.")
    if grid.dtype is not x.dtype:
        grid = e.cast(grid, x.dtype)
    return e(
        "GridSample", x, grid, mode=attrs["mode"], padding_mode=attrs["padding"],
        align_corners=int(attrs["align_corners"]),
    )  # fmt: skip


def roi_align(e: Emitter, node: Node, x: Ref, rois: Ref, batches: Ref) -> Ref:
    """Pool what boxes hold."""
    require_filled(e, node)
    attrs = attrs_of(node)
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
    center = int(attrs_of(node)["center"])
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
