"""Normalization: softmax and its variants, and scaling to mean 0 and variance 1.

Statistics of 16-bit floats are taken in float32, as every engine does.
"""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import FLOATS
from fusewire.ir.dims import Shape, is_equal
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.creation import iota
from fusewire.ops.declare import Family, Trait
from fusewire.ops.elementwise import (
    abs_,
    add,
    divide,
    exp,
    log,
    maximum,
    multiply,
    rsqrt,
    sqrt,
    square,
    subtract,
)
from fusewire.ops.inference import (
    axes_of,
    axis_of,
    broadcast_shapes,
    require,
    same_dtype,
)
from fusewire.ops.logic import equal
from fusewire.ops.reduction import argmax, narrowed, reduce_max, reduce_sum, widened
from fusewire.ops.sample import Sample, bad, draw, given, sample
from fusewire.ops.statistics import reduce_mean

FAMILY = Family("normalization")
NEEDS_AXIS = {"scalar": "a scalar has no axis to normalize along"}


def _axis_type(x: TensorType, *, axis: int = -1) -> TensorType:
    axis_of(axis, x.rank)
    return x


def _axis_samples() -> list[Sample]:
    return [
        sample(draw(3, 5)),
        sample(draw(2, 4, 3), axis=1),
        sample(draw(0, 3)),
        sample(draw(3, 0)),
        sample(given([[80.0, -80.0, 80.0], [3.0, 1.0, -np.inf]])),
    ]


def _softmax(x: Value, axis: int) -> Value:
    shifted = exp(subtract(x, reduce_max(x, axes=(axis,), keepdims=True)))
    return divide(shifted, reduce_sum(shifted, axes=(axis,), keepdims=True))


def _log_softmax(x: Value, axis: int) -> Value:
    shifted = subtract(x, reduce_max(x, axes=(axis,), keepdims=True))
    return subtract(shifted, log(reduce_sum(exp(shifted), axes=(axis,), keepdims=True)))


def _hardmax(x: Value, axis: int) -> Value:
    axis = axis_of(axis, x.tensor.rank)
    places = iota.new(shape=x.tensor.shape, axis=axis)
    first = argmax(x, axis=axis, keepdims=True)
    return cast(equal(places, first), dtype=x.tensor.dtype)


softmax = FAMILY.declare(
    "softmax",
    _axis_type,
    expand=_softmax,
    dtypes=FLOATS,
    doc="Take exponentials, scaled to add up to 1 along an axis.",
    samples=_axis_samples,
    lacks=NEEDS_AXIS,
)
log_softmax = FAMILY.declare(
    "log_softmax",
    _axis_type,
    expand=_log_softmax,
    dtypes=FLOATS,
    doc="Take the logarithm of softmax.",
    samples=_axis_samples,
    lacks=NEEDS_AXIS,
)
hardmax = FAMILY.declare(
    "hardmax",
    _axis_type,
    expand=_hardmax,
    dtypes=FLOATS,
    doc="Put 1 at the first largest element along an axis, else 0.",
    traits=(Trait.DISCONTINUOUS,),
    samples=_axis_samples,
    refuses=lambda: [bad("axis -1 is outside a tensor of rank 0", "[]")],
    lacks=NEEDS_AXIS,
)


def standardized(x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    """Bring axes to mean 0 and variance 1."""
    wide = widened(x)
    centred = subtract(wide, reduce_mean(wide, axes=axes, keepdims=True))
    variance = reduce_mean(square(centred), axes=axes, keepdims=True)
    return narrowed(multiply(centred, rsqrt(add(variance, epsilon))), x)


def affine(x: Value, scale: Value | None, bias: Value | None) -> Value:
    """Scale and shift, each if given."""
    scaled = x if scale is None else multiply(x, scale)
    return scaled if bias is None else add(scaled, bias)


def fitted(x: TensorType, *others: Shape) -> TensorType:
    """Find the type of x after combining it with others, which may not change its shape."""
    shape = broadcast_shapes(x.shape, *others)
    pairs = zip(x.shape, shape, strict=False)
    fits = len(shape) == x.rank and all(is_equal(a, b) is not False for a, b in pairs)
    require(fits, f"scale and bias must broadcast to {x}, found {list(map(list, others))}.")
    return x.with_shape(shape)


def _layer_norm_type(
    x: TensorType,
    scale: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> TensorType:
    axis_of(axis, x.rank)
    same_dtype(x, scale, bias)
    return fitted(x, *(v.shape for v in (scale, bias) if v is not None))


def _from(axis: int, x: Value) -> tuple[int, ...]:
    rank = x.tensor.rank
    return tuple(range(axis_of(axis, rank), rank))


def _layer_norm(
    x: Value, scale: Value | None, bias: Value | None, axis: int, epsilon: float
) -> Value:
    return affine(standardized(x, _from(axis, x), epsilon), scale, bias)


def _rms_norm_type(
    x: TensorType, scale: TensorType | None = None, *, axis: int = -1, epsilon: float = 1e-5
) -> TensorType:
    return _layer_norm_type(x, scale, axis=axis, epsilon=epsilon)


def _rms_norm(x: Value, scale: Value | None, axis: int, epsilon: float) -> Value:
    wide = widened(x)
    mean = reduce_mean(square(wide), axes=_from(axis, x), keepdims=True)
    return affine(narrowed(multiply(wide, rsqrt(add(mean, epsilon))), x), scale, None)


layer_norm = FAMILY.declare(
    "layer_norm",
    _layer_norm_type,
    expand=_layer_norm,
    dtypes=FLOATS,
    doc="Normalize the axes from ``axis`` on to mean 0 and variance 1, then scale and shift.",
    lacks=NEEDS_AXIS,
    samples=lambda: [
        sample(draw(3, 8), draw(8), draw(8)),
        sample(draw(2, 3, 4), draw(3, 4), axis=-2, epsilon=0.1),
        sample(draw(2, 3, 4), None, draw(4), axis=2),
        sample(draw(0, 4), draw(4)),
    ],
    refuses=lambda: [
        bad("axis -1 is outside a tensor of rank 0", "[]", "[4]"),
        bad("operands must have one dtype, found float32 and bool", "[0, 4]", "bool[4]"),
        bad("shapes [0] and [4] do not broadcast: aligned at the end", "[0]", "[4]"),
    ],
)
rms_norm = FAMILY.declare(
    "rms_norm",
    _rms_norm_type,
    expand=_rms_norm,
    dtypes=FLOATS,
    doc="Divide by the root of the mean square over the axes from ``axis`` on, then scale.",
    lacks=NEEDS_AXIS,
    samples=lambda: [
        sample(draw(3, 8), draw(8)),
        sample(draw(2, 3, 4), axis=1, epsilon=0.1),
        sample(draw(0, 4), draw(4)),
    ],
)


def _lp_normalize_type(x: TensorType, *, axis: int = -1, p: int = 2) -> TensorType:
    require(p in (1, 2), f"p must be 1 or 2, found {p}.")
    return _axis_type(x, axis=axis)


def _lp_normalize(x: Value, axis: int, p: int) -> Value:
    wide = widened(x)
    if p == 1:
        length = reduce_sum(abs_(wide), axes=(axis,), keepdims=True)
    else:
        length = sqrt(reduce_sum(square(wide), axes=(axis,), keepdims=True))
    # The smallest normal number: nothing divided by nothing is nothing.
    smallest = float(np.finfo(wide.tensor.dtype.numpy).tiny)
    return narrowed(divide(wide, maximum(length, smallest)), x)


def _mean_variance_norm_type(
    x: TensorType, *, axes: tuple[int, ...] = (0, 2, 3), epsilon: float = 1e-9
) -> TensorType:
    axes_of(axes, x.rank)
    return x


def _mean_variance_norm(x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    wide = widened(x)
    centred = subtract(wide, reduce_mean(wide, axes=axes, keepdims=True))
    deviation = sqrt(reduce_mean(square(centred), axes=axes, keepdims=True))
    return narrowed(divide(centred, add(deviation, epsilon)), x)


lp_normalize = FAMILY.declare(
    "lp_normalize",
    _lp_normalize_type,
    expand=_lp_normalize,
    dtypes=FLOATS,
    doc="Divide by the length along an axis: sum of magnitudes (1) or root of squares (2).",
    lacks=NEEDS_AXIS,
    samples=lambda: [
        sample(draw(3, 5)),
        sample(draw(2, 3, 4), axis=1, p=1),
        sample(draw(0, 3)),
    ],
    refuses=lambda: [bad("p must be 1 or 2, found 3", "[3, 5]", p=3)],
)
mean_variance_norm = FAMILY.declare(
    "mean_variance_norm",
    _mean_variance_norm_type,
    expand=_mean_variance_norm,
    dtypes=FLOATS,
    doc="Subtract the mean and divide by the standard deviation over axes.",
    samples=lambda: [
        sample(draw(2, 3, 4, 2)),
        sample(draw(3, 5), axes=(-1,), epsilon=0.1),
        sample(draw(), axes=(), epsilon=1.0),
        sample(draw(0, 4), axes=(1,)),
    ],
    refuses=lambda: [bad("axis 0 is outside a tensor of rank 0", "[]")],
)
