"""Slice, pad, split, flip and roll. Any dtype, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.ir.dims import Dim, Shape, apply, ceildiv, dim_max, dim_min
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import limits, ranges
from fusewire.ops.declare import EXACT, CostClass, Family, Kind, Trait
from fusewire.ops.inference import axes_of, axis_of, require, require_dims, same_dtype, within
from fusewire.ops.movement import ANY, concat, movement
from fusewire.ops.sample import bad, draw, given, sample

FAMILY = Family("slicing")
Padding = tuple[tuple[Dim, Dim], ...]
PAD_MODES = ("constant", "reflect", "edge", "wrap", "symmetric")


def slice_size(start: Dim, limit: Dim, stride: int) -> Dim:
    """Count the elements of a slice."""
    return ceildiv(limit - start, stride) if stride > 0 else ceildiv(start - limit, -stride)


def _slice_type(
    x: TensorType, *, starts: Shape, limits: Shape, strides: tuple[int, ...]
) -> TensorType:
    """Forwards 0 <= start <= limit <= dim; backwards -1 <= limit <= start < dim."""
    lengths = (len(starts), len(limits), len(strides))
    require(lengths == (x.rank,) * 3, f"{x.rank} of each needed, found {lengths}.")
    shape: list[Dim] = []
    for dim, start, limit, stride in zip(x.shape, starts, limits, strides, strict=True):
        require(stride != 0, "a stride must not be 0.")
        chain = (0, start, limit, dim) if stride > 0 else (-1, limit, start, dim - 1)
        holds = [within(a, b) for a, b in itertools.pairwise(chain)]
        found = f"{start}:{limit}:{stride} of {dim}"
        require(False not in holds, f"slice {found} leaves the axis; use normalize_slice.")
        shape.append(slice_size(start, limit, stride))
    return x.with_shape(tuple(shape))


def _slice(x: Array, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Array:
    parts: list[Any] = []
    for start, limit, stride in zip(starts, limits, strides, strict=True):
        if slice_size(start, limit, stride) == 0:
            start, limit = 0, 0
        parts.append(np.s_[start : None if limit < 0 else limit : stride])
    return x[(*parts, ...)]


slice_ = movement(
    FAMILY,
    "slice",
    _slice_type,
    doc="Take every stride-th element from start to limit (exclusive), for each axis.",
    reference=_slice,
    kind=Kind.FREE,
    samples=lambda: [
        sample(draw(5, 7), starts=(1, 0), limits=(4, 7), strides=(1, 3)),
        sample(draw(5, 7), starts=(4, 6), limits=(-1, 1), strides=(-1, -2)),
        sample(draw(), starts=(), limits=(), strides=()),
        sample(draw(0, 4), starts=(-1, 4), limits=(-1, 4), strides=(-1, 1)),
    ],
    refuses=lambda: [
        bad("1 of each needed, found (0, 0, 0)", "[1]", starts=(), limits=(), strides=()),
        bad("a stride must not be 0", "[5, 7]", starts=(1, 0), limits=(4, 7), strides=(0, 3)),
        bad(
            "slice 1:4:1 of 1 leaves the axis; use normalize_slice",
            "[1, 7]",
            starts=(1, 0),
            limits=(4, 7),
            strides=(1, 3),
        ),
        bad(
            "slice 0:-1:-1 of 0 leaves the axis; use normalize_slice",
            "[0, 4]",
            starts=(0, 4),
            limits=(-1, 4),
            strides=(-1, 1),
        ),
        bad(
            "slice 4:-2:-1 of 5 leaves the axis; use normalize_slice",
            "[5, 7]",
            starts=(4, 6),
            limits=(-2, 1),
            strides=(-1, -2),
        ),
    ],
)


def normalize_slice(index: slice, dim: Dim) -> tuple[Dim, Dim, int]:
    """Bring a Python slice of an axis to the start, limit and stride of ``slice``."""
    stride = 1 if index.step is None else index.step
    require(isinstance(stride, int) and stride != 0, f"a stride must be an int, found {stride}.")
    low, high = (0, dim) if stride > 0 else (-1, dim - 1)

    def bound(given: Dim | None, default: Dim) -> Dim:
        if given is None:
            return default
        # 1 where it is negative, which only the run may tell.
        negative = -dim_min(0, dim_max(-1, given))
        return dim_min(dim_max(given + dim * negative, low), high)

    if stride > 0:
        start, limit = bound(index.start, low), bound(index.stop, high)
        return start, limit if index.stop is None else dim_max(start, limit), stride
    start, limit = bound(index.start, high), bound(index.stop, low)
    return start, limit if index.stop is None else dim_min(start, limit), stride


def slice_axis(x: Value, axis: int, index: slice) -> Value:
    """Slice one axis as Python would."""
    shape = x.tensor.shape
    bounds: list[tuple[Dim, Dim, int]] = [(0, dim, 1) for dim in shape]
    bounds[axis] = normalize_slice(index, shape[axis])
    starts, limits, strides = zip(*bounds, strict=True)
    return slice_(x, starts=starts, limits=limits, strides=strides)


def _pad_type(
    x: TensorType, value: TensorType | None = None, *, padding: Padding, mode: str = "constant"
) -> TensorType:
    require(mode in PAD_MODES, f"mode must be one of {', '.join(PAD_MODES)}, found {mode!r}.")
    require(len(padding) == x.rank, f"one (low, high) an axis needed, found {padding}.")
    if value is not None:
        same_dtype(x, value)
        require(value.rank == 0, f"the value must be a scalar, found {value}.")
    shape: list[Dim] = []
    for dim, (low, high) in zip(x.shape, padding, strict=True):
        total = dim + low + high
        require(within(0, total), f"padding ({low}, {high}) leaves less than nothing of {dim}.")
        left = dim + dim_min(low, 0) + dim_min(high, 0)
        grows = mode != "constant" and within(left, 0) and within(1, total)
        found = "an axis of size 0" if dim == 0 else f"that ({low}, {high}) cuts all {dim} off"
        require(not grows, f"mode {mode} needs elements to repeat, found {found}.")
        shape.append(total)
    return x.with_shape(tuple(shape))


def pad_positions(count: int, low: int, high: int, mode: str) -> Array:
    """Find where each element of a padded axis comes from."""
    at = np.arange(-low, count + high)
    if mode == "edge":
        return at.clip(0, max(count - 1, 0))
    if mode == "wrap":
        return at % max(count, 1)
    period = 2 * count if mode == "symmetric" else max(2 * count - 2, 1)
    at = at % max(period, 1)
    return np.minimum(at, period - at - (mode == "symmetric"))


def kept_part(count: int, low: int, high: int) -> tuple[slice, int, int]:
    """Find what padding keeps of an axis, and what it adds before and after that.

    A side that cuts more than there is cuts off what the other side adds.
    """
    total = count + low + high
    if total < 0:
        raise ValueError(f"padding ({low}, {high}) leaves less than nothing of {count}")
    first = min(max(-low, 0), count)
    last = min(max(count + high, first), count)
    before = min(max(first + low, 0), total)
    return np.s_[first:last], before, total - before - (last - first)


def _repeated(x: Array, grown: list[tuple[int, int]], shape: list[int], mode: str) -> Array:
    """Pad by elements of the array itself."""
    if any(wanted and not n for n, wanted in zip(x.shape, shape, strict=True)):
        raise ValueError(f"mode {mode} needs elements to repeat, but all are cut off")
    if 0 in shape:
        return np.empty(shape, x.dtype)
    if (meter := limits.meter()) is not None:
        # Places, and what is computed on the way to them; they may outweigh a row of bytes.
        meter.need(4 * 8 * max(shape, default=0), where=" for the places that pad repeats")
    for axis, (before, after) in enumerate(grown):
        x = np.take(x, pad_positions(x.shape[axis], before, after, mode), axis)
    return x


def pad_array(x: Array, value: Array | None, padding: Any, mode: str) -> Array:
    """Pad in NumPy, without allocating what is cut off."""
    # A negative side is cut off first; what is left is what modes repeat.
    sides = [kept_part(n, low, high) for n, (low, high) in zip(x.shape, padding, strict=True)]
    parts: list[Any] = [kept for kept, _, _ in sides]
    x = x[(*parts, ...)]
    grown = [(before, after) for _, before, after in sides]
    shape = [before + n + after for n, (before, after) in zip(x.shape, grown, strict=True)]
    if mode != "constant":
        return _repeated(x, grown, shape, mode)
    if value is None:
        value = np.array("" if x.dtype == object else 0, x.dtype)
    out = np.full(shape, value, x.dtype)
    out[tuple(np.s_[start : start + n] for n, (start, _) in zip(x.shape, grown, strict=True))] = x
    return out


pad = movement(
    FAMILY,
    "pad",
    _pad_type,
    doc="Add elements before and after each axis; negative widths cut elements off.",
    reference=pad_array,
    kind=Kind.MAP,
    cost=CostClass.LIGHT,
    value_range=ranges.padded,
    samples=lambda: [
        sample(draw(2, 3), given(1), padding=((1, 0), (2, -1))),
        sample(draw(), None, padding=()),
        sample(draw(0, 2), None, padding=((1, 1), (0, 0))),
        *(sample(draw(3, 4), None, padding=((2, 1), (-1, 3)), mode=m) for m in PAD_MODES[1:]),
        sample(draw(1, 2), None, padding=((2, 3), (5, 4)), mode="reflect"),
    ],
    refuses=lambda: [
        bad(
            "mode edge needs elements to repeat, found an axis of size 0",
            "[0, 4]",
            padding=((2, 1), (-1, 3)),
            mode="edge",
        ),
        bad("mode must be one of constant, reflect, edge, wrap", "[]", padding=(), mode="odd"),
        bad("one (low, high) an axis needed, found ()", "[1]", padding=()),
        bad(
            "operands must have one dtype, found bool and float32",
            "bool[2, 3]",
            "[]",
            padding=((1, 0), (2, -1)),
        ),
        bad(
            "the value must be a scalar, found float32[1]",
            "[2, 3]",
            "[1]",
            padding=((1, 0), (2, -1)),
        ),
        bad("padding (-2, 1) leaves less than nothing of 0", "[0, 2]", padding=((-2, 1), (0, 0))),
    ],
)


def _split_type(x: TensorType, *, axis: int, sizes: Shape) -> tuple[TensorType, ...]:
    axis = axis_of(axis, x.rank)
    require_dims(sum(sizes), x.shape[axis], "the sum of the sizes and the axis")
    return tuple(x.with_shape((*x.shape[:axis], n, *x.shape[axis + 1 :])) for n in sizes)


def _split(x: Value, axis: int, sizes: Shape) -> tuple[Value, ...]:
    shape = x.tensor.shape
    axis = axis_of(axis, len(shape))
    limits = [*itertools.accumulate(sizes)]
    ones = (1,) * len(shape)

    def part(start: Dim, limit: Dim) -> Value:
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        ends = tuple(limit if i == axis else dim for i, dim in enumerate(shape))
        return slice_(x, starts=starts, limits=ends, strides=ones)

    return tuple(part(a, b) for a, b in zip([0, *limits], limits, strict=False))


split = FAMILY.declare(
    "split",
    _split_type,
    doc="Cut an axis into parts of these sizes.",
    expand=_split,
    dtypes=ANY,
    traits=(Trait.MOVEMENT,),
    tolerance=EXACT,
    lacks={"scalar": "a scalar has no axis to cut"},
    samples=lambda: [
        sample(draw(2, 6), axis=-1, sizes=(1, 3, 2)),
        sample(draw(4, 2), axis=0, sizes=(4, 0)),
        sample(draw(0, 4), axis=1, sizes=(2, 2)),
    ],
    refuses=lambda: [
        bad(
            "the sum of the sizes and the axis must be equal, found 4", "[2]", axis=0, sizes=(4, 0)
        ),
        bad("axis 0 is outside a tensor of rank 0", "[]", axis=0, sizes=(4, 0)),
    ],
)


def _flip_type(x: TensorType, *, axes: tuple[int, ...] | None = None) -> TensorType:
    axes_of(axes, x.rank)
    return x


def _flip(x: Value, axes: tuple[int, ...] | None) -> Value:
    shape = x.tensor.shape
    turned = axes_of(axes, len(shape))
    return slice_(
        x,
        starts=tuple(dim - 1 if i in turned else 0 for i, dim in enumerate(shape)),
        limits=tuple(-1 if i in turned else dim for i, dim in enumerate(shape)),
        strides=tuple(-1 if i in turned else 1 for i in range(len(shape))),
    )


flip = movement(
    FAMILY,
    "flip",
    _flip_type,
    doc="Reverse the order along axes.",
    expand=_flip,
    samples=lambda: [
        sample(draw(2, 3), axes=(-1,)),
        sample(draw()),
        sample(draw(0, 3)),
    ],
    refuses=lambda: [bad("axis 0 is outside a tensor of rank 0", "[]", axes=(0,))],
)


def _roll_type(x: TensorType, *, shifts: tuple[int, ...], axes: tuple[int, ...]) -> TensorType:
    axes_of(axes, x.rank)
    require(len(shifts) == len(axes), f"one shift an axis needed, found {shifts} for {axes}.")
    return x


def _roll(x: Value, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Value:
    for shift, axis in zip(shifts, axes, strict=True):
        dim = x.tensor.shape[axis]
        # How many elements pass the end; kept within the axis where the run finds it empty.
        passed = shift - apply("floordiv", shift, dim) * dim
        passed = dim_max(0, dim_min(passed, dim))
        axis = axis_of(axis, x.tensor.rank)
        front, back = split(x, axis=axis, sizes=(dim - passed, passed))
        x = concat(back, front, axis=axis)
    return x


roll = movement(
    FAMILY,
    "roll",
    _roll_type,
    doc="Shift along axes, wrapping around.",
    expand=_roll,
    samples=lambda: [
        sample(draw(4, 5), shifts=(1, -7), axes=(0, -1)),
        sample(draw(), shifts=(), axes=()),
        sample(draw(0, 3), shifts=(1,), axes=(0,)),
    ],
    refuses=lambda: [
        bad("axis 0 is outside a tensor of rank 0", "[]", shifts=(), axes=(0,)),
        bad("one shift an axis needed, found (0,) for ()", "[]", shifts=(0,), axes=()),
    ],
)
