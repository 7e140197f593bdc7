"""Unfold and fold windows, and convolve over displaced cells."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, NUMERIC, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, floordiv, size
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges
from fusewire.ops.contraction import dot_general
from fusewire.ops.conversion import cast
from fusewire.ops.convolution import NEEDS_SPATIAL, conv
from fusewire.ops.creation import iota
from fusewire.ops.declare import EXACT, LINEAR, NEEDS_ROOM, Family, Trait
from fusewire.ops.elementwise import add, floor, maximum, minimum, multiply, subtract
from fusewire.ops.indexing import gather_elements
from fusewire.ops.inference import require, require_dims, same_dtype
from fusewire.ops.logic import greater_equal, less, logical_and, where
from fusewire.ops.movement import broadcast_to, reshape, squeeze, stack, transpose
from fusewire.ops.reduction import narrowed, widened
from fusewire.ops.sample import Draw, bad, draw, sample
from fusewire.ops.shape import dim_of
from fusewire.ops.slicing import pad, slice_, slice_axis
from fusewire.ops.window import Padding, Sizes, Window, known

FAMILY = Family("patches")


def _unfold_type(
    x: TensorType,
    *,
    window: Sizes,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
) -> TensorType:
    require(x.rank > 2, f"{NEEDS_SPATIAL}, found rank {x.rank}.")
    places = Window.of(window, strides, padding, dilations).output(x.shape[2:])
    return x.with_shape((x.shape[0], x.shape[1] * size(window), size(places)))


def _unfold(x: Value, window: Sizes, **sliding: Any) -> Value:
    at = Window.of(window, **sliding)
    batch, channels, *spatial = x.tensor.shape
    places = at.output(tuple(spatial))
    padded = pad(x, None, padding=((0, 0), (0, 0), *at.padding))
    cells = []
    for offset in itertools.product(*map(range, window)):
        starts = [o * d for o, d in zip(offset, at.dilations, strict=True)]
        limits = [
            start if n == 0 else start + (n - 1) * stride + 1
            for start, n, stride in zip(starts, places, at.strides, strict=True)
        ]
        cells.append(
            slice_(
                padded,
                starts=(0, 0, *starts),
                limits=(batch, channels, *limits),
                strides=(1, 1, *at.strides),
            )
        )
    return reshape(
        stack(*cells, axis=2), shape=_unfold_type(x.tensor, window=window, **sliding).shape
    )


unfold = FAMILY.declare(
    "unfold",
    _unfold_type,
    doc="List the elements of each window: (N, C * window, places), as im2col.",
    expand=_unfold,
    dtypes=NUMERIC,
    traits=(Trait.MOVEMENT,),
    value_range=ranges.among_zeros,
    tolerance=EXACT,
    lacks={"scalar": NEEDS_SPATIAL},
    not_folded=NEEDS_ROOM,
    samples=lambda: [
        sample(draw(1, 2, 4, 3), window=(2, 2), padding=((1, 0), (0, 1))),
        sample(draw(2, 1, 7), window=(3,), strides=(2,), dilations=(2,)),
        sample(draw(0, 2, 3), window=(2,)),
        sample(draw(1, 1, 2), window=(3,), strides=(2,)),
    ],
    refuses=lambda: [
        bad("a convolution needs a batch, channels and spatial axes", "[]", window=(2,)),
        bad("a convolution needs a batch, channels and spatial axes", "[2, 3]", window=(2,)),
    ],
)


def _fold_type(
    x: TensorType,
    *,
    spatial: Shape,
    window: Sizes,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
) -> TensorType:
    require(x.rank == 3, f"windows are (N, C * window, places), found {x}.")
    places = Window.of(window, strides, padding, dilations).output(spatial)
    require_dims(x.shape[2], size(places), "the last axis and the number of places")
    channels, cells = x.shape[1], size(window)
    whole = not (isinstance(channels, int) and isinstance(cells, int) and channels % cells)
    require(whole, f"windows of {cells} do not divide {channels}.")
    return x.with_shape((x.shape[0], floordiv(channels, cells), *spatial))


def _fold(x: Value, spatial: Shape, window: Sizes, **sliding: Any) -> Value:
    at = Window.of(window, **sliding)
    places = at.output(spatial)
    batch, channels = _fold_type(x.tensor, spatial=spatial, window=window, **sliding).shape[:2]
    cells = reshape(x, shape=(batch, channels, size(window), *places))
    spread = tuple(n * s for n, s in zip(places, at.strides, strict=True))
    placed = []
    for index, offset in enumerate(itertools.product(*map(range, window))):
        cell = slice_axis(cells, 2, slice(index, index + 1))
        # Zeros between neighbours, one axis of places after the other.
        apart = reshape(cell, shape=(batch, channels, *(d for n in places for d in (n, 1))))
        gaps = [pair for s in at.strides for pair in ((0, 0), (0, s - 1))]
        wide = reshape(
            pad(apart, None, padding=((0, 0), (0, 0), *gaps)), shape=(batch, channels, *spread)
        )
        starts = [
            o * d - low for o, d, (low, _) in zip(offset, at.dilations, at.padding, strict=True)
        ]
        ends = [n - start - s for n, start, s in zip(spatial, starts, spread, strict=True)]
        placed.append(pad(wide, None, padding=((0, 0), (0, 0), *zip(starts, ends, strict=True))))
    return reduce(add, placed)


fold = FAMILY.declare(
    "fold",
    _fold_type,
    doc="Add the elements of each window at their original places: undoes unfold, as col2im.",
    expand=_fold,
    dtypes=NUMERIC,
    traits=(Trait.LINEAR,),
    tolerance=LINEAR,
    lacks={"scalar": NEEDS_SPATIAL},
    samples=lambda: [
        sample(draw(1, 8, 12), spatial=(4, 3), window=(2, 2), padding=((1, 0), (0, 1))),
        sample(draw(2, 3, 2), spatial=(7,), window=(3,), strides=(2,), dilations=(2,)),
        sample(draw(0, 4, 2), spatial=(3,), window=(2,)),
    ],
    refuses=lambda: [
        bad(
            "windows are (N, C * window, places), found float32[]", "[]", spatial=(3,), window=(2,)
        ),
        bad(
            "the last axis and the number of places must be equal, found",
            "[0, 4, 3]",
            spatial=(3,),
            window=(2,),
        ),
        bad("windows of 2 do not divide 5", "[0, 5, 2]", spatial=(3,), window=(2,)),
    ],
)


def _deformable_type(
    x: TensorType,
    w: TensorType,
    offset: TensorType,
    bias: TensorType | None = None,
    mask: TensorType | None = None,
    *,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
    groups: int = 1,
    offset_groups: int = 1,
) -> TensorType:
    require(x.rank == w.rank == offset.rank == 4, "x, w and offset must have rank 4.")
    plain = [Value(t) if t is not None else None for t in (x, w, bias)]
    found = (
        conv.make(
            plain,
            {"strides": strides, "padding": padding, "dilations": dilations, "groups": groups},
        )
        .outputs[0]
        .tensor
    )
    cells = size(w.shape[2:]) * offset_groups
    for of, times in ((offset, 2), (mask, 1)):
        if of is not None:
            wanted = (x.shape[0], cells * times, *found.shape[2:])
            require(of.rank == 4, f"offsets and mask have rank 4, found {of}.")
            for place, (left, right) in enumerate(zip(of.shape, wanted, strict=True)):
                require_dims(left, right, f"dims {place} of the offsets or mask and of the cells")
    same_dtype(x, w, offset, bias, mask)
    return found


def _positions(moves: Value, axis: int, at: Window) -> Value:
    """Give where cells lie along a spatial axis: moves are (N, groups, cells, *places)."""
    offsets = np.indices(known(at.sizes))[axis].reshape(-1, 1, 1) * at.dilations[axis]
    shape: list[Dim] = [1, 1, 1]
    shape[axis + 1] = moves.tensor.shape[axis + 3]
    of = moves.tensor.dtype
    grid = multiply(iota.new(shape=tuple(shape), axis=axis + 1, dtype=of), at.strides[axis])
    fixed = (offsets - at.padding[axis][0]).astype(of.numpy)
    return add(moves, add(grid, constant(fixed)))


def _corner(x: Value, positions: list[Value], corner: tuple[int, ...]) -> tuple[Value, Value]:
    """Give flat indices into the planes of x, and the weights of one corner of each cell."""
    places, parts, held = [], [], []
    for axis, (position, high) in enumerate(zip(positions, corner, strict=True)):
        low, dim = floor(position), dim_of(x, axis + 2)
        part = subtract(position, low)
        one = constant(np.ones((), part.tensor.dtype.numpy))
        parts.append(part if high else subtract(one, part))
        place = add(cast(low, dtype=int64), high)
        held.append(logical_and(greater_equal(place, 0), less(place, dim)))
        places.append(maximum(minimum(place, subtract(dim, 1)), 0))
    index = add(multiply(places[0], dim_of(x, 3)), places[1])
    zero = constant(np.zeros((), parts[0].tensor.dtype.numpy))
    return index, where(logical_and(*held), multiply(*parts), zero)


def _interpolated(x: Value, moves: Value, at: Window) -> Value:
    """Give the elements of moved cells: (N, groups, C / groups, cells * places)."""
    batch, channels, *spatial = x.tensor.shape
    groups, count = moves.tensor.shape[1], size(moves.tensor.shape[4:]) * size(at.sizes)
    each = floordiv(channels, groups)
    planes = reshape(widened(x), shape=(batch, groups, each, size(spatial)))
    parts = [squeeze(slice_axis(moves, 3, slice(i, i + 1)), axes=(3,)) for i in (0, 1)]
    positions = [_positions(part, axis, at) for axis, part in enumerate(parts)]
    corners = []
    for corner in itertools.product((0, 1), repeat=2):
        index, weight = _corner(x, positions, corner)
        flat = reshape(index, shape=(batch, groups, 1, count))
        found = gather_elements(
            planes, broadcast_to(flat, shape=(batch, groups, each, count)), axis=3
        )
        corners.append(multiply(found, reshape(weight, shape=(batch, groups, 1, count))))
    return reduce(add, corners)


def _deformable(
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None,
    mask: Value | None,
    groups: int,
    offset_groups: int,
    **sliding: Any,
) -> Value:
    batch = x.tensor.shape[0]
    filters, inner, *sizes = w.tensor.shape
    at = Window.of(sizes, **sliding)
    places = at.output(x.tensor.shape[2:])
    cells, count = size(sizes), size(places)
    moves = reshape(widened(offset), shape=(batch, offset_groups, cells, 2, *places))
    total = _interpolated(x, moves, at)
    if mask is not None:
        weights = reshape(widened(mask), shape=(batch, offset_groups, 1, cells * count))
        total = multiply(total, weights)
    columns = reshape(total, shape=(batch, groups, inner * cells, count))
    matrix = reshape(widened(w), shape=(groups, floordiv(filters, groups), inner * cells))
    product = dot_general(matrix, columns, contract=((2,), (2,)), batch=((0,), (1,)))
    y = reshape(transpose(product, perm=(2, 0, 1, 3)), shape=(batch, filters, *places))
    if bias is not None:
        y = add(y, reshape(widened(bias), shape=(filters, 1, 1)))
    return narrowed(y, x)


def _moves(*shape: int) -> Draw:
    """Offsets that leave cells far from where the interpolation jumps to other corners."""
    return draw(*shape, low=0.2, high=0.8)


deformable_conv = FAMILY.declare(
    "deformable_conv",
    _deformable_type,
    doc="Convolve cells displaced by offsets (N, groups * cells * (y, x), *places), interpolated.",
    expand=_deformable,
    dtypes=FLOATS,
    traits=(Trait.CONTRACTION,),
    lacks={"scalar": NEEDS_SPATIAL},
    samples=lambda: [
        sample(draw(1, 2, 4, 3), draw(2, 2, 2, 2), _moves(1, 8, 3, 2), draw(2)),
        sample(
            draw(1, 2, 4, 4),
            draw(2, 1, 2, 2),
            _moves(1, 16, 2, 2),
            None,
            draw(1, 8, 2, 2),
            groups=2,
            offset_groups=2,
            strides=(2, 3),
            padding=((0, 0), (1, 0)),
        ),
        sample(draw(0, 1, 3, 3), draw(1, 1, 2, 2), draw(0, 8, 2, 2)),
    ],
    refuses=lambda: [
        bad("x, w and offset must have rank 4", "[]", "[1, 1, 2, 2]", "[0, 8, 2, 2]"),
        bad(
            "operands must have one dtype, found float32 and bool",
            "[0, 1, 3, 3]",
            "[1, 1, 2, 2]",
            "bool[0, 8, 2, 2]",
        ),
        bad(
            "dims 0 of the offsets or mask and of the cells must be",
            "[1, 1, 3, 3]",
            "[1, 1, 2, 2]",
            "[0, 8, 2, 2]",
        ),
        bad(
            "offsets and mask have rank 4, found float32[]",
            "[0, 1, 3, 3]",
            "[1, 1, 2, 2]",
            "[0, 8, 2, 2]",
            None,
            "[]",
        ),
    ],
)
