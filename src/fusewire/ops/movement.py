"""Moving elements without computing: shape, order, slices, borders. Any dtype, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import STORED, string
from fusewire.ir.dims import Dim, Shape, ceildiv, dim_max, dim_min, floordiv, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import EXACT, Family, Op, Trait
from fusewire.ops.inference import (
    axes_of,
    axis_of,
    require,
    require_dims,
    same_dim,
    same_dtype,
    within,
)
from fusewire.ops.sample import Sample, draw, given, sample

FAMILY = Family("movement")
ANY = (*STORED, string)
Padding = tuple[tuple[Dim, Dim], ...]
PAD_MODES = ("constant", "reflect", "edge", "wrap", "symmetric")


def movement(name: str, rule: Any, **fields: Any) -> Op[Value]:
    """Declare an op of this family: nothing is computed, so nothing may differ."""
    return FAMILY.declare(
        name, rule, traits=(Trait.MOVEMENT,), tolerance=EXACT, flops=0, dtypes=ANY, **fields
    )


def resolve_shape(shape: Sequence[Dim], total: Dim) -> Shape:
    """Replace the one -1 of a shape by the size that is left of ``total`` elements."""
    unknown = [axis for axis, dim in enumerate(shape) if dim == -1]
    if not unknown:
        return tuple(shape)
    require(len(unknown) == 1, f"a shape may have one -1, found {tuple(shape)}.")
    rest = size([dim for dim in shape if dim != -1])
    require(rest != 0, f"-1 in {tuple(shape)} could be any size: another dim is 0.")
    if isinstance(rest, int) and isinstance(total, int):
        require(total % rest == 0, f"{total} elements do not fill the shape {tuple(shape)}.")
    return tuple(floordiv(total, rest) if dim == -1 else dim for dim in shape)


def _reshape_type(x: TensorType, *, shape: Shape) -> TensorType:
    require(-1 not in shape, f"a shape in a graph has no -1, found {shape}: use resolve_shape.")
    require_dims(x.size, size(shape), f"sizes of [{', '.join(map(str, shape))}] and the operand")
    return x.with_shape(shape)


reshape = movement(
    "reshape",
    _reshape_type,
    doc="Give the elements, in row-major order, another shape.",
    reference=lambda x, shape: np.reshape(x, shape),
    samples=lambda: [
        sample(draw(2, 6), shape=(3, 4)),
        sample(draw(), shape=(1, 1)),
        sample(draw(0, 3), shape=(2, 0)),
        sample(draw(1, 1), shape=()),
    ],
)


def _transpose_type(x: TensorType, *, perm: tuple[int, ...]) -> TensorType:
    right = sorted(perm) == list(range(x.rank))
    require(right, f"perm must name each of {x.rank} axes once, found {perm}.")
    return x.with_shape(tuple(x.shape[axis] for axis in perm))


transpose = movement(
    "transpose",
    _transpose_type,
    doc="Reorder the axes: output axis i is operand axis perm[i].",
    reference=lambda x, perm: np.transpose(x, perm),
    samples=lambda: [
        sample(draw(2, 3, 4), perm=(2, 0, 1)),
        sample(draw(), perm=()),
        sample(draw(0, 3), perm=(1, 0)),
    ],
)


def _broadcast_to_type(x: TensorType, *, shape: Shape) -> TensorType:
    listed = f"[{', '.join(map(str, shape))}]"
    require(x.rank <= len(shape), f"rank {x.rank} does not broadcast to {listed}.")
    for dim, wanted in zip(x.shape[::-1], shape[::-1], strict=False):
        if dim != 1:
            require_dims(dim, wanted, f"to broadcast to {listed}, a dim and its target")
    return x.with_shape(shape)


broadcast_to = movement(
    "broadcast_to",
    _broadcast_to_type,
    doc="Repeat along axes of size 1, and along new leading axes.",
    reference=lambda x, shape: np.broadcast_to(x, shape),
    samples=lambda: [
        sample(draw(3, 1), shape=(2, 3, 4)),
        sample(draw(), shape=(2, 2)),
        sample(draw(1, 3), shape=(0, 3)),
        sample(draw(0, 1), shape=(0, 3)),
        sample(draw(2), shape=(2,)),
    ],
)


def _concat_type(*xs: TensorType, axis: int) -> TensorType:
    require(len(xs) > 0, "at least one operand is needed, found none.")
    shape = list(xs[0].shape)
    axis = axis_of(axis, len(shape))
    for x in xs[1:]:
        require(x.rank == len(shape), f"ranks must be equal, found {len(shape)} and {x.rank}.")
        for i, dim in enumerate(x.shape):
            shape[i] = shape[i] + dim if i == axis else same_dim(shape[i], dim, f"dims {i}")
    return TensorType(same_dtype(*xs), tuple(shape))


concat = movement(
    "concat",
    _concat_type,
    doc="Join along an axis.",
    reference=lambda *xs, axis: np.concatenate(xs, axis),
    lacks={"scalar": "a scalar has no axis to join along"},
    samples=lambda: [
        sample(draw(2, 3), draw(2, 1), draw(2, 3), axis=1),
        sample(draw(2, 3), axis=-1),
        sample(draw(0, 3), draw(2, 3), axis=-2),
    ],
)


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
    parts = []
    for start, limit, stride in zip(starts, limits, strides, strict=True):
        if slice_size(start, limit, stride) == 0:
            start, limit = 0, 0
        parts.append(np.s_[start : None if limit < 0 else limit : stride])
    return x[(*parts, ...)]


slice_ = movement(
    "slice",
    _slice_type,
    doc="Take every stride-th element from start up to, not including, limit; one of each an axis.",
    reference=_slice,
    samples=lambda: [
        sample(draw(5, 7), starts=(1, 0), limits=(4, 7), strides=(1, 3)),
        sample(draw(5, 7), starts=(4, 6), limits=(-1, 1), strides=(-1, -2)),
        sample(draw(), starts=(), limits=(), strides=()),
        sample(draw(0, 4), starts=(-1, 4), limits=(-1, 4), strides=(-1, 1)),
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
        grows = mode != "constant" and dim == 0 and within(1, total)
        require(not grows, f"mode {mode} needs elements to repeat, found an axis of size 0.")
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


def _pad(x: Array, value: Array | None, padding: Any, mode: str) -> Array:
    # A negative side is cut off first; what is left is what modes repeat.
    sides = zip(x.shape, padding, strict=True)
    x = x[(*(np.s_[max(-low, 0) : n + min(high, 0)] for n, (low, high) in sides), ...)]
    grown = [(max(low, 0), max(high, 0)) for low, high in padding]
    if mode != "constant":
        for axis, (low, high) in enumerate(grown):
            x = np.take(x, pad_positions(x.shape[axis], low, high, mode), axis)
        return x
    if value is None:
        value = np.array("" if x.dtype == object else 0, x.dtype)
    shape = [low + n + high for n, (low, high) in zip(x.shape, grown, strict=True)]
    out = np.full(shape, value, x.dtype)
    out[tuple(np.s_[low : low + n] for n, (low, _) in zip(x.shape, grown, strict=True))] = x
    return out


pad = movement(
    "pad",
    _pad_type,
    doc="Add elements before and after each axis, or cut them off where negative.",
    reference=_pad,
    samples=lambda: [
        sample(draw(2, 3), given(1), padding=((1, 0), (2, -1))),
        sample(draw(), None, padding=()),
        sample(draw(0, 2), None, padding=((1, 1), (0, 0))),
        *(sample(draw(3, 4), None, padding=((2, 1), (-1, 3)), mode=m) for m in PAD_MODES[1:]),
        sample(draw(1, 2), None, padding=((2, 3), (5, 4)), mode="reflect"),
    ],
)


def _expand_dims_type(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
    shape = list(x.shape)
    for axis in axes_of(axes, x.rank + len(axes)):
        shape.insert(axis, 1)
    return x.with_shape(tuple(shape))


def _squeeze_type(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
    gone = axes_of(axes, x.rank)
    for axis in gone:
        require_dims(x.shape[axis], 1, f"axis {axis} to be squeezed and 1")
    return x.with_shape(tuple(d for i, d in enumerate(x.shape) if i not in gone))


def _axes_samples(*cases: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Sample]:
    return [sample(draw(*shape), axes=axes) for shape, axes in cases]


expand_dims = movement(
    "expand_dims",
    _expand_dims_type,
    doc="Insert axes of size 1 at these places of the output.",
    expand=lambda x, axes: reshape(x, shape=_expand_dims_type(x.tensor, axes=axes).shape),
    samples=lambda: _axes_samples(((2, 3), (0, -1)), ((), (0,)), ((0, 2), (1,))),
)
squeeze = movement(
    "squeeze",
    _squeeze_type,
    doc="Drop axes of size 1.",
    expand=lambda x, axes: reshape(x, shape=_squeeze_type(x.tensor, axes=axes).shape),
    samples=lambda: _axes_samples(((1, 3, 1), (0, -1)), ((), ()), ((0, 1), (1,))),
)
