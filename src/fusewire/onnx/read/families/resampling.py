"""Resize and Upsample: sizes or scales, known before the run or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fusewire.dtypes import float32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, floordiv
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast, is_told, named, with_sizes
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import elementwise, movement, reduction, resampling
from fusewire.ops.shape import shape_of
from fusewire.ops.slicing import slice_axis

MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}
COORDINATES = {
    "half_pixel": "half_pixel",
    "half_pixel_symmetric": "half_pixel_symmetric",
    "pytorch_half_pixel": "pytorch_half_pixel",
    "align_corners": "align_corners",
    "asymmetric": "asymmetric",
    "tf_crop_and_resize": "crop",
}
ROUNDINGS = {
    "round_prefer_floor": "half_down",
    "round_prefer_ceil": "half_up",
    "floor": "floor",
    "ceil": "ceil",
}
# A place half an element further than half_pixel has, rounded as said, is one rounded so.
_HALF_FURTHER = {"floor": "half_up", "round_prefer_floor": "ceil"}
# Denominators up to which a product of a size and a scale is exact in float32.
_EXACT = 256


def _chosen(call: OnnxCall, name: str, default: str, table: Mapping[str, str]) -> str:
    found = call.attr(name, default)
    if found not in table:
        call.refuse(f"{name} is one of {', '.join(table)}; found {found!r}.")
    return table[found]


def _settings(call: OnnxCall) -> dict[str, Any]:
    """Read what resizing needs beside sizes; before opset 11 there was only the mode."""
    mode = _chosen(call, "mode", "nearest", MODES)
    if call.opset < 11 or call.op == "Upsample":
        return {"mode": mode, "coordinates": "asymmetric", "rounding": "floor"}
    if call.attr("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        if mode != "nearest":
            call.refuse("tf_half_pixel_for_nn is for mode nearest. Choose half_pixel.")
        rounding = _chosen(call, "nearest_mode", "round_prefer_floor", _HALF_FURTHER)
        return {"mode": mode, "coordinates": "half_pixel", "rounding": rounding}
    return {
        "mode": mode,
        "coordinates": _chosen(call, "coordinate_transformation_mode", "half_pixel", COORDINATES),
        "rounding": _chosen(call, "nearest_mode", "round_prefer_floor", ROUNDINGS),
        "cubic_a": call.attr("cubic_coeff_a", -0.75),
        "antialias": call.flag("antialias"),
        "exclude_outside": call.flag("exclude_outside"),
        "extrapolation": call.attr("extrapolation_value", 0.0),
    }


def _given(call: OnnxCall, position: int) -> Value | None:
    """Give an operand, unless it is absent or empty, which means the same."""
    found = call.get(position)
    return None if found is None or found.tensor.size == 0 else found


def _spread(listed: Value, axes: Sequence[int], others: Value, parts: int = 1) -> Value:
    """Put a list for some axes among what the others have; roi has two parts of each."""
    rank = others.tensor.shape[0]
    if len(axes) * parts == rank and list(axes) == sorted(axes):
        return listed
    whole = int(rank) if isinstance(rank, int) else 0
    places = {
        axis + part * whole // parts: i + part * len(axes)
        for part in range(parts)
        for i, axis in enumerate(axes)
    }
    taken = [
        slice_axis(listed, 0, np.s_[places[i] : places[i] + 1])
        if i in places
        else slice_axis(others, 0, np.s_[i : i + 1])
        for i in range(whole)
    ]
    return movement.concat(*taken, axis=0)


def _scaled(dim: Dim, scale: float) -> Dim | None:
    """Give the size that a scale makes of another, None when only the run can tell."""
    if isinstance(dim, int):
        return int(np.floor(np.float32(dim) * np.float32(scale)))
    ratio = Fraction(scale)
    if ratio.denominator > _EXACT:
        return None
    return floordiv(dim * ratio.numerator, ratio.denominator)


def _by_scales(x: Value, roi: Value | None, scales: Sequence[float], **attrs: Any) -> Value | None:
    """Resize by scales that are known, if the sizes are known then."""
    sizes = [_scaled(dim, scale) for dim, scale in zip(x.tensor.shape, scales, strict=True)]
    if None in sizes:
        return None
    exact = all(
        isinstance(dim, int) and dim * scale == size
        for dim, scale, size in zip(x.tensor.shape, scales, sizes, strict=True)
    )
    found = resampling.resize(
        x, roi, sizes=named(sizes), scales=None if exact else tuple(scales), **attrs
    )
    return found if is_told(found, x, roi) else None


def _resized(call: OnnxCall, x: Value, roi: Value | None, scales: Value, **attrs: Any) -> Value:
    """Resize by scales, which may be known or not."""
    known = call.array(scales)
    if known is not None:
        found = _by_scales(x, roi, [float(s) for s in known], **attrs)
        if found is not None:
            return found
    product = elementwise.multiply(cast(shape_of(x), float32), cast(scales, float32))
    sizes = cast(elementwise.floor(product), int64)
    return with_sizes(
        call, resampling.dynamic_resize, [x, sizes, scales, roi], _open(x, call), **attrs
    )[0]


def _axes(call: OnnxCall, x: Value) -> list[int]:
    rank = x.tensor.rank
    return [axis % rank for axis in call.attr("axes", range(rank))]


def _open(x: Value, call: OnnxCall) -> tuple[Dim, ...]:
    """Name the sizes of axes that are resized."""
    axes = _axes(call, x)
    return named([None if i in axes else dim for i, dim in enumerate(x.tensor.shape)])


def _to_sizes(
    call: OnnxCall, x: Value, roi: Value | None, sizes: Value, axes: Sequence[int], **attrs: Any
) -> Value:
    """Resize to sizes, or as near as keeps the ratio of the axes."""
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    shape = shape_of(x)
    if policy == "stretch":
        whole = _spread(cast(sizes, int64), axes, shape)
        return with_sizes(
            call, resampling.dynamic_resize, [x, whole, None, roi], _open(x, call), **attrs
        )[0]
    if policy not in ("not_larger", "not_smaller"):
        call.refuse(
            f"keep_aspect_ratio_policy is stretch, not_larger or not_smaller, found {policy!r}."
        )
    some = movement.concat(*(slice_axis(shape, 0, np.s_[a : a + 1]) for a in axes), axis=0)
    before = cast(some, float32)
    ratios = elementwise.divide(cast(sizes, float32), before)
    reduce = reduction.reduce_min if policy == "not_larger" else reduction.reduce_max
    scale = reduce(ratios, keepdims=True)
    made = elementwise.floor(elementwise.add(elementwise.multiply(before, scale), 0.5))
    ones = constant(np.ones(x.tensor.rank, np.float32))
    scales = _spread(movement.broadcast_to(scale, shape=(len(axes),)), axes, ones)
    whole = _spread(cast(made, int64), axes, shape)
    whole, scales = call.settled(whole, scales)
    return with_sizes(
        call, resampling.dynamic_resize, [x, whole, scales, roi], _open(x, call), **attrs
    )[0]


def _resize(call: OnnxCall) -> Converted:
    x, attrs = call[0], _settings(call)
    of = x.tensor.dtype
    computes = attrs["mode"] != "nearest" and not of.is_float
    x = cast(x, float32) if computes else x
    if call.opset < 11:
        return cast(_before_11(call, x, call[1], **attrs), of)
    axes, roi = _axes(call, x), None
    if attrs["coordinates"] == "crop":
        bounds = constant(np.repeat(np.array([0, 1], np.float32), x.tensor.rank))
        roi = _spread(cast(call[1], float32), axes, bounds, 2)
    scales, sizes = _given(call, 2), _given(call, 3)
    if scales is not None:
        ones = constant(np.ones(x.tensor.rank, np.float32))
        (scales,) = call.settled(_spread(scales, axes, ones))
        return cast(_resized(call, x, roi, scales, **attrs), of)
    if sizes is None:
        call.refuse("either scales or sizes are needed, and both are absent.")
    return cast(_to_sizes(call, x, roi, sizes, axes, **attrs), of)


def _before_11(call: OnnxCall, x: Value, scales: Value, **attrs: Any) -> Value:
    """Resize as engines do where no standard says how: shrinking looks up, growing looks down."""
    known = call.array(scales)
    if attrs["mode"] != "nearest" or (known is not None and (known >= 1.0).all()):
        return _resized(call, x, None, scales, **attrs)
    shrunk, grown = call.settled(elementwise.minimum(scales, 1.0), elementwise.maximum(scales, 1.0))
    x = _resized(call, x, None, shrunk, **{**attrs, "rounding": "ceil"})
    if known is not None and (known <= 1.0).all():
        return x
    return _resized(call, x, None, grown, **attrs)


def _upsample(call: OnnxCall) -> Converted:
    x, attrs = call[0], _settings(call)
    if call.opset >= 9:
        scales = call[1]
    elif call.opset >= 7:
        scales = constant(np.array(call.needed("scales"), np.float32))
    else:
        sides = call.needed("height_scale"), call.needed("width_scale")
        scales = constant(np.array([1.0, 1.0, *sides], np.float32))
    return _resized(call, x, None, scales, **attrs)


TABLE: Mapping[str, Read] = {"Resize": _resize, "Upsample": _upsample}
