"""Sample images at computed places."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS
from fusewire.ir.builder import constant
from fusewire.ir.dims import Shape, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.creation import iota
from fusewire.ops.declare import Family, Trait
from fusewire.ops.elementwise import add, divide, maximum, multiply, subtract
from fusewire.ops.inference import fits, require, require_dims
from fusewire.ops.movement import broadcast_to, reshape, stack, transpose
from fusewire.ops.reduction import reduce_max
from fusewire.ops.resampling import MODES, PLACES, cubic_weight, linear_weight
from fusewire.ops.sample import bad, draw, given, sample

FAMILY = Family("image")
PADDINGS = ("zeros", "border", "reflection")
# Inside and outside, and not in the middle between elements of axes of size 3 and 4.
_CLEAR = (-1.25, -0.83, -0.58, -0.42, -0.17, 0.17, 0.42, 0.58, 0.83, 1.25, -0.42)


def _grid_sample_type(
    x: TensorType,
    grid: TensorType,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> TensorType:
    require(mode in MODES, f"mode must be one of {', '.join(MODES)}, found {mode!r}.")
    require(padding in PADDINGS, f"padding: one of {', '.join(PADDINGS)}, found {padding!r}.")
    require(grid.dtype in FLOATS, f"the grid must be floats, found {grid.dtype}.")
    right = x.rank >= 3 and fits(grid, *[None] * (x.rank - 1), x.rank - 2)
    require(right, f"a grid needs [batch, *places, {x.rank - 2}], found {grid}.")
    require_dims(x.shape[0], grid.shape[0], "batches")
    return x.with_shape((*x.shape[:2], *grid.shape[1:-1]))


def _reflect(xp: Any, at: Array, low: float, high: float) -> Array:
    """Fold back at both borders until inside."""
    span = high - low
    folded = xp.mod(at - low, 2 * span) if span > 0 else xp.zeros_like(at)
    inside: Array = low + xp.minimum(folded, 2 * span - folded)
    return inside


def _grid_taps(
    xp: Any, at: Array, dim: int, mode: str, padding: str, align: bool
) -> list[tuple[Array, Array]]:
    """Find the elements of one axis that count at normalised places, and their weights."""
    low, high = (0.0, dim - 1.0) if align else (-0.5, dim - 0.5)
    at = (at + 1) / 2 * (dim - 1) if align else ((at + 1) * dim - 1) / 2
    at = xp.rint(at) if mode == "nearest" else at
    beyond = (at < low) | (at > high)
    if padding == "border":
        # Before the taps are found, as ONNX has it; torch's cubic mode moves only the taps.
        at = xp.where(beyond, xp.clip(at, 0, dim - 1), at)
    elif padding == "reflection":
        at = xp.where(beyond, _reflect(xp, at, low, high), at)
    weigh = cubic_weight if mode == "cubic" else linear_weight
    steps = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
    left = xp.trunc(at) if mode == "nearest" else xp.floor(at)
    found = []
    for step in steps:
        tap = xp.nan_to_num(left + step)
        weight = weigh(step - (at - left), -0.75, xp) if mode != "nearest" else xp.ones_like(at)
        if padding == "zeros":
            weight = xp.where((tap < 0) | (tap > dim - 1), 0, weight)
        elif padding == "reflection":
            tap = _reflect(xp, tap, low, high)
        found.append((xp.clip(tap, 0, dim - 1).astype(np.int64), weight))
    return found


def sample_grid(
    xp: Any, x: Array, grid: Array, mode: str, padding: str, align_corners: bool
) -> Array:
    """Read an image at the places of a grid, over an array namespace."""
    batch, channels, *dims = x.shape
    shape = (batch, channels, *grid.shape[1:-1])
    if x.size == 0 or grid.size == 0:
        return xp.zeros(shape, x.dtype)  # type: ignore[no-any-return] # of any namespace
    flat = x.reshape(batch, channels, -1)
    places = grid.reshape(batch, -1, len(dims))
    # The last element of a place is its row on the first axis.
    axes = [
        _grid_taps(xp, places[..., -1 - i], dim, mode, padding, align_corners)
        for i, dim in enumerate(dims)
    ]
    out: Any = 0
    for taps in itertools.product(*axes):
        index: Any = 0
        weight: Any = 1
        for dim, (tap, part) in zip(dims, taps, strict=True):
            index, weight = index * dim + tap, weight * part
        out = out + xp.take_along_axis(flat, index[:, None], 2) * weight[:, None]
    return out.reshape(shape)  # type: ignore[no-any-return] # of any namespace


grid_sample = FAMILY.declare(
    "grid_sample",
    _grid_sample_type,
    doc="Sample an image at places given in -1..1, its last axis first.",
    reference=lambda *operands, **attrs: sample_grid(np, *operands, **attrs),
    dtypes=FLOATS,
    traits=(Trait.DISCONTINUOUS,),
    tolerance=PLACES,
    flops=32,
    lacks={"scalar": "an image has axes"},
    samples=lambda: [
        *(
            sample(
                draw(2, 2, 3, 4),
                given(np.resize(_CLEAR, (2, 2, 3, 2)))
                if m == "nearest"
                else draw(2, 2, 3, 2, low=-1.3, high=1.3),
                mode=m,
                padding=p,
                align_corners=c,
            )
            for m in MODES
            for p in PADDINGS
            for c in (False, True)
        ),
        sample(draw(1, 1, 2, 3, 2), draw(1, 2, 1, 2, 3, low=-1.0, high=1.0)),
        sample(draw(1, 0, 2, 2), draw(1, 1, 1, 2)),
    ],
    refuses=lambda: [
        bad(
            "mode must be one of nearest, linear, cubic, found 'odd'",
            "[2, 2, 3, 4]",
            "[2, 2, 3, 2]",
            mode="odd",
            padding="zeros",
            align_corners=True,
        ),
        bad(
            "padding: one of zeros, border, reflection, found 'odd'",
            "[2, 2, 3, 4]",
            "[2, 2, 3, 2]",
            mode="linear",
            padding="odd",
            align_corners=True,
        ),
        bad(
            "the grid must be floats, found bool",
            "[2, 2, 3, 4]",
            "bool[2, 2, 3, 2]",
            mode="linear",
            padding="zeros",
            align_corners=True,
        ),
        bad(
            "a grid needs [batch, *places, -2], found float32[2, 2, 3, 2]",
            "[]",
            "[2, 2, 3, 2]",
            mode="linear",
            padding="zeros",
            align_corners=True,
        ),
        bad(
            "batches must be equal, found 3 and 2",
            "[3, 2, 3, 4]",
            "[2, 2, 3, 2]",
            mode="linear",
            padding="zeros",
            align_corners=True,
        ),
        bad(
            "a grid needs [batch, *places, 2], found float32[]",
            "[2, 2, 3, 4]",
            "[]",
            mode="linear",
            padding="zeros",
            align_corners=True,
        ),
    ],
)


def _affine_grid_type(
    theta: TensorType, *, sizes: Shape, align_corners: bool = False
) -> TensorType:
    rank = len(sizes)
    require(
        fits(theta, None, rank, rank + 1),
        f"theta must be [batch, {rank}, {rank + 1}], found {theta}.",
    )
    return theta.with_shape((theta.shape[0], *sizes, rank))


def _affine_grid(theta: Value, sizes: Shape, align_corners: bool) -> Value:
    rank, dtype = len(sizes), theta.tensor.dtype
    columns = []
    for axis in reversed(range(rank)):
        place = iota.new(shape=sizes, axis=axis, dtype=dtype)
        last = reduce_max(iota.new(shape=(sizes[axis],), axis=0, dtype=dtype))
        whole = maximum(last, 1.0) if align_corners else add(last, 1.0)
        columns.append(divide(subtract(multiply(place, 2.0), last), whole))
    columns.append(broadcast_to(constant(np.ones((), dtype.numpy)), shape=sizes))
    places = reshape(stack(*columns, axis=-1), shape=(1, size(sizes), rank + 1))
    moved = matmul(places, transpose(theta, perm=(0, 2, 1)))
    return reshape(moved, shape=(theta.tensor.shape[0], *sizes, rank))


affine_grid = FAMILY.declare(
    "affine_grid",
    _affine_grid_type,
    doc="Make the grid at which grid_sample samples an image through an affine map.",
    expand=_affine_grid,
    dtypes=FLOATS,
    lacks={"scalar": "an affine map is a matrix"},
    samples=lambda: [
        sample(draw(2, 2, 3), sizes=(3, 4)),
        sample(draw(1, 3, 4), sizes=(2, 1, 3), align_corners=True),
        sample(draw(0, 2, 3), sizes=(2, 2)),
    ],
    refuses=lambda: [
        bad("theta must be [batch, 2, 3], found float32[]", "[]", sizes=(3, 4)),
        bad("theta must be [batch, 1, 2], found float32[2, 2, 3]", "[2, 2, 3]", sizes=(3,)),
    ],
)
