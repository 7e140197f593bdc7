"""Fold windows back, with sizes that are known or that only the run determines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fusewire.dtypes import int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import unbacked
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast, counted, is_told, length
from fusewire.onnx.ops.windows import WindowAttrs, listed, pairs
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import dynamic, logic, movement, patches, reduction, scatter
from fusewire.ops.elementwise import add, floor_divide, multiply, remainder, subtract
from fusewire.ops.shape import shape_of
from fusewire.ops.slicing import slice_axis


def _col2im(call: OnnxCall) -> Converted:
    x, asked, block = call[0], call[1], call[2]
    rank = length(asked, "image_shape")
    strides, dilations = (listed(call, name, rank, 1) for name in ("strides", "dilations"))
    at = WindowAttrs(strides, dilations, pairs(call, rank))
    spatial, window = call.dims(asked), call.ints(block)
    if spatial is not None and window is not None:
        found = patches.fold(x, spatial=spatial, window=window, **at.attrs)
        if is_told(found, x):
            return found
    return _placed(x, cast(asked, int64), cast(block, int64), at)


def _element(vector: Value, axis: int) -> Value:
    return movement.reshape(slice_axis(vector, 0, np.s_[axis : axis + 1]), shape=())


def _placed(x: Value, asked: Value, block: Value, at: WindowAttrs) -> Value:
    """Add each element up at its place in the image."""
    batch, rows, columns = x.tensor.shape
    cells, total = reduction.reduce_prod(block), reduction.reduce_prod(asked)
    index, inside = _targets(x, asked, block, at)
    index = add(index, multiply(floor_divide(_column(x), cells), total))
    flat = (batch, rows * columns)
    places = movement.reshape(logic.where(inside, index, 0), shape=(1, rows * columns))
    updates = logic.where(inside, x, constant(np.zeros((), x.tensor.dtype.numpy)))
    first, second = (slice_axis(shape_of(x), 0, np.s_[i : i + 1]) for i in (0, 1))
    channels = floor_divide(second, cells)
    sizes = movement.concat(first, multiply(channels, total), axis=0)
    zero = constant(np.zeros((), x.tensor.dtype.numpy))
    filled = scatter.scatter_elements(
        dynamic.dynamic_full(zero, sizes, dims=(batch, unbacked())),
        movement.broadcast_to(places, shape=flat),
        movement.reshape(updates, shape=flat),
        axis=1,
        reduction="add",
    )
    dims = (batch, unbacked(), *(unbacked() for _ in at.strides))
    return dynamic.dynamic_reshape(
        filled, movement.concat(first, channels, asked, axis=0), dims=dims
    )


def _column(x: Value) -> Value:
    return movement.expand_dims(counted(x, 1), axes=(1,))


def _targets(x: Value, asked: Value, block: Value, at: WindowAttrs) -> tuple[Value, Value]:
    """Find for each row and column where it belongs in a plane, and whether that is inside."""
    offset, place = remainder(_column(x), reduction.reduce_prod(block)), counted(x, 2)
    index: Value | None = None
    inside: Value | None = None
    step: Value | None = None
    for axis in reversed(range(len(at.strides))):
        size, width = _element(asked, axis), _element(block, axis)
        low, high = at.padding[axis]
        reach = multiply(subtract(width, 1), at.dilations[axis])
        room = subtract(add(size, low + high - 1), reach)
        count = add(floor_divide(room, at.strides[axis]), 1)
        part = multiply(remainder(offset, width), at.dilations[axis])
        spot = subtract(add(multiply(remainder(place, count), at.strides[axis]), part), low)
        offset, place = floor_divide(offset, width), floor_divide(place, count)
        held = logic.logical_and(logic.greater_equal(spot, 0), logic.less(spot, size))
        inside = held if inside is None else logic.logical_and(inside, held)
        index = spot if index is None or step is None else add(index, multiply(spot, step))
        step = size if step is None else multiply(step, size)
    assert index is not None
    assert inside is not None
    return index, inside


READERS: Mapping[str, Read] = {"Col2Im": _col2im}
