"""Means, variances and medians: made of reductions, of sizes and of sorted elements."""

from __future__ import annotations

from functools import partial

import numpy as np

from fusewire.dtypes import COMPLEX, FLOATS
from fusewire.ir.dims import is_equal, size
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.declare import Family, Trait
from fusewire.ops.elementwise import add, divide, maximum, multiply, sqrt, square, subtract
from fusewire.ops.indexing import gather
from fusewire.ops.inference import axes_of, axis_of, require
from fusewire.ops.logic import isnan, where
from fusewire.ops.movement import squeeze
from fusewire.ops.reduction import (
    NO_AXIS,
    Axes,
    compose,
    narrowed,
    reduce_any,
    reduce_prod,
    reduce_sum,
    reduced_samples,
    reduced_type,
    widened,
)
from fusewire.ops.sample import Sample, bad, draw, given, sample
from fusewire.ops.shape import shape_of
from fusewire.ops.slicing import slice_axis
from fusewire.ops.sorting import sort

FAMILY = Family("statistics")
_compose = partial(compose, family=FAMILY)


def count(x: Value, axes: Axes) -> Value | float:
    """Count the elements that are combined into one, as a number or as a value of x's dtype."""
    chosen = axes_of(axes, x.tensor.rank)
    terms = size([x.tensor.shape[axis] for axis in chosen])
    if isinstance(terms, int):
        return float(terms)
    sizes = gather(shape_of(x), np.array(chosen, np.int64), axis=0)
    return cast(reduce_prod(sizes), dtype=x.tensor.dtype)


def _mean(x: Value, axes: Axes, keepdims: bool) -> Value:
    wide = widened(x)
    total = reduce_sum(wide, axes=axes, keepdims=keepdims)
    return narrowed(divide(total, count(wide, axes)), x)


def _variance(x: Value, axes: Axes, keepdims: bool, correction: int) -> Value:
    wide = widened(x)
    squares = square(subtract(wide, reduce_mean(wide, axes=axes, keepdims=True)))
    terms = count(wide, axes)
    free = (
        maximum(subtract(terms, correction), 0.0)
        if isinstance(terms, Value)
        else (max(terms - correction, 0.0))
    )
    return narrowed(divide(reduce_sum(squares, axes=axes, keepdims=keepdims), free), x)


def _varied_type(
    x: TensorType, *, axes: Axes = None, keepdims: bool = False, correction: int = 0
) -> TensorType:
    return reduced_type(x, axes=axes, keepdims=keepdims)


def _varied_samples() -> list[Sample]:
    plain = [s for s in reduced_samples() if s.operands != (draw(),) and s.attrs.get("axes") != ()]
    return [*plain, sample(draw(4, 5), axes=(0,), correction=1)]


_ONE = {"scalar": "the spread of one number is 0, which has no digits to compare"}


reduce_mean = _compose(
    "reduce_mean",
    _mean,
    "Average over axes; NaN if empty.",
    FLOATS + COMPLEX,
    traits=(Trait.LINEAR,),
)
variance = _compose(
    "variance",
    _variance,
    "Average the squared distances from the mean, divided by n - correction.",
    rule=_varied_type,
    samples=_varied_samples,
    lacks=_ONE,
)
standard_deviation = _compose(
    "standard_deviation",
    lambda x, **attrs: narrowed(sqrt(variance(widened(x), **attrs)), x),
    "Take the root of the variance.",
    rule=_varied_type,
    samples=_varied_samples,
    lacks=_ONE,
)


def _median_samples() -> list[Sample]:
    return [
        sample(draw(3, 5), axis=1),
        sample(draw(2, 4, 3), axis=-2, keepdims=True),
        sample(draw(0, 3), axis=1),
        sample(given([[1.0, np.nan, 2.0], [3.0, np.inf, -np.inf]]), axis=1),
    ]


def _median_type(x: TensorType, *, axis: int, keepdims: bool = False) -> TensorType:
    known = is_equal(x.shape[axis_of(axis, x.rank)], 0)
    require(known is not True, "there is no median of nothing: the axis has no elements.")
    return reduced_type(x, axes=(axis,), keepdims=keepdims)


def _median(x: Value, axis: int, keepdims: bool) -> Value:
    axis = axis_of(axis, x.tensor.rank)
    terms = x.tensor.shape[axis]
    ordered = sort(x, axis=axis)
    low, high = (
        slice_axis(ordered, axis, slice(at, at + 1)) for at in ((terms - 1) // 2, terms // 2)
    )
    middle = add(multiply(low, 0.5), multiply(high, 0.5))
    broken = reduce_any(isnan(x), axes=(axis,), keepdims=True)
    found = where(broken, np.nan, middle)
    return found if keepdims else squeeze(found, axes=(axis,))


median = _compose(
    "median",
    _median,
    "Take the median along an axis; of an even number, the mean of the middle two.",
    rule=_median_type,
    samples=_median_samples,
    refuses=lambda: [
        bad("there is no median of nothing: the axis has no elements", "[3, 0]", axis=1),
        bad("axis 1 is outside a tensor of rank 0", "[]", axis=1),
    ],
    lacks=NO_AXIS,
    steady=("x",),
)
