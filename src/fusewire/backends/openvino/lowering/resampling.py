"""Resizing. Places and weights are computed here where sizes are known, in float64 as the op does:
the engine's float32 may round a place to the other side of a half."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    rank_of,
)
from fusewire.backends.openvino.lowering.movement import as_numbers, attr
from fusewire.ir.graph import Array, Node
from fusewire.ops.resampling import COORDINATES, ROUNDINGS, ResizedAxis, taps_of

_NEAREST = {
    "half_down": "round_prefer_floor",
    "half_up": "round_prefer_ceil",
    "floor": "floor",
    "ceil": "ceil",
}
_PLACES = {
    name: name for name in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
}

# Places are multiples of a power of two then, which float32 has exactly.
_FACTORS = tuple(2**n for n in range(8))


def _axes(node: Node) -> list[ResizedAxis] | None:
    """List the axes with all that is known of them, or None where the run has to tell."""
    x, scales, sizes = node.operands[0].tensor, attr(node, "scales"), node.outputs[0].tensor.shape
    if not x.is_static or not all(isinstance(dim, int) for dim in sizes):
        return None
    found = []
    for place, (size, count) in enumerate(zip(x.shape, sizes, strict=True)):
        assert isinstance(size, int), "checked above"
        assert isinstance(count, int), "checked above"
        scale = count / max(size, 1) if scales is None else float(scales[place])
        found.append(ResizedAxis(size, count, scale))
    return found


def _is_whole(node: Node) -> bool:
    """Tell whether the engine's own places are exact: axes grow by whole factors, if at all."""
    axes, scales = _axes(node), attr(node, "scales")
    factors = scales if axes is None else [axis.scale for axis in axes]
    # Of "pytorch_half_pixel" only a single output element differs, which no axis grows to.
    exact = ("asymmetric", "half_pixel", "pytorch_half_pixel")
    if factors is None or attr(node, "coordinates") not in exact:
        return False
    plain = not attr(node, "antialias") and not attr(node, "exclude_outside")
    rank = node.operands[0].tensor.rank
    mode = attr(node, "mode")
    inner = all(factor == 1 for factor in factors[:2]) and rank in (3, 4, 5)
    fits = mode == "nearest" or (mode == "linear" and rank == 4)
    return plain and inner and fits and all(f in _FACTORS for f in factors)


def _native(s: Any, node: Node, x: Ov) -> Ov:
    """Let the engine do it."""
    rank = rank_of(x)
    mode = {"nearest": "nearest", "linear": "linear_onnx"}[attr(node, "mode")]
    axes = list(range(2, rank))
    sizes = s.shape(node.outputs[0].tensor.shape[2:])
    return ops.interpolate(
        x,
        sizes,
        mode,
        "sizes",
        coordinate_transformation_mode=_PLACES[attr(node, "coordinates")],
        nearest_mode=_NEAREST[attr(node, "rounding")],
        axes=const(axes),
    )


def _resized(node: Node, x: Ov, place: int, axis: ResizedAxis) -> Ov:
    """Resize one axis by places and weights that are known."""
    at = COORDINATES[attr(node, "coordinates")](axis, np.arange(axis.count, dtype=np.float64))
    if attr(node, "mode") == "nearest":
        found = ROUNDINGS[attr(node, "rounding")](at).astype(np.int64)
        return ops.gather(x, const(found.clip(0, axis.size - 1)), const(place))
    names = ("mode", "cubic_a", "antialias", "exclude_outside")
    taps, weights = taps_of(axis, at, *(attr(node, name) for name in names))
    matrix = _matrix(taps.clip(0, axis.size - 1), weights, axis.size)
    rank = rank_of(x)
    last = [i for i in range(rank) if i != place] + [place]
    back = [last.index(i) for i in range(rank)]
    turned = x if place == rank - 1 else ops.transpose(x, const(last))
    made = ops.matmul(turned, ops.constant(matrix), False, True)
    return made if place == rank - 1 else ops.transpose(made, const(back))


def _matrix(taps: Array, weights: Array, size: int) -> Array:
    """Write the weights of each output element in a row; places may repeat at the borders."""
    found = np.zeros((len(taps), size))
    np.add.at(found, (np.arange(len(taps))[:, None], taps), weights)
    return found.astype(np.float32)


def _resize(s: Any, node: Node, x: Ov, roi: Ov | None) -> Ov:
    of = node.outputs[0].tensor.dtype
    if _is_whole(node) and of.is_float:
        return _native(s, node, x)
    axes = _axes(node)
    assert axes is not None, "or refused"
    for place, axis in enumerate(axes):
        if not axis.is_same:
            x = _resized(node, x, place, axis)
    return x


def _refuses(node: Node) -> str | None:
    if attr(node, "coordinates") == "crop":
        return "Resizing a region of interest is not written for OpenVINO."
    of = node.outputs[0].tensor.dtype
    if _axes(node) is None and not (_is_whole(node) and of.is_float):
        return "OpenVINO computes places in float32; where sizes are open they may be off by one."
    return None


TABLE: Table = {"resize": Entry(as_numbers(_resize), "fiub", refuses=_refuses)}
