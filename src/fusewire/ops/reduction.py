"""Reductions over axes, and positions of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, NUMERIC, REAL, DType, bool_, float32, int64
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.declare import EXACT, LINEAR, SCALED, Family, Op, Tolerance, Trait
from fusewire.ops.elementwise import divide
from fusewire.ops.inference import axes_of, axis_of, reduced_shape
from fusewire.ops.sample import Sample, draw, given, sample

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


def _terms(inputs: Any, outputs: Any, attrs: Any) -> Dim:
    return size(inputs[0].shape)


def _limit(x: Array, largest: bool) -> Any:
    if x.dtype.kind == "b":
        return largest
    if x.dtype.kind == "f":
        return np.inf if largest else -np.inf
    info = np.iinfo(x.dtype)
    return info.max if largest else info.min


def _reduce(
    name: str, reference: Callable[..., Any], doc: str, dtypes: tuple[DType, ...],
    tolerance: Tolerance = EXACT, traits: tuple[Trait, ...] = (),
) -> Op[Value]:  # fmt: skip
    return FAMILY.declare(
        name, _reduced_type, doc=doc, reference=reference, dtypes=dtypes, tolerance=tolerance,
        traits=(Trait.REDUCTION, *traits), samples=_samples, flops=_terms,
    )  # fmt: skip


reduce_sum = _reduce(
    "reduce_sum", lambda x, axes, keepdims: np.sum(x, axes, x.dtype, keepdims=keepdims),
    "Add up over axes.", NUMERIC, LINEAR, (Trait.LINEAR,),
)  # fmt: skip
reduce_prod = _reduce(
    "reduce_prod", lambda x, axes, keepdims: np.prod(x, axes, x.dtype, keepdims=keepdims),
    "Multiply over axes.", NUMERIC, SCALED,
)  # fmt: skip
reduce_max = _reduce(
    "reduce_max",
    lambda x, axes, keepdims: np.max(x, axes, keepdims=keepdims, initial=_limit(x, False)),
    "Take the largest over axes; NaN if any is, the smallest value of the dtype if there is none.",
    (bool_, *REAL),
)  # fmt: skip
reduce_min = _reduce(
    "reduce_min",
    lambda x, axes, keepdims: np.min(x, axes, keepdims=keepdims, initial=_limit(x, True)),
    "Take the smallest over axes; NaN if any is, the largest value of the dtype if there is none.",
    (bool_, *REAL),
)  # fmt: skip


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


reduce_mean = FAMILY.declare(
    "reduce_mean", _reduced_type, doc="Average over axes; NaN where there is nothing.",
    expand=_mean, dtypes=FLOATS, traits=(Trait.REDUCTION, Trait.LINEAR), samples=_samples,
)  # fmt: skip


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
        name, _position_type, doc=doc, reference=_position(find), dtypes=(bool_, *REAL),
        traits=(Trait.REDUCTION, Trait.DISCONTINUOUS), samples=_position_samples, flops=_terms,
        lacks={"scalar": "a scalar has no axis to search"},
    )  # fmt: skip


argmax = _declare_position(
    "argmax", np.argmax,
    "Find where the largest is along an axis: the first such or the last; NaN is largest.",
)  # fmt: skip
argmin = _declare_position(
    "argmin", np.argmin,
    "Find where the smallest is along an axis: the first such or the last; NaN is smallest.",
)  # fmt: skip
