"""Movement of elements: shape, order, repeats; and variants whose shape is an operand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import int64
from fusewire.errors import SizesNeededError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, floordiv, is_at_most, size
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import type_symbols
from fusewire.onnx.ops.reading import cast, is_told, known_dims, length, named, scalar, with_sizes
from fusewire.onnx.ops.writing import attrs_of, indices, operand, spelled
from fusewire.ops import (
    control,
    dynamic,
    elementwise,
    indexing,
    layout,
    logic,
    movement,
    reduction,
    scatter,
)
from fusewire.ops.creation import iota
from fusewire.ops.declare import Op
from fusewire.ops.inference import broadcast_shapes
from fusewire.ops.shape import shape_of, size_of
from fusewire.ops.slicing import slice_axis

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


def listed(call: OnnxCall, attribute: str, position: int, moved: int) -> Value | None:
    """Give a list of ints that was an attribute before an opset, and is an operand since."""
    if call.opset >= moved:
        found = call.get(position)
        if found is not None and found.tensor.rank == 0:
            (found,) = call.settled(movement.reshape(found, shape=(1,)))
        return found
    held = call.attr(attribute)
    return None if held is None else constant(np.array(held, np.int64))


def _others(rank: int, axes: Value, count: int) -> Value:
    """List the axes that are not among some."""
    ones, none = (constant(np.full(n, i, np.bool_)) for n, i in ((rank, 1), (rank - count, 0)))
    mask = scatter.scatter_elements(ones, axes, none, axis=0)
    return movement.reshape(indexing.nonzero(mask, count=count), shape=(count,))


def _read_reshape(call: OnnxCall) -> Converted:
    x = call[0]
    shape = listed(call, "shape", 1, 5) or call[1]
    wanted = known_dims(call, shape, "the shape")
    if not call.flag("allowzero"):
        before = [*x.tensor.shape, *([0] * len(wanted))]
        copied = [old if dim == 0 else dim for old, dim in zip(before, wanted, strict=False)]
        if None in wanted:
            shape = _zeros_copied(x, shape, len(wanted))
        wanted = copied
    if None not in wanted:
        dims = movement.resolve_shape(named(wanted), x.tensor.size)
        found = movement.reshape(x, shape=dims)
        return found if is_told(found, x) else dynamic.dynamic_reshape(x, shape, dims=dims)
    known = [dim for dim in wanted if dim is not None and dim != -1]
    # One size that is open follows from the others, unless those may be 0.
    if len(known) == len(wanted) - 1 and is_at_most(1, size(known)):
        left = floordiv(x.tensor.size, size(known))
        wanted = [left if dim is None else dim for dim in wanted]
    return dynamic.dynamic_reshape(
        x, shape, dims=named([None if dim == -1 else dim for dim in wanted])
    )


def _zeros_copied(x: Value, shape: Value, count: int) -> Value:
    """Put the sizes of x where a shape that the run tells is 0."""
    shape = cast(shape, dtypes.int64)
    sizes = slice_axis(shape_of(x), 0, slice(0, min(count, x.tensor.rank)))
    if count > x.tensor.rank:
        more = constant(np.zeros(count - x.tensor.rank, np.int64))
        sizes = movement.concat(sizes, more, axis=0)
    return logic.where(logic.equal(shape, 0), sizes, shape)


def _write_reshape(e: Emitter, node: Node, x: Ref) -> Ref:
    """Change the shape."""
    return reshaped(e, x, operand(node, 0).tensor.shape, node.outputs[0].tensor.shape)


def reshaped(e: Emitter, x: Ref, before: Shape, after: Shape) -> Ref:
    """Change the shape, by a constant wherever one will do."""
    kept = [
        0 if not isinstance(dim, int) and axis < len(before) and before[axis] == dim else dim
        for axis, dim in enumerate(after)
    ]
    unknown = [axis for axis, dim in enumerate(kept) if not isinstance(dim, int)]
    # A 0 copies the dim of x; what is 0 itself needs another form.
    if len(unknown) <= 1 and 0 not in after:
        told: list[Dim] = [-1 if axis in unknown else dim for axis, dim in enumerate(kept)]
        if not (unknown and _may_be_empty(before, after, unknown[0])) and (
            e.target.is_cautious or _follows(before, after, unknown)
        ):
            return e("Reshape", x, e.shape(tuple(told)))
    rest = [[dim for dim in shape if dim != 1] for shape in (before, after)]
    if rest[0] == rest[1] and before != after:
        return _with_ones(e, x, before, after)
    return e("Reshape", x, e.shape(after), allowzero=1)


def _with_ones(e: Emitter, x: Ref, before: Shape, after: Shape) -> Ref:
    """Remove and add axes of size 1, which takes no sizes that only the run tells."""
    for op, shape in (("Squeeze", before), ("Unsqueeze", after)):
        ones = [axis for axis, dim in enumerate(shape) if dim == 1]
        x = e(op, x, e.integers(*ones)) if ones else x
    return x


def _may_be_empty(before: Shape, after: Shape, axis: int) -> bool:
    """Tell whether what a -1 is divided by may be 0."""
    return any(not isinstance(dim, int) for i, dim in enumerate(after) if i != axis)


def _follows(before: Shape, after: Shape, unknown: list[int]) -> bool:
    """Tell whether whoever reads a -1 finds the dim that is meant."""
    others = [dim for axis, dim in enumerate(after) if axis not in unknown]
    return all(floordiv(size(before), size(others)) == after[axis] for axis in unknown)


def _write_dynamic_reshape(e: Emitter, node: Node, x: Ref, shape: Ref) -> Ref:
    """Change the shape to one that the run tells, in which 0 is 0."""
    return e("Reshape", x, indices(e, shape), allowzero=1)


def _read_transpose(call: OnnxCall) -> Converted:
    rank = call[0].tensor.rank
    return movement.transpose(call[0], perm=call.attr("perm") or tuple(range(rank))[::-1])


def _write_transpose(e: Emitter, node: Node, x: Ref) -> Ref:
    """Reorder the axes."""
    perm = attrs_of(node)["perm"]
    return e("Transpose", x, perm=perm) if perm else e("Identity", x)


def _read_flatten(call: OnnxCall) -> Converted:
    x, axis = call[0], call.attr("axis", 1)
    shape = x.tensor.shape
    axis = axis + len(shape) if axis < 0 else axis
    return movement.reshape(x, shape=(size(shape[:axis]), size(shape[axis:])))


def _read_squeeze(call: OnnxCall) -> Converted:
    x, axes = call[0], listed(call, "axes", 1, 13)
    if axes is None:
        return _squeezed(x)
    known = call.ints(axes)
    if known is not None:
        return movement.squeeze(x, axes=known)
    return without_axes(call, x, axes)


def _squeezed(x: Value) -> Value:
    """Drop all axes of size 1."""
    gone = [axis for axis, dim in enumerate(x.tensor.shape) if dim == 1]
    if x.tensor.is_static:
        return movement.squeeze(x, axes=gone)
    names = [s.name for s in type_symbols(x.type) if not s.unbacked]
    if names:
        raise SizesNeededError(
            f"all axes of size 1 of {x.type} are to go, and which those are follows from the "
            "sizes of inputs. Give example arrays, or Specs with sizes, or name the axes.",
            names,
        )
    # Sizes that the run tells are taken not to be 1, and checked then.
    ones = reduction.reduce_sum(cast(logic.equal(shape_of(x), 1), dtypes.int64))
    said = f"Squeeze without axes found another size of 1 in {x.type}. Name the axes."
    return movement.squeeze(control.check(x, logic.equal(ones, len(gone)), message=said), axes=gone)


def without_axes(call: OnnxCall, x: Value, axes: Value) -> Value:
    """Drop axes of size 1 that the run tells."""
    left = x.tensor.rank - length(axes, "the list of axes")
    places = _others(x.tensor.rank, axes, left)
    shape = indexing.gather(shape_of(x), places, axis=0)
    return dynamic.dynamic_reshape(x, shape, dims=named([None] * left))


def _write_squeeze(e: Emitter, node: Node, x: Ref) -> Ref:
    """Drop axes of size 1; without axes ONNX would drop all."""
    axes = attrs_of(node)["axes"]
    return e("Squeeze", x, e.integers(*axes)) if axes else e("Identity", x)


def _read_unsqueeze(call: OnnxCall) -> Converted:
    x, axes = call[0], listed(call, "axes", 1, 13) or call[1]
    known = call.ints(axes)
    if known is not None:
        return movement.expand_dims(x, axes=known)
    rank = x.tensor.rank + length(axes, "the list of axes")
    places = _others(rank, axes, x.tensor.rank)
    ones = constant(np.ones(rank, np.int64))
    shape = scatter.scatter_elements(ones, places, shape_of(x), axis=0)
    return dynamic.dynamic_reshape(x, shape, dims=named([None] * rank))


def _write_expand_dims(e: Emitter, node: Node, x: Ref) -> Ref:
    """Insert axes of size 1."""
    axes, rank = attrs_of(node)["axes"], node.outputs[0].tensor.rank
    return e("Unsqueeze", x, e.integers(*(spelled(e, axis, rank) for axis in axes)))


def _read_expand(call: OnnxCall) -> Converted:
    x, shape = call[0], call[1]
    wanted = known_dims(call, shape, "the shape")
    rank = max(x.tensor.rank, len(wanted))
    dims: list[Dim | None] = []
    before = [*([1] * (rank - x.tensor.rank)), *x.tensor.shape]
    for old, new in zip(before, [*([1] * (rank - len(wanted))), *wanted], strict=True):
        # A size that is neither 1 nor unknown stays what it is.
        fixed = isinstance(old, int) and old != 1
        (dim,) = (old,) if fixed else (None,) if new is None else broadcast_shapes((old,), (new,))
        dims.append(dim)
    if len(wanted) < rank:
        shape = movement.concat(
            constant(np.ones(rank - len(wanted), shape.tensor.dtype.numpy)), shape, axis=0
        )
        (shape,) = call.settled(shape)
    return with_sizes(call, dynamic.dynamic_broadcast_to, [x, shape], named(dims))


def _write_broadcast_to(e: Emitter, node: Node, x: Ref) -> Ref:
    """Repeat; a 1 leaves the dim of x as it is, so that fewer need the run."""
    before, after = operand(node, 0).tensor.shape, node.outputs[0].tensor.shape
    if before == after:
        return e("Identity", x)
    new = len(after) - len(before)
    wanted: list[Dim] = [
        1 if axis >= new and before[axis - new] == dim else dim for axis, dim in enumerate(after)
    ]
    return e("Expand", x, e.shape(tuple(wanted)))


def _write_full(e: Emitter, node: Node, value: Ref) -> Ref:
    """Repeat a scalar."""
    return e("Expand", value, e.shape(node.outputs[0].tensor.shape))


def _write_expanded(e: Emitter, node: Node, x: Ref, shape: Ref) -> Ref:
    return e("Expand", x, indices(e, shape))


def _read_tile(call: OnnxCall) -> Converted:
    x, repeats = call[0], call[1]
    if call.opset < 6:
        # A number of tiles and one axis, as tensors of the dtype of x.
        times, axis = (call.array(v) for v in (repeats, call[2]))
        if times is None or axis is None:
            call.refuse("tiles and axis are known only when it runs. Convert it to opset 6.")
        places = range(x.tensor.rank)
        return movement.tile(x, repeats=[int(times) if i == int(axis) else 1 for i in places])
    counts = known_dims(call, repeats, "the list of repeats")
    if len(counts) != x.tensor.rank:
        call.refuse(f"one count an axis is needed, found {len(counts)} for {x.type}.")
    pairs = zip(x.tensor.shape, counts, strict=True)
    dims = [None if count is None else dim * count for dim, count in pairs]
    return with_sizes(call, dynamic.dynamic_tile, [x, repeats], named(dims))


def _write_tile(e: Emitter, node: Node, x: Ref) -> Ref:
    """Repeat the whole along each axis."""
    repeats = attrs_of(node)["repeats"]
    return e("Tile", x, e.shape(repeats)) if repeats else e("Identity", x)


def _write_dynamic_tile(e: Emitter, node: Node, x: Ref, repeats: Ref) -> Ref:
    """Repeat as often as the run tells."""
    is_scalar = operand(node, 0).tensor.rank == 0
    return e("Identity", x) if is_scalar else e("Tile", x, indices(e, repeats))


def _read_concat(call: OnnxCall) -> Converted:
    if len(call.inputs) == 1:
        return call[0]
    return movement.concat(*call.rest, axis=call.attr("axis", 1))


def _write_concat(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Join along an axis."""
    axis = attrs_of(node)["axis"]
    return e("Concat", *xs, axis=axis)


def _write_stack(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Join along a new axis."""
    axis = attrs_of(node)["axis"]
    place = e.integers(axis % node.outputs[0].tensor.rank)
    return e("Concat", *(e("Unsqueeze", x, place) for x in xs), axis=axis)


def _read_shape(call: OnnxCall) -> Converted:
    x = call[0]
    start, end = call.attr("start", 0), call.attr("end")
    found = shape_of(x)
    if start == 0 and end is None:
        return found
    return slice_axis(found, 0, slice(start, end))


def _read_blocks(op: Op[Any]) -> Read:
    return lambda call: op(
        call[0], block=call.needed("blocksize"), mode=call.attr("mode", "DCR").lower()
    )


def _read_trilu(call: OnnxCall) -> Converted:
    x, upper = call[0], call.flag("upper", 1)
    if x.tensor.rank < 2:
        call.refuse(f"a triangle is part of a matrix, found {x.type}.")
    offset = (0,) if call.get(1) is None else call.ints(call[1])
    if offset is not None:
        return layout.triangle(x, upper=upper, offset=offset[0])
    row, column = (_places(x, axis) for axis in (-2, -1))
    row = elementwise.add(row, cast(scalar(call[1]) or call[1], dtypes.int64))
    keep = logic.less_equal(row, column) if upper else logic.less_equal(column, row)
    return logic.where(keep, x, constant(np.zeros((), x.tensor.dtype.numpy)))


def _places(x: Value, axis: int) -> Value:
    """Count along one of the last two axes."""
    rows, columns = x.tensor.shape[-2:]
    return iota.new(shape=(rows, 1) if axis == -2 else (1, columns), axis=axis)


READERS: Mapping[str, Read] = {
    "Reshape": _read_reshape,
    "Transpose": _read_transpose,
    "Flatten": _read_flatten,
    "Squeeze": _read_squeeze,
    "Unsqueeze": _read_unsqueeze,
    "Expand": _read_expand,
    "Tile": _read_tile,
    "Concat": _read_concat,
    "Shape": _read_shape,
    "Size": lambda call: size_of(call[0]),
    "DepthToSpace": _read_blocks(layout.depth_to_space),
    "SpaceToDepth": _read_blocks(layout.space_to_depth),
    "Trilu": _read_trilu,
}


WRITERS: Mapping[str, Write] = {
    "reshape": _write_reshape,
    "transpose": _write_transpose,
    "broadcast_to": _write_broadcast_to,
    "full": _write_full,
    "concat": _write_concat,
    "expand_dims": _write_expand_dims,
    "squeeze": _write_squeeze,
    "stack": _write_stack,
    "tile": _write_tile,
    "shape_of": lambda e, node, x: e("Shape", x, dtype=int64),
    "dynamic_reshape": _write_dynamic_reshape,
    "dynamic_broadcast_to": _write_expanded,
    "dynamic_full": _write_expanded,
    "dynamic_tile": _write_dynamic_tile,
}
