"""Resizing: by ONNX's Resize where engines agree, else by what it amounts to.

Where sizes are known, resizing an axis is taking elements by place, or multiplying by a matrix:
both are found by resizing what tells them, with the reference itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusewire.dtypes import float32
from fusewire.errors import FormatError
from fusewire.ir.dims import Dim, Shape, floordiv
from fusewire.ir.graph import Array, Node
from fusewire.onnx.ops.writing import attrs_of, has_kernel, indices, operand
from fusewire.onnx.write.emitter import Emitter, is_nothing
from fusewire.onnx.write.families.convolution import require_filled
from fusewire.onnx.write.model import Ref
from fusewire.ops.resampling import COORDINATES as PLACES
from fusewire.ops.resampling import ROUNDINGS as ROUND
from fusewire.ops.resampling import ResizedAxis, resize_array

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


def resize(e: Emitter, node: Node, x: Ref, roi: Ref | None) -> Ref:
    """Resize to sizes, or by scales where those are given and lead to the sizes."""
    attrs = attrs_of(node)
    sizes, scales = attrs["sizes"], attrs["scales"]
    if is_nothing(node):
        return e.nothing(node.outputs[0].tensor)
    if not sizes:
        return e("Identity", x)
    wrong = None if scales is None else _mismatch(node)
    odd = _disagreement(node, sizes) if e.target.is_cautious else None
    if _is_known(node):
        jumps = e.target.is_cautious and _jumps(node)
        if wrong or odd or jumps or not has_kernel(e.target, "Resize", x):
            return _by_parts(e, node, x)
    if wrong or odd:
        raise FormatError(wrong or odd)
    if scales is None:
        return _resized(e, node, x, roi, None, e.shape(sizes))
    return _resized(e, node, x, roi, e.constant(np.array(scales, np.float32)), None)


def dynamic_resize(
    e: Emitter, node: Node, x: Ref, sizes: Ref, scales: Ref | None, roi: Ref | None
) -> Ref:
    """Resize to sizes that the run tells."""
    rank = operand(node, 0).tensor.rank
    if not rank:
        return e("Identity", x)
    require_filled(e, node)
    odd = _disagreement(node, node.outputs[0].tensor.shape)
    if odd is not None:
        e.caution(odd)
    # A list of known length, or models with such a node are refused.
    listed = e("Reshape", indices(e, sizes), e.integers(rank))
    if scales is None:
        return _resized(e, node, x, roi, None, listed)
    found = _resized(e, node, x, roi, e.cast(scales, float32), None)
    # By ONNX the scales make the sizes: where they make others, engines stop here.
    return e("Reshape", found, listed, allowzero=1) if e.target.is_cautious else found


def _is_known(node: Node) -> bool:
    attrs = attrs_of(node)
    dims = (*operand(node, 0).tensor.shape, *attrs["sizes"])
    return attrs["coordinates"] != "crop" and all(isinstance(n, int) and n > 0 for n in dims)


def _mismatch(node: Node) -> str | None:
    """Say which scale leads to another size by ONNX."""
    attrs = attrs_of(node)
    dims = zip(operand(node, 0).tensor.shape, attrs["sizes"], attrs["scales"], strict=True)
    for dim, made, scale in dims:
        if made != _scaled(dim, scale):
            return f"By ONNX, a scale of {scale} does not make {made} of {dim}."
    return None


def _scaled(dim: Dim, scale: float) -> Dim | None:
    """Give the size that ONNX makes of another; None when only the run can tell."""
    if isinstance(dim, int):
        return math.floor(dim * float(np.float32(scale)))
    if scale == int(scale):
        return dim * int(scale)
    return floordiv(dim, int(1 / scale)) if 1 / scale == int(1 / scale) else None


def _disagreement(node: Node, made: Shape) -> str | None:
    """Say what engines do not agree about."""
    attrs = attrs_of(node)
    mode, dims = attrs["mode"], operand(node, 0).tensor.shape
    if attrs["coordinates"] == "crop" and any(a == b for a, b in zip(dims, made, strict=True)):
        return "Engines do not crop an axis whose size stays as it is."
    if mode == "linear" and attrs["exclude_outside"] and not attrs["antialias"]:
        return "Engines exclude what is outside in cubic mode only."
    changed = {axis - len(dims) for axis, dim in enumerate(dims) if made[axis] != dim}
    most = {"nearest": len(dims), "linear": 3 if len(dims) == 5 else 2, "cubic": 2}[mode]
    if mode != "nearest" and (len(dims) > 5 or changed - {*range(-most, 0)}):
        return f"Engines resize the last {most} axes in mode {mode}."
    return None


def _jumps(node: Node) -> bool:
    """Tell whether rounding places to float32, as engines do, finds other nearest elements."""
    attrs = attrs_of(node)
    if attrs["mode"] != "nearest":
        return False
    place, round_ = PLACES[attrs["coordinates"]], ROUND[attrs["rounding"]]
    if attrs["coordinates"] == "half_pixel_symmetric":
        return True
    for dim, made, scale in _axes(node).values():
        wide, narrow = (
            round_(place(ResizedAxis(dim, made, float(of(scale))), np.arange(made, dtype=of)))
            for of in (np.float64, np.float32)
        )
        if (wide != narrow).any():
            return True
    return False


def _axes(node: Node) -> dict[int, tuple[int, int, float]]:
    """List the axes that change, with both sizes and the scale."""
    attrs, shape = attrs_of(node), operand(node, 0).tensor.shape
    found: dict[int, tuple[int, int, float]] = {}
    for axis, (dim, made) in enumerate(zip(shape, attrs["sizes"], strict=True)):
        assert isinstance(dim, int)
        scale = made / dim if attrs["scales"] is None else attrs["scales"][axis]
        if (made, scale) != (dim, 1.0):
            found[axis] = (dim, made, scale)
    return found


def _by_parts(e: Emitter, node: Node, x: Ref) -> Ref:
    """Resize axis by axis, by places or by weights."""
    rank = operand(node, 0).tensor.rank
    for axis, (dim, made, scale) in _axes(node).items():
        weights = _weights(node, dim, made, scale)
        if attrs_of(node)["mode"] == "nearest":
            x = e("Gather", x, e.constant(weights.argmax(1)), axis=axis)
            continue
        turned = [i for i in range(rank) if i != axis] + [axis]
        back = [turned.index(i) for i in range(rank)]
        rows = e("Transpose", x, perm=turned)
        x = e("Transpose", e("MatMul", rows, e.constant(weights.T, x.dtype)), perm=back)
    return x


def _weights(node: Node, dim: int, made: int, scale: float) -> Array:
    """Find how much each element counts by resizing those that stand alone."""
    attrs: dict[str, Any] = {**attrs_of(node), "sizes": (made, dim), "scales": (scale, 1.0)}
    return resize_array(np.eye(dim), None, **attrs)


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


def _resized(
    e: Emitter, node: Node, x: Ref, roi: Ref | None, scales: Ref | None, sizes: Ref | None
) -> Ref:
    """Resize an image of at least four axes: with fewer, engines lack modes."""
    missing = max(4 - operand(node, 0).tensor.rank, 0) if e.target.is_cautious else 0
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


WRITERS = {"resize": resize, "dynamic_resize": dynamic_resize}
