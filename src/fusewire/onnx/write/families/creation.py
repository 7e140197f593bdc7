"""Tensors from attributes and scalars."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import dtype, float32, int64
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import attrs_of
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref
from fusewire.ops.inference import axis_of

# What is counted further than this is counted by the run, so that models stay small.
_WRITTEN_OUT = 256


def iota(e: Emitter, node: Node) -> Ref:
    """Count along an axis."""
    attrs = attrs_of(node)
    shape, of = node.outputs[0].tensor.shape, dtype(attrs["dtype"])
    axis = axis_of(attrs["axis"], len(shape))
    count, rank = shape[axis], len(shape)
    places = counted(e, count)
    column = e.integers(*range(1, rank - axis))
    places = e("Unsqueeze", places, column) if rank - axis > 1 else places
    places = e.cast(places, of)
    wanted: list[Dim] = [1 if i == axis else dim for i, dim in enumerate(shape)]
    if axis == 0 and all(dim == 1 for dim in wanted):
        return e("Identity", places)
    return e("Expand", places, e.shape(tuple(wanted)))


def counted(e: Emitter, count: Dim) -> Ref:
    """Count from 0 in int64."""
    if isinstance(count, int) and count <= _WRITTEN_OUT:
        return e.constant(np.arange(count))
    return e("Range", e.scalar(0), e.scalar(count), e.scalar(1))


def range_(e: Emitter, node: Node, start: Ref, stop: Ref, step: Ref) -> Ref:
    """Count between scalars; what is neither float nor int64 is counted in one of them."""
    wide = int64 if start.dtype.is_integer else start.dtype
    wide = float32 if wide.is_float and wide.bits == 16 else wide
    found = e("Range", *(e.cast(x, wide) for x in (start, stop, step)))
    return e.cast(found, start.dtype)


WRITERS = {"iota": iota, "range": range_}
