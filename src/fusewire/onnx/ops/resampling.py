"""Resize to sizes or by scales, known before the run or not.

Written as ONNX's Resize where engines agree, else as what it amounts to: where sizes are known,
resizing an axis is taking elements by place, or multiplying by a matrix. Both are found by resizing
what tells them, with the reference itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import float32, int64
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, floordiv
from fusewire.ir.graph import Array, Node, Value
from fusewire.onnx.ops.reading import cast, is_told, named, with_sizes
from fusewire.onnx.ops.writing import attrs_of, has_kernel, indices, operand, require_filled
from fusewire.onnx.write.emitter import is_nothing
from fusewire.ops import elementwise, movement, reduction, resampling
from fusewire.ops.resampling import COORDINATES as PLACES
from fusewire.ops.resampling import ROUNDINGS as ROUND
from fusewire.ops.resampling import ResizedAxis, resize_array
from fusewire.ops.shape import shape_of
from fusewire.ops.slicing import slice_axis

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}
# A place half an element further than half_pixel has, rounded as said, is one rounded so.
_HALF_FURTHER = {"floor": "half_up", "round_prefer_floor": "ceil"}
# Denominators up to which a product of a size and a scale is exact in float32.
_EXACT = 256
# Ours, and what ONNX calls them.
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
_OUR_COORDINATES = {theirs: ours for ours, theirs in COORDINATES.items()}
_OUR_ROUNDINGS = {theirs: ours for ours, theirs in ROUNDINGS.items()}


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
        "coordinates": _chosen(
            call, "coordinate_transformation_mode", "half_pixel", _OUR_COORDINATES
        ),
        "rounding": _chosen(call, "nearest_mode", "round_prefer_floor", _OUR_ROUNDINGS),
        "cubic_a": call.attr("cubic_coeff_a", -0.75),
        "antialias": call.flag("antialias"),
        "exclude_outside": call.flag("exclude_outside"),
        "extrapolation": call.attr("extrapolation_value", 0.0),
    }


def _scaled(dim: Dim, scale: float) -> Dim | None:
    """Give the size that a scale makes of another, None when only the run can tell."""
    if isinstance(dim, int):
        return int(np.floor(np.float32(dim) * np.float32(scale)))
    numerator, denominator = float(scale).as_integer_ratio()
    if denominator > _EXACT:
        return None
    return floordiv(dim * numerator, denominator)


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


def _resize_node(
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


def _read_resize(call: OnnxCall) -> Converted:
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


def _write_resize(e: Emitter, node: Node, x: Ref, roi: Ref | None) -> Ref:
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
        return _resize_node(e, node, x, roi, None, e.shape(sizes))
    return _resize_node(e, node, x, roi, e.constant(np.array(scales, np.float32)), None)


def _is_known(node: Node) -> bool:
    attrs = attrs_of(node)
    dims = (*operand(node, 0).tensor.shape, *attrs["sizes"])
    return attrs["coordinates"] != "crop" and all(isinstance(n, int) and n > 0 for n in dims)


def _mismatch(node: Node) -> str | None:
    """Say which scale leads to another size by ONNX."""
    attrs = attrs_of(node)
    dims = zip(operand(node, 0).tensor.shape, attrs["sizes"], attrs["scales"], strict=True)
    for dim, made, scale in dims:
        if made != _size_by_onnx(dim, scale):
            return f"By ONNX, a scale of {scale} does not make {made} of {dim}."
    return None


def _size_by_onnx(dim: Dim, scale: float) -> Dim | None:
    """Give the size that ONNX makes of another; None when only the run can tell."""
    if isinstance(dim, int):
        return math.floor(dim * float(np.float32(scale)))
    if scale == int(scale):
        return dim * int(scale)
    return floordiv(dim, int(1 / scale)) if 1 / scale == int(1 / scale) else None


def _jumps(node: Node) -> bool:
    """Tell whether rounding places to float32, as engines do, finds other nearest elements."""
    attrs = attrs_of(node)
    if attrs["mode"] != "nearest":
        return False
    place, round_ = PLACES[attrs["coordinates"]], ROUND[attrs["rounding"]]
    if attrs["coordinates"] == "half_pixel_symmetric":
        return True
    for dim, made, scale in _axes_resized(node).values():
        wide, narrow = (
            round_(place(ResizedAxis(dim, made, float(of(scale))), np.arange(made, dtype=of)))
            for of in (np.float64, np.float32)
        )
        if (wide != narrow).any():
            return True
    return False


def _axes_resized(node: Node) -> dict[int, tuple[int, int, float]]:
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
    for axis, (dim, made, scale) in _axes_resized(node).items():
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


def _write_dynamic_resize(
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
        return _resize_node(e, node, x, roi, None, listed)
    found = _resize_node(e, node, x, roi, e.cast(scales, float32), None)
    # By ONNX the scales make the sizes: where they make others, engines stop here.
    return e("Reshape", found, listed, allowzero=1) if e.target.is_cautious else found


def _read_upsample(call: OnnxCall) -> Converted:
    x, attrs = call[0], _settings(call)
    if call.opset >= 9:
        scales = call[1]
    elif call.opset >= 7:
        scales = constant(np.array(call.needed("scales"), np.float32))
    else:
        sides = call.needed("height_scale"), call.needed("width_scale")
        scales = constant(np.array([1.0, 1.0, *sides], np.float32))
    return _resized(call, x, None, scales, **attrs)


READERS: Mapping[str, Read] = {
    "Resize": _read_resize,
    "Upsample": _read_upsample,
}


WRITERS: Mapping[str, Write] = {
    "resize": _write_resize,
    "dynamic_resize": _write_dynamic_resize,
}
