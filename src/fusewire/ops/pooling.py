"""Pooling over windows of NC+spatial tensors. ``ceil`` keeps a last window that is cut short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, REAL, DType, dtype, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges
from fusewire.ops.declare import EXACT, LINEAR, NEEDS_ROOM, Family, Kind, Op, Trait
from fusewire.ops.elementwise import abs_, power, sqrt, square
from fusewire.ops.inference import require, require_dims
from fusewire.ops.movement import broadcast_to, reshape
from fusewire.ops.reduction import narrowed, reduce_max, widened
from fusewire.ops.requires import flat_places
from fusewire.ops.sample import Refuses, Sample, bad, draw, given, sample
from fusewire.ops.scatter import scatter_elements
from fusewire.ops.statistics import reduce_mean
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


def _pool_flops(inputs: Any, outputs: Any, attrs: Any) -> Dim:
    return size((*outputs[0].shape, *attrs["window"]))


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
    kind=Kind.WINDOW,
    not_folded=NEEDS_ROOM,
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
    kind=Kind.WINDOW,
    not_folded=NEEDS_ROOM,
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
    kind=Kind.WINDOW,
    not_folded=NEEDS_ROOM,
    samples=lambda: [*pool_samples()(), *pool_samples(count_padding=True)()],
    refuses=lambda: [
        bad("pooling needs a batch, channels and spatial axes, found", "[]", window=(3,)),
        bad("pooling needs a batch, channels and spatial axes, found", "[2, 2]", window=(3,)),
        bad(
            "strides, padding and dilations need 1 entries each",
            "[1, 2, 2]",
            window=(3,),
            strides=(1, 1),
        ),
        bad("a window over 0 axes needs as many spatial axes, found 1", "[1, 2, 2]", window=()),
        bad("a window of 3 does not fit into 1 padded by 0 and 0", "[1, 2, 1]", window=(3,)),
        bad("sizes of windows, strides and dilations must be at least 1", "[1, 2, 2]", window=(0,)),
        bad(
            "a window of 1 does not fit into 2 padded by -4 and 2",
            "[1, 1, 2]",
            window=(1,),
            strides=(2,),
            padding=((-4, 2),),
            ceil=True,
        ),
    ],
    lacks={"scalar": NEEDS_SPATIAL},
)


def _max_pool_with_indices_type(
    x: TensorType,
    *,
    window: Sizes,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
    ceil: bool = False,
    column_major: bool = False,
) -> tuple[TensorType, ...]:
    found = _pool_type(
        x, window=window, strides=strides, padding=padding, dilations=dilations, ceil=ceil
    )
    return found, found.with_dtype(int64)


def _max_pool_with_indices(
    x: Array, *, window: Sizes, column_major: bool, **sliding: Any
) -> tuple[Array, Array]:
    at = Window.of(window, **sliding)
    plane = int(np.prod(x.shape[2:], dtype=np.int64))
    # Where each cell lies in its plane, with -1 in the padding.
    inside: Array = np.arange(plane).reshape(x.shape[2:], order="F" if column_major else "C")
    inside = inside[None, None]
    best = np.full((*x.shape[:2], *at.places(x)), _lowest(x.dtype), x.dtype)
    found = np.full(best.shape, -1)
    for cell, index in zip(at.cells(x, 0), at.cells(inside, -1), strict=True):
        # Earlier cells win ties, and NaN wins over numbers.
        better = (found < 0) | (cell > best) | ((cell != cell) & (best == best))
        better &= index >= 0
        best, found = np.where(better, cell, best), np.where(better, index, found)
    offsets = np.arange(x.shape[0] * x.shape[1]) * plane
    offsets = offsets.reshape(*x.shape[:2], *[1] * len(window))
    return best, np.where(found < 0, found, found + offsets)


max_pool_with_indices = FAMILY.declare(
    "max_pool_with_indices",
    _max_pool_with_indices_type,
    doc="Take the largest of each window and its place in all of x, flattened (-1: only padding).",
    reference=_max_pool_with_indices,
    dtypes=REAL,
    traits=(Trait.REDUCTION, Trait.DISCONTINUOUS),
    tolerance=EXACT,
    flops=_pool_flops,
    kind=Kind.WINDOW,
    not_folded=NEEDS_ROOM,
    value_range=ranges.pooled_and_places,
    samples=lambda: [*pool_samples()(), *pool_samples(column_major=True)()],
    lacks={"scalar": NEEDS_SPATIAL},
)


def _max_unpool_type(x: TensorType, indices: TensorType, *, shape: Shape) -> TensorType:
    require(indices.dtype is int64, f"indices must be int64, found {indices.dtype}.")
    require(indices.rank == x.rank, f"x and indices need one shape, found {x} and {indices}.")
    for place, (left, right) in enumerate(zip(x.shape, indices.shape, strict=True)):
        require_dims(left, right, f"dims {place} of x and indices")
    return x.with_shape(shape)


def _max_unpool(x: Value, indices: Value, shape: Shape) -> Value:
    of = x.tensor.dtype.numpy
    empty = broadcast_to(constant(np.zeros((), of)), shape=(size(shape),))
    flat = (x.tensor.size,)
    places, updates = reshape(indices, shape=flat), reshape(x, shape=flat)
    filled = scatter_elements(empty, places, updates, axis=0, reduction="set")
    return reshape(filled, shape=shape)


max_unpool = FAMILY.declare(
    "max_unpool",
    _max_unpool_type,
    doc="Put elements at flat places in a tensor of zeros of this shape.",
    expand=_max_unpool,
    dtypes=REAL,
    traits=(Trait.MOVEMENT,),
    tolerance=EXACT,
    index_operands=("indices",),
    requires=(flat_places("indices"),),
    value_range=ranges.among_zeros,
    samples=lambda: [
        sample(draw(1, 1, 2, 2), given([[[[5, 7], [13, 15]]]], "int64"), shape=(1, 1, 4, 4)),
        sample(draw(0, 2, 3), draw(0, 2, 3, dtype_="int64"), shape=(0, 2, 6)),
    ],
    refuses=lambda: [
        bad("indices must be int64, found bool", "[0, 2, 3]", "bool[0, 2, 3]", shape=(0, 2, 6)),
        bad(
            "x and indices need one shape, found float32[] and int64[0",
            "[]",
            "int64[0, 2, 3]",
            shape=(0, 2, 6),
        ),
        bad(
            "dims 0 of x and indices must be equal, found 1 and 0",
            "[1, 2, 3]",
            "int64[0, 2, 3]",
            shape=(0, 2, 6),
        ),
    ],
    lacks={"scalar": NEEDS_SPATIAL, "broadcast": "indices have the shape of x"},
)


def _lp_pool_type(
    x: TensorType,
    *,
    p: float = 2.0,
    window: Sizes,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
    ceil: bool = False,
) -> TensorType:
    return _pool_type(
        x, window=window, strides=strides, padding=padding, dilations=dilations, ceil=ceil
    )


def _lp_pool(x: Value, p: float, **sliding: Any) -> Value:
    wide = abs_(widened(x))
    if p == 1.0:
        return narrowed(sum_pool(wide, **sliding), x)
    if p == 2.0:
        return narrowed(sqrt(sum_pool(square(wide), **sliding)), x)
    return narrowed(power(sum_pool(power(wide, p), **sliding), 1.0 / p), x)


lp_pool = FAMILY.declare(
    "lp_pool",
    _lp_pool_type,
    doc="Take the p-norm of each window.",
    expand=_lp_pool,
    dtypes=FLOATS,
    traits=(Trait.REDUCTION,),
    samples=lambda: [
        *pool_samples()(),
        *(sample(draw(1, 2, 5), window=(2,), p=p) for p in (1.0, 3.0)),
    ],
    lacks={"scalar": NEEDS_SPATIAL},
)


def _global_type(x: TensorType) -> TensorType:
    require(x.rank > 2, f"{NEEDS_SPATIAL}, found rank {x.rank}.")
    return x.with_shape(x.shape[:2] + (1,) * (x.rank - 2))


def _global(
    name: str,
    doc: str,
    reduce: Op[Value],
    dtypes: tuple[DType, ...],
    refuses: Refuses | None = None,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        _global_type,
        doc=doc,
        expand=lambda x: reduce(x, axes=tuple(range(2, x.tensor.rank)), keepdims=True),
        dtypes=dtypes,
        traits=(Trait.REDUCTION,),
        tolerance=reduce.tolerance,
        samples=lambda: [sample(draw(2, 3, 4, 2)), sample(draw(1, 2, 5)), sample(draw(0, 2, 3))],
        lacks={"scalar": NEEDS_SPATIAL},
        refuses=refuses,
    )


global_average_pool = _global(
    "global_average_pool",
    "Average over all spatial axes.",
    reduce_mean,
    FLOATS,
    refuses=lambda: [
        bad("pooling needs a batch, channels and spatial axes, found", "[]"),
        bad("pooling needs a batch, channels and spatial axes, found", "[2, 5]"),
    ],
)
global_max_pool = _global(
    "global_max_pool", "Take the largest over all spatial axes.", reduce_max, REAL
)
