"""Variants of ops whose shape is an operand instead of an attribute.

An importer emits a twin where a shape is computed by the graph: the shape is an operand, and
``dims`` says what is known of the result (unbacked symbols for the rest). ``STATIC_TWINS`` turns
one into the op itself once its index operands are known. (Twins of ops that are not movement are
in those ops' files.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from fusewire.dtypes import INTEGERS
from fusewire.ir.dims import Dim, Shape, ceildiv, dim_max, unbacked
from fusewire.ir.graph import Array, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges
from fusewire.ops.creation import full, iota
from fusewire.ops.declare import Family, Op, Trait
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.inference import (
    axes_of,
    broadcast_shapes,
    require,
    require_dims,
    same_dtype,
)
from fusewire.ops.movement import broadcast_to, movement, reshape, resolve_shape, tile
from fusewire.ops.resampling import resize
from fusewire.ops.sample import bad, draw, given, sample
from fusewire.ops.slicing import PAD_MODES, normalize_slice, pad, pad_array, slice_
from fusewire.ops.sorting import top_k
from fusewire.ops.table import get_op

# No axis has so many elements.
_BEYOND = 2**62
FAMILY = Family("dynamic")
ROWS = unbacked("rows")


def _declare(name: str, rule: Any, indices: str, **fields: Any) -> Op[Value]:
    traits = (Trait.MOVEMENT, Trait.UNBACKED)
    names = tuple(indices.split())
    return movement(FAMILY, name, rule, traits=traits, index_operands=names, steady=names, **fields)


def require_list(operand: TensorType, length: int, what: str) -> None:
    require(operand.dtype in INTEGERS, f"{what} must be ints, found {operand.dtype}.")
    require(operand.rank == 1, f"{what} must have rank 1, found {operand}.")
    require_dims(operand.shape[0], length, f"the number of {what} and what it must be")


def _with_shape(x: TensorType, shape: TensorType, *, dims: Shape) -> TensorType:
    require_list(shape, len(dims), "sizes")
    return x.with_shape(dims)


dynamic_reshape = _declare(
    "dynamic_reshape",
    _with_shape,
    "shape",
    doc="Reshape to a shape given by an operand; one size may be -1.",
    reference=lambda x, shape, dims: np.reshape(x, shape.tolist()),
    samples=lambda: [
        sample(draw(2, 6), given([3, -1], "int64"), dims=(ROWS, 4)),
        sample(draw(), given([1, 1], "int64"), dims=(1, 1)),
        sample(draw(0, 3), given([2, 0], "int32"), dims=(2, 0)),
    ],
)


def _larger(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Broadcast two shapes that may be larger than any array."""
    pairs = itertools.zip_longest(reversed(left), reversed(right), fillvalue=1)
    return [max(a, b) if a and b else 0 for a, b in pairs][::-1]


dynamic_broadcast_to = _declare(
    "dynamic_broadcast_to",
    _with_shape,
    "shape",
    doc="Broadcast an operand with a shape given by another.",
    reference=lambda x, shape, dims: np.broadcast_to(
        x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))
    ),
    output_shapes=lambda x, shape, dims: [_larger(x.shape, shape.tolist())],
    samples=lambda: [
        sample(draw(3, 1), given([2, 1, 4], "int64"), dims=(2, ROWS, 4)),
        sample(draw(), given([2], "int64"), dims=(2,)),
        sample(draw(0, 1), given([1, 3], "int64"), dims=(0, 3)),
    ],
    refuses=lambda: [
        bad("sizes must be ints, found bool", "[]", "bool[1]", dims=(2,)),
        bad("sizes must have rank 1, found int64[]", "[]", "int64[]", dims=(2,)),
        bad("the number of sizes and what it must be must be equal", "[]", "int64[1]", dims=()),
    ],
)


def _full_type(value: TensorType, shape: TensorType, *, dims: Shape) -> TensorType:
    require(value.rank == 0, f"the value must be a scalar, found {value}.")
    return _with_shape(value, shape, dims=dims)


dynamic_full = _declare(
    "dynamic_full",
    _full_type,
    "shape",
    doc="Fill a shape given by an operand with a scalar.",
    reference=lambda value, shape, dims: np.broadcast_to(value, shape.tolist()),
    output_shapes=lambda value, shape, dims: [shape.tolist()],
    samples=lambda: [
        sample(draw(), given([2, 3], "int64"), dims=(ROWS, 3)),
        sample(draw(), draw(0, dtype_="int64"), dims=()),
    ],
    refuses=lambda: [
        bad("the value must be a scalar, found float32[1]", "[1]", "int64[0]", dims=())
    ],
)


def _tile_type(x: TensorType, repeats: TensorType, *, dims: Shape) -> TensorType:
    require_list(repeats, x.rank, "repeats")
    return _with_shape(x, repeats, dims=dims)


def _tiled_shape(x: Array, repeats: Array) -> list[int]:
    return [n * times for n, times in zip(x.shape, repeats.tolist(), strict=True)]


def _tile(x: Array, repeats: Array, dims: Shape) -> Array:
    shape = _tiled_shape(x, repeats)
    if 0 in shape:
        # NumPy repeats one axis after the other, also if another one becomes empty.
        return np.empty(shape, x.dtype)
    return np.tile(x, repeats.tolist())


dynamic_tile = _declare(
    "dynamic_tile",
    _tile_type,
    "repeats",
    doc="Repeat the whole tensor along each axis, with counts given by an operand.",
    reference=_tile,
    output_shapes=lambda x, repeats, dims: [_tiled_shape(x, repeats)],
    samples=lambda: [
        sample(draw(2, 3), given([2, 1], "int64"), dims=(ROWS, 3)),
        sample(draw(), draw(0, dtype_="int64"), dims=()),
        sample(draw(0, 3), given([2, 2], "int64"), dims=(0, 6)),
        sample(draw(1, 2, 3, 2), given([3, 2, 2, 2], "int64"), dims=(ROWS, 4, 6, 4)),
    ],
    refuses=lambda: [bad("repeats must have rank 1, found int64[]", "[]", "int64[]", dims=())],
)


def _slice_type(
    x: TensorType,
    starts: TensorType,
    limits: TensorType,
    strides: TensorType | None = None,
    *,
    axes: tuple[int, ...] | None = None,
    dims: Shape,
) -> TensorType:
    axes = axes_of(axes, x.rank)
    for operand, what in ((starts, "starts"), (limits, "limits"), (strides, "strides")):
        if operand is not None:
            require_list(operand, len(axes), what)
    require(len(dims) == x.rank, f"one dim an axis needed, found {dims}.")
    for axis in range(x.rank):
        if axis not in axes:
            require_dims(dims[axis], x.shape[axis], f"dims {axis}, which is not sliced,")
    return x.with_shape(dims)


def _slice(
    x: Array, starts: Array, limits: Array, strides: Array | None, axes: Any, dims: Any
) -> Array:
    parts: list[Any] = [np.s_[:]] * x.ndim
    steps = np.ones_like(starts) if strides is None else strides
    chosen = range(x.ndim) if axes is None else axes
    for axis, *bounds in zip(chosen, starts, limits, steps, strict=True):
        parts[axis] = slice(*map(int, bounds))
    return x[(*parts, ...)]


dynamic_slice = _declare(
    "dynamic_slice",
    _slice_type,
    "starts limits strides",
    doc="Slice some axes as Python does, with bounds given by operands.",
    reference=_slice,
    samples=lambda: [
        sample(
            draw(5, 7),
            given([1, -3], "int64"),
            given([9, -(2**62)], "int64"),
            given([2, -2], "int64"),
            dims=(ROWS, 3),
        ),
        sample(draw(5, 7), given([2], "int32"), given([4], "int32"), axes=(-1,), dims=(5, 2)),
        sample(draw(), draw(0, dtype_="int64"), draw(0, dtype_="int64"), dims=()),
        sample(draw(0, 4), given([0, 1], "int64"), given([3, 2], "int64"), dims=(0, 1)),
    ],
    refuses=lambda: [
        bad("one dim an axis needed, found (0,)", "[]", "int64[0]", "int64[0]", dims=(0,)),
        bad("starts must have rank 1, found int64[]", "[]", "int64[]", "int64[0]", dims=()),
        bad(
            "dims 1, which is not sliced, must be equal, found 2 and 7",
            "[5, 7]",
            "int32[1]",
            "int32[1]",
            axes=(0,),
            dims=(5, 2),
        ),
        bad(
            "axis 0 is outside a tensor of rank 0", "[]", "int64[0]", "int64[0]", dims=(), axes=(0,)
        ),
    ],
)


def _pad_type(
    x: TensorType,
    padding: TensorType,
    value: TensorType | None = None,
    *,
    mode: str = "constant",
    dims: Shape,
) -> TensorType:
    require(mode in PAD_MODES, f"mode must be one of {', '.join(PAD_MODES)}, found {mode!r}.")
    require_list(padding, 2 * x.rank, "paddings")
    same_dtype(x, value)
    require(len(dims) == x.rank, f"one dim an axis needed, found {dims}.")
    return x.with_shape(dims)


def _pairs(padding: Any) -> tuple[tuple[Any, Any], ...]:
    half = len(padding) // 2
    return tuple(zip(padding[:half], padding[half:], strict=True))


dynamic_pad = _declare(
    "dynamic_pad",
    _pad_type,
    "padding",
    doc="Pad by widths given by an operand: before each axis, then after each axis.",
    reference=lambda x, padding, value, mode, dims: pad_array(
        x, value, _pairs(padding.tolist()), mode
    ),
    value_range=ranges.padded,
    output_shapes=lambda x, padding, *rest, **attrs: [
        [n + sum(pair) for n, pair in zip(x.shape, _pairs(padding.tolist()), strict=True)]
    ],
    samples=lambda: [
        sample(draw(2, 3), given([1, 0, 0, 2], "int64"), given(1), dims=(ROWS, 5)),
        sample(draw(3, 3), given([2, -1, 0, 1], "int64"), mode="reflect", dims=(5, 3)),
        sample(draw(), draw(0, dtype_="int64"), dims=()),
        sample(draw(0, 1), given([1, 0, 1, 0], "int64"), dims=(2, 1)),
    ],
    refuses=lambda: [
        bad(
            "mode must be one of constant, reflect, edge, wrap",
            "[]",
            "int64[0]",
            dims=(),
            mode="odd",
        ),
        bad("paddings must have rank 1, found int64[]", "[]", "int64[]", dims=()),
        bad(
            "operands must have one dtype, found float32 and int64",
            "[]",
            "int64[0]",
            "int64[0]",
            dims=(),
        ),
        bad("one dim an axis needed, found (0,)", "[]", "int64[0]", dims=(0,)),
    ],
)


# The index operands that are known, by name.
Known: TypeAlias = Mapping[str, Any]
Twin: TypeAlias = Callable[[Node, Known], "Value | tuple[Value, ...] | None"]


def _first(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _near(start: Dim, limit: Dim, stride: int) -> slice:
    """Leave out bounds beyond any axis: programs say "to the end" by the largest number."""
    before, beyond = (start, limit) if stride > 0 else (limit, start)
    first = None if isinstance(before, int) and before <= -_BEYOND else before
    last = None if isinstance(beyond, int) and beyond >= _BEYOND else beyond
    return slice(first, last, stride) if stride > 0 else slice(last, first, stride)


def _static_slice(node: Node, known: Known) -> Value | None:
    x, axes = _first(node), cast(Any, node.attrs["axes"])
    strides = known.get("strides", (1,) * len(known["starts"]))
    if not all(isinstance(stride, int) for stride in strides):
        return None
    bounds: list[tuple[Dim, Dim, int]] = [(0, dim, 1) for dim in x.tensor.shape]
    parts = zip(known["starts"], known["limits"], strides, strict=True)
    for axis, part in zip(range(len(bounds)) if axes is None else axes, parts, strict=True):
        bounds[axis] = normalize_slice(_near(*part), x.tensor.shape[axis])
    starts, limits, steps = zip(*bounds, strict=True) if bounds else ((), (), ())
    return slice_(x, starts=starts, limits=limits, strides=steps)


def _static_range(node: Node, known: Known) -> Value | None:
    (start,), (stop,), (step,) = (known[name] for name in ("start", "stop", "step"))
    if not isinstance(step, int):
        return None
    count = dim_max(ceildiv(stop - start, step), 0)
    places = iota.new(shape=(count,), axis=0, dtype=_first(node).tensor.dtype)
    return add(multiply(places, node.inputs[2]), node.inputs[0])


def _static_resize(node: Node, known: Known) -> Value | None:
    x, _, scales, roi = node.inputs
    if scales is not None and scales.constant is None:
        return None
    listed = scales.constant.array.tolist() if scales and scales.constant else None
    attrs = {key: attr for key, attr in node.attrs.items() if key != "dims"}
    return resize(x, roi, sizes=known["sizes"], scales=listed, **attrs)


STATIC_TWINS: Mapping[str, Twin] = {
    "dynamic_reshape": lambda node, known: reshape(
        _first(node), shape=resolve_shape(known["shape"], _first(node).tensor.size)
    ),
    "dynamic_broadcast_to": lambda node, known: broadcast_to(
        _first(node), shape=broadcast_shapes(_first(node).tensor.shape, known["shape"])
    ),
    "dynamic_full": lambda node, known: full(_first(node), shape=known["shape"]),
    "dynamic_tile": lambda node, known: tile(_first(node), repeats=known["repeats"]),
    "dynamic_slice": _static_slice,
    "dynamic_pad": lambda node, known: pad(
        _first(node), node.inputs[2], padding=_pairs(known["padding"]), mode=node.attrs["mode"]
    ),
    "range": _static_range,
    "dynamic_resize": _static_resize,
    "dynamic_top_k": lambda node, known: top_k(
        _first(node), k=known["k"][0], axis=node.attrs["axis"], largest=node.attrs["largest"]
    ),
}


def static_twin(node: Node, known: Mapping[str, Shape]) -> tuple[Value, ...] | None:
    """Give a node's outputs by the op whose shape is an attribute.

    ``known`` maps names of index operands to their elements. None when they are not enough, or
    the op has no twin. The types may say more than those of the node.
    """
    twin = STATIC_TWINS.get(node.op)
    if twin is None:
        return None
    op = get_op(node.op)
    present = zip(op.parameters[0], node.inputs, strict=True)
    if any(v is not None and n in op.index_operands and n not in known for n, v in present):
        return None
    found = twin(node, known)
    return (found,) if isinstance(found, Value) else found
