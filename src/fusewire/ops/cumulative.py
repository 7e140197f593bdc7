"""Running reductions along an axis: each element combines those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, NUMERIC, REAL, DType
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType, Type, tensor_of
from fusewire.ops import ranges
from fusewire.ops.declare import EXACT, LINEAR, Family, Op, Tolerance, Trait, ulps
from fusewire.ops.inference import axis_of
from fusewire.ops.reduction import limit
from fusewire.ops.sample import Refuses, Sample, bad, draw, sample

FAMILY = Family("cumulative")


def _running_type(
    x: TensorType, *, axis: int, exclusive: bool = False, reverse: bool = False
) -> TensorType:
    axis_of(axis, x.rank)
    return x


def _running(step: np.ufunc, start: Callable[[Array], Any]) -> Callable[..., Array]:
    def reference(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
        ordered = np.flip(x, axis) if reverse else x
        found = step.accumulate(ordered, axis, dtype=x.dtype)
        if exclusive:
            first = np.full_like(np.take(x, [], axis), start(x), shape=_one(x.shape, axis))
            found = np.concatenate([first, found], axis)
            found = np.take(found, np.arange(x.shape[axis]), axis)
        return np.flip(found, axis) if reverse else found

    return reference


def _one(shape: tuple[int, ...], axis: int) -> list[int]:
    return [1 if i == axis % len(shape) else dim for i, dim in enumerate(shape)]


def _terms(inputs: Sequence[Type | None], outputs: Sequence[Type], attrs: Mapping[str, Any]) -> Dim:
    # Counted as if every element were summed anew: its error is that of so many terms.
    found = tensor_of(outputs[0])
    length: Dim = found.shape[attrs["axis"]]
    return found.size * length


def _samples() -> list[Sample]:
    return [
        sample(draw(3, 5), axis=1),
        sample(draw(2, 4, 3), axis=-2, reverse=True),
        sample(draw(3, 5), axis=0, exclusive=True),
        sample(draw(3, 5), axis=1, exclusive=True, reverse=True),
        sample(draw(0, 3), axis=0, exclusive=True),
        sample(draw(0, 3), axis=1),
    ]


def _declare(
    name: str,
    step: np.ufunc,
    start: Callable[[Array], Any],
    doc: str,
    dtypes: tuple[DType, ...] = REAL,
    tolerance: Tolerance = EXACT,
    traits: tuple[Trait, ...] = (),
    value_range: ranges.ValueRange | None = None,
    refuses: Refuses | None = None,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        _running_type,
        doc=doc,
        reference=_running(step, start),
        dtypes=dtypes,
        tolerance=tolerance,
        traits=(*traits, Trait.READS_ONCE),
        value_range=value_range,
        samples=_samples,
        flops=_terms,
        lacks={"scalar": "a scalar has no axis to run along"},
        refuses=refuses,
    )


cumsum = _declare(
    "cumsum",
    np.add,
    lambda x: 0,
    "Add up all elements so far; exclusive: without the element itself.",
    NUMERIC,
    LINEAR,
    (Trait.LINEAR,),
    value_range=ranges.totals,
)
cumprod = _declare(
    "cumprod", np.multiply, lambda x: 1, "Multiply all elements so far.", NUMERIC, LINEAR
)
cummax = _declare(
    "cummax",
    np.maximum,
    lambda x: limit(x, False),
    "Take the largest element so far.",
    value_range=ranges.extremes,
)
cummin = _declare(
    "cummin",
    np.minimum,
    lambda x: limit(x, True),
    "Take the smallest element so far.",
    value_range=ranges.extremes,
)
cumlogsumexp = _declare(
    "cumlogsumexp",
    np.logaddexp,
    lambda x: -np.inf,
    "Take the logarithm of the sum of e^x so far.",
    FLOATS,
    ulps(16),
    refuses=lambda: [bad("axis 1 is outside a tensor of rank 0", "[]", axis=1)],
)
