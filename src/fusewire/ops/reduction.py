"""Reductions over axes, and positions of extremes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusewire.dtypes import COMPLEX, FLOATS, NUMERIC, REAL, DType, bool_, float32, int64
from fusewire.ir.dims import Dim, is_equal, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges, symbolic
from fusewire.ops.conversion import cast
from fusewire.ops.declare import EXACT, LINEAR, Family, Kind, Op, Tolerance, Trait
from fusewire.ops.elementwise import (
    abs_,
    add,
    divide,
    exp,
    log,
    maximum,
    multiply,
    sqrt,
    square,
    subtract,
)
from fusewire.ops.inference import axes_of, axis_of, reduced_shape, require
from fusewire.ops.logic import isfinite, isnan, where
from fusewire.ops.movement import squeeze
from fusewire.ops.sample import Refuses, Sample, bad, draw, given, sample
from fusewire.ops.slicing import slice_axis

FAMILY = Family("reduction")

Axes = tuple[int, ...] | None


def _reduced_type(x: TensorType, *, axes: Axes = None, keepdims: bool = False) -> TensorType:
    return x.with_shape(reduced_shape(x.shape, axes_of(axes, x.rank), keepdims))


def _samples(low: float = -2.0, high: float = 2.0) -> list[Sample]:
    return [
        sample(draw(3, 5, low=low, high=high)),
        sample(draw(2, 3, 4, low=low, high=high), axes=(-1,)),
        sample(draw(2, 3, 4, low=low, high=high), axes=(0, 2), keepdims=True),
        sample(draw(2, 3, low=low, high=high), axes=()),
        sample(draw(low=low, high=high)),
        sample(draw(0, 3, low=low, high=high), axes=(1,)),
        sample(draw(2, 0, low=low, high=high), axes=(1,), keepdims=True),
    ]


def _extreme_samples() -> list[Sample]:
    rows = [[-np.inf, -np.inf], [np.inf, np.inf], [-np.inf, 1.0]]
    return [*_samples(), sample(given(rows), axes=(1,), only=FLOATS)]


def _terms(inputs: Any, outputs: Any, attrs: Any) -> Dim:
    return size(inputs[0].shape)


def limit(x: Array, largest: bool) -> Any:
    """Give the largest or the smallest value of an array's dtype."""
    if x.dtype.kind == "b":
        return largest
    if x.dtype.kind == "f":
        return np.inf if largest else -np.inf
    info = np.iinfo(x.dtype)
    return info.max if largest else info.min


def _reduce(
    name: str,
    reference: Callable[..., Any],
    doc: str,
    dtypes: tuple[DType, ...],
    tolerance: Tolerance = EXACT,
    traits: tuple[Trait, ...] = (),
    samples: Callable[[], list[Sample]] = _samples,
    **facts: Any,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        _reduced_type,
        doc=doc,
        reference=reference,
        dtypes=dtypes,
        tolerance=tolerance,
        traits=(Trait.REDUCTION, *traits),
        samples=samples,
        flops=_terms,
        kind=Kind.FOLD,
        **facts,
    )


reduce_sum = _reduce(
    "reduce_sum",
    lambda x, axes, keepdims: np.sum(x, axes, x.dtype, keepdims=keepdims),
    "Add up over axes.",
    NUMERIC,
    LINEAR,
    (Trait.LINEAR,),
    value_range=ranges.totals,
    symbolic=symbolic.reduced_by(symbolic.add),
)
reduce_prod = _reduce(
    "reduce_prod",
    lambda x, axes, keepdims: np.prod(x, axes, x.dtype, keepdims=keepdims),
    "Multiply over axes.",
    NUMERIC,
    LINEAR,
    traits=(Trait.COUNTING,),
    value_range=ranges.sizes_multiplied,
    symbolic=symbolic.reduced_by(symbolic.multiply),
)
reduce_max = _reduce(
    "reduce_max",
    lambda x, axes, keepdims: np.max(x, axes, keepdims=keepdims, initial=limit(x, False)),
    "Take the largest over axes; NaN if any is NaN, the lowest value of the dtype if empty.",
    (bool_, *REAL),
    traits=(Trait.COUNTING,),
    samples=_extreme_samples,
    value_range=ranges.extremes,
    symbolic=symbolic.reduced_by(symbolic.maximum),
)
reduce_min = _reduce(
    "reduce_min",
    lambda x, axes, keepdims: np.min(x, axes, keepdims=keepdims, initial=limit(x, True)),
    "Take the smallest over axes; NaN if any is NaN, the highest value of the dtype if empty.",
    (bool_, *REAL),
    traits=(Trait.COUNTING,),
    samples=_extreme_samples,
    value_range=ranges.extremes,
    symbolic=symbolic.reduced_by(symbolic.minimum),
)

reduce_any = _reduce(
    "reduce_any",
    lambda x, axes, keepdims: np.any(x, axes, keepdims=keepdims),
    "Test whether any element holds, over axes.",
    (bool_,),
    symbolic=symbolic.reduced_by(symbolic.logical_or),
    refuses=lambda: [bad("axis 0 is outside a tensor of rank 0", "[]", axes=(0,))],
)
reduce_all = _reduce(
    "reduce_all",
    lambda x, axes, keepdims: np.all(x, axes, keepdims=keepdims),
    "Test whether all elements hold, over axes.",
    (bool_,),
    symbolic=symbolic.reduced_by(symbolic.logical_and),
)


def widened(x: Value) -> Value:
    """Bring 16-bit floats to float32, in which sums neither overflow nor swallow terms."""
    of = x.tensor.dtype
    return cast(x, dtype=float32) if of.is_float and of.bits == 16 else x


def narrowed(x: Value, like: Value) -> Value:
    """Undo ``widened``."""
    of = like.tensor.dtype
    return x if x.tensor.dtype is of else cast(x, dtype=of)


def count(x: Value, axes: Axes) -> Value | float:
    """Count the elements that are combined into one, as a number or as a value of x's dtype."""
    chosen = axes_of(axes, x.tensor.rank)
    terms = size([x.tensor.shape[axis] for axis in chosen])
    if isinstance(terms, int):
        return float(terms)
    # Imported here: those families may build on this one.
    from fusewire.ops.indexing import gather
    from fusewire.ops.shape import shape_of

    sizes = gather(shape_of(x), np.array(chosen, np.int64), axis=0)
    return cast(reduce_prod(sizes), dtype=x.tensor.dtype)


def _mean(x: Value, axes: Axes, keepdims: bool) -> Value:
    wide = widened(x)
    total = reduce_sum(wide, axes=axes, keepdims=keepdims)
    return narrowed(divide(total, count(wide, axes)), x)


def _logsumexp(x: Value, axes: Axes, keepdims: bool) -> Value:
    wide = widened(x)
    largest = reduce_max(wide, axes=axes, keepdims=True)
    # What is infinite must not be subtracted: inf - inf has no value.
    shift = where(isfinite(largest), largest, 0.0)
    found = add(log(reduce_sum(exp(subtract(wide, shift)), axes=axes, keepdims=True)), shift)
    found = found if keepdims else squeeze(found, axes=axes_of(axes, x.tensor.rank))
    return narrowed(found, x)


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


def _summed(before: Op[Value] | None, after: Op[Value] | None) -> Callable[..., Value]:
    def expand(x: Value, axes: Axes, keepdims: bool) -> Value:
        wide = widened(x)
        terms = wide if before is None else before(wide)
        total = reduce_sum(terms, axes=axes, keepdims=keepdims)
        return narrowed(total if after is None else after(total), x)

    return expand


def _varied_type(
    x: TensorType, *, axes: Axes = None, keepdims: bool = False, correction: int = 0
) -> TensorType:
    return _reduced_type(x, axes=axes, keepdims=keepdims)


def _varied_samples() -> list[Sample]:
    plain = [s for s in _samples() if s.operands != (draw(),) and s.attrs.get("axes") != ()]
    return [*plain, sample(draw(4, 5), axes=(0,), correction=1)]


_ONE = {"scalar": "the spread of one number is 0, which has no digits to compare"}


def _compose(
    name: str,
    expand: Callable[..., Value],
    doc: str,
    dtypes: tuple[DType, ...] = FLOATS,
    rule: Callable[..., TensorType] = _reduced_type,
    samples: Callable[[], list[Sample]] = _samples,
    traits: tuple[Trait, ...] = (),
    lacks: Mapping[str, str] | None = None,
    refuses: Refuses | None = None,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        expand=expand,
        dtypes=dtypes,
        samples=samples,
        lacks=lacks,
        traits=(Trait.REDUCTION, *traits),
        refuses=refuses,
    )


reduce_mean = _compose(
    "reduce_mean",
    _mean,
    "Average over axes; NaN if empty.",
    FLOATS + COMPLEX,
    traits=(Trait.LINEAR,),
)
logsumexp = _compose("logsumexp", _logsumexp, "Take the logarithm of the sum of e^x over axes.")
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
norm_l1 = _compose("norm_l1", _summed(abs_, None), "Add up absolute values over axes.", REAL)
norm_l2 = _compose("norm_l2", _summed(square, sqrt), "Take the root of the sum of squares.")
sum_square = _compose("sum_square", _summed(square, None), "Add up squares over axes.", NUMERIC)
log_sum = _compose(
    "log_sum",
    _summed(None, log),
    "Take the logarithm of the sum over axes.",
    samples=lambda: _samples(0.5),
)


_NO_AXIS = {"scalar": "a scalar has no axis to search"}


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
    return _reduced_type(x, axes=(axis,), keepdims=keepdims)


def _median(x: Value, axis: int, keepdims: bool) -> Value:
    from fusewire.ops.sorting import sort  # its family may build on this one

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
    lacks=_NO_AXIS,
)


def _position_type(
    x: TensorType, *, axis: int, keepdims: bool = False, last: bool = False
) -> TensorType:
    shape = reduced_shape(x.shape, (axis_of(axis, x.rank),), keepdims)
    return TensorType(int64, shape)


def _position(find: Callable[..., Any]) -> Callable[..., Any]:
    def reference(x: Array, axis: int, keepdims: bool, last: bool) -> Any:
        terms = x.shape[axis]
        if terms == 0:
            return np.zeros(reduced_shape(x.shape, (axis % x.ndim,), keepdims), np.int64)
        found = find(np.flip(x, axis) if last else x, axis=axis, keepdims=keepdims)
        return terms - 1 - found if last else found

    return reference


def _position_samples() -> list[Sample]:
    return [
        sample(draw(3, 5), axis=1),
        sample(draw(2, 3, 4), axis=-2, keepdims=True),
        sample(given([[1, 2, 2], [0, 0, 0]]), axis=1, last=True),
        sample(given([[1, 2, 2], [0, 0, 0]]), axis=1),
        sample(draw(0, 3), axis=1),
        sample(draw(3, 0), axis=1),
        sample(given([1.0, np.nan, 3.0, np.nan]), axis=0, only=FLOATS),
    ]


def _declare_position(name: str, find: Callable[..., Any], doc: str) -> Op[Value]:
    return FAMILY.declare(
        name,
        _position_type,
        doc=doc,
        reference=_position(find),
        dtypes=(bool_, *REAL),
        traits=(Trait.REDUCTION, Trait.DISCONTINUOUS),
        samples=_position_samples,
        refuses=lambda: [bad("axis 1 is outside a tensor of rank 1", "[3]", axis=1)],
        flops=_terms,
        kind=Kind.FOLD,
        value_range=ranges.places,
        lacks=_NO_AXIS,
    )


argmax = _declare_position(
    "argmax",
    np.argmax,
    "Find the index of the largest along an axis, the first or the last; NaN is largest.",
)
argmin = _declare_position(
    "argmin",
    np.argmin,
    "Find the index of the smallest along an axis, the first or the last; NaN is smallest.",
)
