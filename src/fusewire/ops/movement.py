"""Move elements without computing: shape, order, repeats. Any dtype, bit for bit.

Parts and borders are in slicing.py, indices in indexing.py, patterns in layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import STORED, string
from fusewire.ir.dims import Dim, Shape, floordiv, size
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import EXACT, Family, Kind, Op, Trait
from fusewire.ops.inference import (
    axes_of,
    axis_of,
    require,
    require_dims,
    same_dim,
    same_dtype,
)
from fusewire.ops.sample import Sample, bad, draw, sample

FAMILY = Family("movement")
ANY = (*STORED, string)


def movement(family: Family, name: str, rule: Any, **fields: Any) -> Op[Value]:
    """Declare an op that moves elements: nothing is computed, so nothing may differ."""
    fields = {"traits": (Trait.MOVEMENT,), "tolerance": EXACT, "dtypes": ANY} | fields
    return family.declare(name, rule, flops=None if "expand" in fields else 0, **fields)


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
    FAMILY,
    "reshape",
    _reshape_type,
    doc="Reshape, keeping the elements in row-major order.",
    reference=lambda x, shape: np.reshape(x, shape),
    kind=Kind.FREE,
    samples=lambda: [
        sample(draw(2, 6), shape=(3, 4)),
        sample(draw(), shape=(1, 1)),
        sample(draw(0, 3), shape=(2, 0)),
        sample(draw(1, 1), shape=()),
    ],
    refuses=lambda: [
        bad("a shape in a graph has no -1, found (-1, 1): use", "[]", shape=(-1, 1)),
        bad("sizes of [3, 4] and the operand must be equal, found 1 and", "[]", shape=(3, 4)),
    ],
)


def _transpose_type(x: TensorType, *, perm: tuple[int, ...]) -> TensorType:
    right = sorted(perm) == list(range(x.rank))
    require(right, f"perm must name each of {x.rank} axes once, found {perm}.")
    return x.with_shape(tuple(x.shape[axis] for axis in perm))


transpose = movement(
    FAMILY,
    "transpose",
    _transpose_type,
    doc="Reorder the axes: output axis i is operand axis perm[i].",
    reference=lambda x, perm: np.transpose(x, perm),
    kind=Kind.FREE,
    samples=lambda: [
        sample(draw(2, 3, 4), perm=(2, 0, 1)),
        sample(draw(), perm=()),
        sample(draw(0, 3), perm=(1, 0)),
    ],
    refuses=lambda: [bad("perm must name each of 1 axes once, found ()", "[1]", perm=())],
)


def _broadcast_to_type(x: TensorType, *, shape: Shape) -> TensorType:
    listed = f"[{', '.join(map(str, shape))}]"
    require(x.rank <= len(shape), f"rank {x.rank} does not broadcast to {listed}.")
    for dim, wanted in zip(x.shape[::-1], shape[::-1], strict=False):
        if dim != 1:
            require_dims(dim, wanted, f"to broadcast to {listed}, a dim and its target")
    return x.with_shape(shape)


broadcast_to = movement(
    FAMILY,
    "broadcast_to",
    _broadcast_to_type,
    doc="Repeat along axes of size 1, and along new leading axes.",
    reference=lambda x, shape: np.broadcast_to(x, shape),
    kind=Kind.FREE,
    samples=lambda: [
        sample(draw(3, 1), shape=(2, 3, 4)),
        sample(draw(), shape=(2, 2)),
        sample(draw(1, 3), shape=(0, 3)),
        sample(draw(0, 1), shape=(0, 3)),
        sample(draw(2), shape=(2,)),
    ],
    refuses=lambda: [
        bad("rank 1 does not broadcast to []", "[2]", shape=()),
        bad("to broadcast to [2], a dim and its target must be equal", "[3]", shape=(2,)),
        bad("to broadcast to [2, 3], a dim and its target must be equal", "[3, 1]", shape=(2, 3)),
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
    FAMILY,
    "concat",
    _concat_type,
    doc="Join along an axis.",
    reference=lambda *xs, axis: np.concatenate(xs, axis),
    lacks={"scalar": "a scalar has no axis to join along"},
    kind=Kind.MAP,
    samples=lambda: [
        sample(draw(2, 3), draw(2, 1), draw(2, 3), axis=1),
        sample(draw(2, 3), axis=-1),
        sample(draw(0, 3), draw(2, 3), axis=-2),
    ],
    refuses=lambda: [
        bad("at least one operand is needed, found none", axis=-1),
        bad("ranks must be equal, found 2 and 0", "[0, 3]", "[]", axis=-2),
        bad("axis -1 is outside a tensor of rank 0", "[]", axis=-1),
        bad("dims 0 must be equal, found 0 and 2", "[0, 3]", "[2, 3]", axis=1),
        bad(
            "operands must have one dtype, found bool and float32", "bool[0, 3]", "[2, 3]", axis=-2
        ),
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
    FAMILY,
    "expand_dims",
    _expand_dims_type,
    doc="Insert axes of size 1 at these places of the output.",
    expand=lambda x, axes: reshape(x, shape=_expand_dims_type(x.tensor, axes=axes).shape),
    samples=lambda: _axes_samples(((2, 3), (0, -1)), ((), (0,)), ((0, 2), (1,))),
    refuses=lambda: [bad("axes (0, 0) name an axis twice", "[]", axes=(0, 0))],
)
squeeze = movement(
    FAMILY,
    "squeeze",
    _squeeze_type,
    doc="Drop axes of size 1.",
    expand=lambda x, axes: reshape(x, shape=_squeeze_type(x.tensor, axes=axes).shape),
    samples=lambda: _axes_samples(((1, 3, 1), (0, -1)), ((), ()), ((0, 1), (1,))),
    refuses=lambda: [
        bad("axis 1 to be squeezed and 1 must be equal, found 2 and 1", "[0, 2]", axes=(1,)),
        bad("axis 0 is outside a tensor of rank 0", "[]", axes=(0,)),
    ],
)


def _stack_type(*xs: TensorType, axis: int) -> TensorType:
    joined = _concat_type(*(_expand_dims_type(x, axes=(axis,)) for x in xs), axis=axis)
    for x in xs:
        require(x.rank + 1 == joined.rank, "ranks must be equal.")
    return joined


stack = movement(
    FAMILY,
    "stack",
    _stack_type,
    doc="Join along a new axis.",
    expand=lambda *xs, axis: concat(*(expand_dims(x, axes=(axis,)) for x in xs), axis=axis),
    lacks={"broadcast": "operands have one shape"},
    samples=lambda: [
        sample(draw(2, 3), draw(2, 3), axis=-1),
        sample(draw(), draw(), axis=0),
        sample(draw(0, 3), draw(0, 3), axis=1),
    ],
    refuses=lambda: [bad("ranks must be equal", "[2]", "[2, 2]", axis=0)],
)


def _repeated(x: Value, counts: Sequence[Dim], each: bool) -> Value:
    """Repeat every axis as a whole, or each of its elements."""
    shape = x.tensor.shape
    turn = -1 if each else 1
    narrow = [(1, dim)[::turn] for dim in shape]
    wide = [pair[::turn] for pair in zip(counts, shape, strict=True)]
    apart = reshape(x, shape=tuple(dim for pair in narrow for dim in pair))
    spread = broadcast_to(apart, shape=tuple(dim for pair in wide for dim in pair))
    return reshape(spread, shape=tuple(a * b for a, b in wide))


def _tile_type(x: TensorType, *, repeats: Shape) -> TensorType:
    require(len(repeats) == x.rank, f"one count an axis needed, found {repeats}.")
    return x.with_shape(tuple(n * dim for n, dim in zip(repeats, x.shape, strict=True)))


tile = movement(
    FAMILY,
    "tile",
    _tile_type,
    doc="Repeat the whole tensor along each axis.",
    expand=lambda x, repeats: _repeated(x, repeats, each=False),
    samples=lambda: [
        sample(draw(2, 3), repeats=(2, 3)),
        sample(draw(), repeats=()),
        sample(draw(0, 3), repeats=(4, 1)),
        sample(draw(2, 3), repeats=(0, 1)),
    ],
    refuses=lambda: [bad("one count an axis needed, found ()", "[1]", repeats=())],
)


def _repeat_type(x: TensorType, *, count: Dim, axis: int) -> TensorType:
    return _tile_type(x, repeats=_on_axis(x, count, axis))


def _on_axis(x: TensorType, count: Dim, axis: int) -> Shape:
    axis = axis_of(axis, x.rank)
    return tuple(count if i == axis else 1 for i in range(x.rank))


repeat = movement(
    FAMILY,
    "repeat",
    _repeat_type,
    doc="Repeat each element along an axis.",
    expand=lambda x, count, axis: _repeated(x, _on_axis(x.tensor, count, axis), each=True),
    lacks={"scalar": "a scalar has no axis to repeat along"},
    samples=lambda: [
        sample(draw(2, 3), count=3, axis=-1),
        sample(draw(0, 3), count=2, axis=0),
    ],
    refuses=lambda: [bad("axis 0 is outside a tensor of rank 0", "[]", count=2, axis=0)],
)
