"""Reductions over axes, and positions of extremes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, NUMERIC, REAL, DType, bool_, float32, int64
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges, symbolic
from fusewire.ops.conversion import cast
from fusewire.ops.declare import EXACT, LINEAR, Family, Kind, Op, Tolerance, Trait
from fusewire.ops.elementwise import (
    abs_,
    add,
    exp,
    log,
    sqrt,
    square,
    subtract,
)
from fusewire.ops.inference import axes_of, axis_of, reduced_shape
from fusewire.ops.logic import isfinite, where
from fusewire.ops.movement import squeeze
from fusewire.ops.sample import Refuses, Sample, bad, draw, given, sample

FAMILY = Family("reduction")

Axes = tuple[int, ...] | None


def reduced_type(x: TensorType, *, axes: Axes = None, keepdims: bool = False) -> TensorType:
    return x.with_shape(reduced_shape(x.shape, axes_of(axes, x.rank), keepdims))


def reduced_samples(low: float = -2.0, high: float = 2.0) -> list[Sample]:
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
    return [*reduced_samples(), sample(given(rows), axes=(1,), only=FLOATS)]


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
    samples: Callable[[], list[Sample]] = reduced_samples,
    **facts: Any,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        reduced_type,
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


def _logsumexp(x: Value, axes: Axes, keepdims: bool) -> Value:
    wide = widened(x)
    largest = reduce_max(wide, axes=axes, keepdims=True)
    # What is infinite must not be subtracted: inf - inf has no value.
    shift = where(isfinite(largest), largest, 0.0)
    found = add(log(reduce_sum(exp(subtract(wide, shift)), axes=axes, keepdims=True)), shift)
    found = found if keepdims else squeeze(found, axes=axes_of(axes, x.tensor.rank))
    return narrowed(found, x)


def _summed(before: Op[Value] | None, after: Op[Value] | None) -> Callable[..., Value]:
    def expand(x: Value, axes: Axes, keepdims: bool) -> Value:
        wide = widened(x)
        terms = wide if before is None else before(wide)
        total = reduce_sum(terms, axes=axes, keepdims=keepdims)
        return narrowed(total if after is None else after(total), x)

    return expand


def compose(
    name: str,
    expand: Callable[..., Value],
    doc: str,
    dtypes: tuple[DType, ...] = FLOATS,
    rule: Callable[..., TensorType] = reduced_type,
    samples: Callable[[], list[Sample]] = reduced_samples,
    traits: tuple[Trait, ...] = (),
    lacks: Mapping[str, str] | None = None,
    refuses: Refuses | None = None,
    family: Family = FAMILY,
    steady: tuple[str, ...] = (),
) -> Op[Value]:
    """Declare an op that is made of reductions."""
    return family.declare(
        name,
        rule,
        doc=doc,
        expand=expand,
        dtypes=dtypes,
        samples=samples,
        lacks=lacks,
        traits=(Trait.REDUCTION, *traits),
        steady=steady,
        refuses=refuses,
    )


logsumexp = compose("logsumexp", _logsumexp, "Take the logarithm of the sum of e^x over axes.")
norm_l1 = compose("norm_l1", _summed(abs_, None), "Add up absolute values over axes.", REAL)
norm_l2 = compose("norm_l2", _summed(square, sqrt), "Take the root of the sum of squares.")
sum_square = compose("sum_square", _summed(square, None), "Add up squares over axes.", NUMERIC)
log_sum = compose(
    "log_sum",
    _summed(None, log),
    "Take the logarithm of the sum over axes.",
    samples=lambda: reduced_samples(0.5),
)


NO_AXIS = {"scalar": "a scalar has no axis to search"}


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
        value_range=ranges.place_of_one,
        lacks=NO_AXIS,
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
