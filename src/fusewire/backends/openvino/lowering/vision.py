"""Image sampling, region pooling, box selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    dim_of,
    number,
    rank_of,
    type_name,
)
from fusewire.backends.openvino.lowering.indexing import limited, zeros_of_nothing
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
    made = ops.roi_align(
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
    return zeros_of_nothing(x, made)


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
        const(-np.inf, "f32") if threshold is None else _or_nan(_scalar(threshold), np.inf),
    ]
    encoding = "center" if attr(node, "center") else "corner"
    found = ops.non_max_suppression(
        boxes,
        _ranked(scores, threshold is None),
        *limits,
        const(0.0, "f32"),
        encoding,
        False,
        "i32",
    )
    return found.output(0)


def _ranked(scores: Ov, takes_all: bool) -> Ov:
    """Give a score of NaN the last place, after -inf; the engine leaves out -inf."""
    lowest = float(np.finfo(np.float16 if type_name(scores) == "f16" else np.float32).min)
    if not takes_all:
        return _or_nan(scores, -np.inf)
    return _or_nan(ops.maximum(scores, number(lowest * 0.99, scores)), lowest)


def _or_nan(x: Ov, number_: float) -> Ov:
    """Put a number in place of NaN."""
    return ops.select(ops.is_nan(x), number(number_, x), x)


def _beyond(overlap: Ov) -> Ov:
    """Give the next larger float32: the engine drops boxes that overlap by just so much too.

    No overlap is beyond NaN, and each is beyond what is below 0.
    """
    # Three quarters of a unit in the last place, up to three halves: rounded, it is one.
    more = ops.add(overlap, ops.multiply(overlap, const(0.75 * 2.0**-23, "f32")))
    more = ops.maximum(_or_nan(more, 2.0), const(2.0**-126, "f32"))
    zero = const(0.0, "f32")
    return ops.select(ops.less(overlap, zero), zero, more)


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
