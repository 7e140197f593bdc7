"""Patterns over axes: diagonals and triangles of matrices, blocks of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import NUMERIC, bool_
from fusewire.ir.dims import Shape, dim_max, dim_min, is_equal
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.creation import iota
from fusewire.ops.declare import EXACT, Family, Op
from fusewire.ops.elementwise import add
from fusewire.ops.indexing import gather_nd
from fusewire.ops.inference import axis_of, require
from fusewire.ops.logic import less_equal, where
from fusewire.ops.movement import movement, reshape, transpose
from fusewire.ops.sample import Refuses, bad, draw, sample

FAMILY = Family("layout")


def _diagonal_type(x: TensorType, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> TensorType:
    first, second = axis_of(axis1, x.rank), axis_of(axis2, x.rank)
    require(first != second, f"a diagonal needs two axes, found {first} twice.")
    rows, columns = x.shape[first] + min(offset, 0), x.shape[second] - max(offset, 0)
    kept = [dim for i, dim in enumerate(x.shape) if i not in (first, second)]
    return x.with_shape((*kept, dim_max(dim_min(rows, columns), 0)))


def _diagonal(x: Value, offset: int, axis1: int, axis2: int) -> Value:
    rank = x.tensor.rank
    pair = (axis_of(axis1, rank), axis_of(axis2, rank))
    count = _diagonal_type(x.tensor, offset=offset, axis1=axis1, axis2=axis2).shape[-1]
    rest = [axis for axis in range(rank) if axis not in pair]
    place = iota.new(shape=(count, 2), axis=0)
    place = add(place, np.array([max(-offset, 0), max(offset, 0)], np.int64))
    picked = gather_nd(transpose(x, perm=(*pair, *rest)), place)
    return transpose(picked, perm=(*range(1, rank - 1), 0))


diagonal = movement(
    FAMILY,
    "diagonal",
    _diagonal_type,
    doc="Take a diagonal of two axes; it becomes the last axis.",
    expand=_diagonal,
    lacks={"scalar": "a diagonal needs two axes"},
    samples=lambda: [
        sample(draw(3, 4)),
        sample(draw(2, 3, 4), offset=1, axis1=-1, axis2=1),
        sample(draw(3, 2), offset=-4),
        sample(draw(0, 3)),
    ],
    refuses=lambda: [
        bad("a diagonal needs two axes, found 1 twice", "[3, 4]", axis1=1),
        bad("axis 0 is outside a tensor of rank 0", "[]"),
    ],
)


def _half_type(x: TensorType, *, offset: int = 0) -> TensorType:
    require(x.rank >= 2, f"needs matrices, found {x}.")
    return x


def _triangle_type(x: TensorType, *, upper: bool, offset: int = 0) -> TensorType:
    return _half_type(x, offset=offset)


def _triangle(x: Value, upper: bool, offset: int) -> Value:
    rows, columns = x.tensor.shape[-2:]
    row = add(iota.new(shape=(rows, 1), axis=0), offset)
    column = iota.new(shape=(1, columns), axis=1)
    keep = less_equal(row, column) if upper else less_equal(column, row)
    return where(keep, x, np.zeros((), x.tensor.dtype.numpy))


def _declare_triangle(
    name: str, doc: str, rule: Any, expand: Any, refuses: Refuses | None = None, **attrs: Any
) -> Op[Value]:
    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        expand=expand,
        dtypes=(bool_, *NUMERIC),
        tolerance=EXACT,
        lacks={"scalar": "a triangle is part of a matrix"},
        samples=lambda: [
            sample(draw(2, 3, 4), **attrs),
            sample(draw(4, 2), offset=1, **attrs),
            sample(draw(3, 3), offset=-1, **attrs),
            sample(draw(0, 3), **attrs),
        ],
        refuses=refuses,
    )


triangle = _declare_triangle(
    "triangle",
    "Keep a diagonal and the elements above or below it; 0 elsewhere.",
    _triangle_type,
    _triangle,
    upper=True,
    refuses=lambda: [bad("needs matrices, found float32[]", "[]", upper=True)],
)
tril = _declare_triangle(
    "tril",
    "Keep a diagonal and the elements below it; 0 elsewhere.",
    _half_type,
    lambda x, offset: triangle(x, upper=False, offset=offset),
)
triu = _declare_triangle(
    "triu",
    "Keep a diagonal and the elements above it; 0 elsewhere.",
    _half_type,
    lambda x, offset: triangle(x, upper=True, offset=offset),
)


def _check_blocks(x: TensorType, block: int, mode: str, axes: Sequence[int], unit: int) -> None:
    require(x.rank == 4, f"needs [batch, channels, height, width], found {x}.")
    require(mode in ("dcr", "crd"), f"mode must be dcr or crd, found {mode!r}.")
    require(block > 0, f"the block must be at least 1, found {block}.")
    for axis in axes:
        whole = is_equal(x.shape[axis] % unit, 0)
        require(whole, f"axis {axis} must be a multiple of {unit}, found {x.shape[axis]}.")


def _depth_to_space_type(x: TensorType, *, block: int, mode: str = "dcr") -> TensorType:
    _check_blocks(x, block, mode, (1,), block * block)
    batch, channels, height, width = x.shape
    return x.with_shape((batch, channels // (block * block), height * block, width * block))


def _space_to_depth_type(x: TensorType, *, block: int, mode: str = "dcr") -> TensorType:
    _check_blocks(x, block, mode, (2, 3), block)
    batch, channels, height, width = x.shape
    return x.with_shape((batch, channels * (block * block), height // block, width // block))


def _depth_to_space(x: Value, block: int, mode: str) -> Value:
    batch, channels, height, width = x.tensor.shape
    depth = channels // (block * block)
    parts: Shape = (block, block, depth)
    perm = (0, 3, 4, 1, 5, 2)
    if mode == "crd":
        parts, perm = (depth, block, block), (0, 1, 4, 2, 5, 3)
    apart = transpose(reshape(x, shape=(batch, *parts, height, width)), perm=perm)
    return reshape(apart, shape=(batch, depth, height * block, width * block))


def _space_to_depth(x: Value, block: int, mode: str) -> Value:
    batch, channels, height, width = x.tensor.shape
    parts = (height // block, block, width // block, block)
    perm = (0, 3, 5, 1, 2, 4) if mode == "dcr" else (0, 1, 3, 5, 2, 4)
    apart = transpose(reshape(x, shape=(batch, channels, *parts)), perm=perm)
    return reshape(apart, shape=(batch, channels * (block * block), parts[0], parts[2]))


def _declare_blocks(
    name: str,
    doc: str,
    rule: Any,
    expand: Any,
    *shapes: tuple[int, ...],
    refuses: Refuses | None = None,
) -> Op[Value]:
    return movement(
        FAMILY,
        name,
        rule,
        doc=doc,
        expand=expand,
        lacks={"scalar": "works on images of rank 4"},
        samples=lambda: [
            *(sample(draw(*shapes[0]), block=2, mode=mode) for mode in ("dcr", "crd")),
            *(sample(draw(*shape), block=2) for shape in shapes[1:]),
        ],
        refuses=refuses,
    )


depth_to_space = _declare_blocks(
    "depth_to_space",
    "Turn channels into blocks of pixels (dcr: block first, crd: block last).",
    _depth_to_space_type,
    _depth_to_space,
    (2, 8, 2, 3),
    (0, 4, 1, 1),
    refuses=lambda: [
        bad("needs [batch, channels, height, width], found float32[]", "[]", block=2),
        bad("mode must be dcr or crd, found 'odd'", "[2, 8, 2, 3]", block=2, mode="odd"),
        bad("the block must be at least 1, found 0", "[0, 4, 1, 1]", block=0),
        bad("axis 1 must be a multiple of 4, found 5", "[0, 5, 1, 1]", block=2),
    ],
)
space_to_depth = _declare_blocks(
    "space_to_depth",
    "Turn blocks of pixels into channels (dcr: block first, crd: block last).",
    _space_to_depth_type,
    _space_to_depth,
    (2, 2, 2, 4),
    (0, 1, 2, 2),
    refuses=lambda: [
        bad("needs [batch, channels, height, width], found float32[]", "[]", block=2),
        bad("axis 2 must be a multiple of 2, found 3", "[0, 1, 3, 2]", block=2),
    ],
)
