"""Image sampling, region pooling, box selection."""

from __future__ import annotations

from typing import Any

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import Entry, Ov, Table, const, dim_of, rank_of
from fusewire.backends.openvino.lowering.indexing import limited
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.ir.graph import Node

_MODES = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}


def _grid_sample(s: Any, node: Node, x: Ov, grid: Ov) -> Ov:
    how = {
        "align_corners": bool(attr(node, "align_corners")),
        "mode": _MODES[attr(node, "mode")],
        "padding_mode": attr(node, "padding"),
    }
    return ops.grid_sample(x, grid, how)


def _refuses_grid(node: Node) -> str | None:
    rank = node.operands[0].tensor.rank
    if rank != 4:
        return f"OpenVINO samples images of two axes, found {rank - 2}."
    if attr(node, "mode") == "cubic" and attr(node, "padding") == "border":
        return "OpenVINO's cubic sampling moves taps, not places, to the border."
    return None


def _roi_align(s: Any, node: Node, x: Ov, rois: Ov, batches: Ov) -> Ov:
    height, width = attr(node, "sizes")
    return ops.roi_align(
        x,
        rois,
        limited(batches, const(0), ops.subtract(dim_of(x, 0), const(1))),
        height,
        width,
        int(attr(node, "sampling")),
        float(attr(node, "scale")),
        {"average": "avg", "max": "max"}[attr(node, "mode")],
        "half_pixel_for_nn" if attr(node, "half_pixel") else "asymmetric",
    )


def _refuses_roi(node: Node) -> str | None:
    if node.operands[1].tensor.shape[1] != 4:
        return "OpenVINO must know that a region has 4 numbers."
    if attr(node, "mode") == "max":
        return "OpenVINO takes the largest of interpolated samples, not of weighted neighbours."
    return None


def _nms(
    s: Any,
    node: Node,
    boxes: Ov,
    scores: Ov,
    most: Ov | None,
    overlap: Ov | None,
    threshold: Ov | None,
) -> Ov:
    limits = [
        const(0) if most is None else _scalar(most),
        _beyond(const(0.0, "f32") if overlap is None else _scalar(overlap)),
        const(-3.4e38, "f32") if threshold is None else _scalar(threshold),
    ]
    encoding = "center" if attr(node, "center") else "corner"
    found = ops.non_max_suppression(
        boxes, scores, *limits, const(0.0, "f32"), encoding, False, "i32"
    )
    return found.output(0)


def _beyond(overlap: Ov) -> Ov:
    """Give the next larger float32: the engine drops boxes that overlap by just so much too."""
    # Three quarters of a unit in the last place, up to three halves: rounded, it is one.
    more = ops.add(overlap, ops.multiply(overlap, const(0.75 * 2.0**-23, "f32")))
    return ops.maximum(more, const(2.0**-126, "f32"))


def _refuses_nms(node: Node) -> str | None:
    if node.operands[0].tensor.shape[2] != 4:
        return "OpenVINO must know that a box has 4 numbers."
    return None


def _scalar(x: Ov) -> Ov:
    return ops.reshape(x, const([1]), False) if rank_of(x) else x


TABLE: Table = {
    "grid_sample": Entry(_grid_sample, refuses=_refuses_grid),
    "roi_align": Entry(_roi_align, refuses=_refuses_roi),
    "non_max_suppression": Entry(_nms, refuses=_refuses_nms),
}
