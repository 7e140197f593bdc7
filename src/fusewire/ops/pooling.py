"""Pooling over windows of NC+spatial tensors. ``ceil`` keeps a last window that is cut short."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, REAL, DType, dtype
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType, Type, tensor_of
from fusewire.ops.declare import EXACT, LINEAR, Family, Trait
from fusewire.ops.inference import require
from fusewire.ops.sample import Sample, draw, sample
from fusewire.ops.window import Padding, Sizes, Window

FAMILY = Family("pooling")

NEEDS_SPATIAL = "pooling needs a batch, channels and spatial axes"


def _pool_type(
    x: TensorType,
    *,
    window: Sizes,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
    ceil: bool = False,
) -> TensorType:
    require(x.rank > 2, f"{NEEDS_SPATIAL}, found rank {x.rank}.")
    sliding = Window.of(window, strides, padding, dilations, ceil)
    return x.with_shape((*x.shape[:2], *sliding.output(x.shape[2:])))


def _pool_flops(
    inputs: Sequence[Type | None], outputs: Sequence[Type], attrs: Mapping[str, Any]
) -> Dim:
    return tensor_of(outputs[0]).size * size(attrs["window"])


def pool_samples(**attrs: Any) -> Callable[[], Sequence[Sample]]:
    """Samples of pooling in one to three dimensions."""
    one, two = ((1, 1), (1, 1)), ((0, 0), (1, 2))
    return lambda: [
        sample(draw(1, 2, 5, 6), window=(2, 3), **attrs),
        sample(draw(2, 1, 7), window=(3,), strides=(2,), padding=((1, 0),), **attrs),
        sample(draw(1, 1, 5, 5), window=(3, 3), strides=(2, 3), padding=one, ceil=True, **attrs),
        sample(draw(1, 1, 5, 6), window=(2, 3), padding=two, dilations=(2, 2), **attrs),
        sample(draw(1, 1, 6), window=(3,), strides=(4,), ceil=True, **attrs),
        sample(draw(1, 1, 2), window=(1,), strides=(2,), padding=((0, 2),), ceil=True, **attrs),
        sample(draw(1, 1, 3, 4, 3), window=(2, 2, 2), strides=(1, 2, 2), **attrs),
        sample(draw(2, 0, 4, 4), window=(2, 2), **attrs),
        sample(draw(1, 2, 2), window=(3,), **attrs),
    ]


def _lowest(of: np.dtype[Any]) -> float:
    found: DType = dtype(of)
    return -np.inf if found.is_float else found.range[0]


def _max_pool(x: Array, *, window: Sizes, **sliding: Any) -> Array:
    at = Window.of(window, **sliding)
    best = np.full((*x.shape[:2], *at.places(x)), _lowest(x.dtype), x.dtype)
    for cell in at.cells(x, _lowest(x.dtype)):
        np.maximum(best, cell, out=best)
    return best


max_pool = FAMILY.declare(
    "max_pool",
    _pool_type,
    doc="Take the largest element of each window; padding does not take part.",
    reference=_max_pool,
    dtypes=REAL,
    traits=(Trait.REDUCTION,),
    tolerance=EXACT,
    flops=_pool_flops,
    samples=pool_samples(),
    lacks={"scalar": NEEDS_SPATIAL},
)


def _sum_pool(x: Array, *, window: Sizes, **sliding: Any) -> Array:
    at = Window.of(window, **sliding)
    total = np.zeros((*x.shape[:2], *at.places(x)), x.dtype)
    for cell in at.cells(x, 0):
        total += cell
    return total


sum_pool = FAMILY.declare(
    "sum_pool",
    _pool_type,
    doc="Add up the elements of each window.",
    reference=_sum_pool,
    dtypes=FLOATS,
    traits=(Trait.REDUCTION, Trait.LINEAR),
    tolerance=LINEAR,
    flops=_pool_flops,
    samples=pool_samples(),
    lacks={"scalar": NEEDS_SPATIAL},
)


def _average_pool_type(
    x: TensorType,
    *,
    window: Sizes,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
    ceil: bool = False,
    count_padding: bool = False,
) -> TensorType:
    return _pool_type(
        x, window=window, strides=strides, padding=padding, dilations=dilations, ceil=ceil
    )


def _average_pool(x: Array, *, window: Sizes, count_padding: bool, **sliding: Any) -> Array:
    at = Window.of(window, **sliding)
    counts = np.ones((), x.dtype)
    for axis, places in enumerate(at.places(x)):
        (low, high), dim = at.padding[axis], x.shape[axis + 2]
        offsets = np.arange(window[axis]) * at.dilations[axis]
        cells = np.arange(places)[:, None] * at.strides[axis] - low + offsets
        # What a cut last window lacks beyond the padding never counts.
        first, last = (-low, dim + high) if count_padding else (0, dim)
        counted = ((cells >= first) & (cells < last)).sum(axis=1)
        counts = counts[..., None] * counted.astype(x.dtype)
    return np.asarray(_sum_pool(x, window=window, **sliding) / np.maximum(counts, 1))


average_pool = FAMILY.declare(
    "average_pool",
    _average_pool_type,
    doc="Average each window over its elements, and over its padding if count_padding.",
    reference=_average_pool,
    dtypes=FLOATS,
    traits=(Trait.REDUCTION, Trait.LINEAR),
    tolerance=LINEAR,
    flops=_pool_flops,
    samples=lambda: [*pool_samples()(), *pool_samples(count_padding=True)()],
    lacks={"scalar": NEEDS_SPATIAL},
)
