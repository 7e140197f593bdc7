"""Reads at indices given by operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import bool_, float32, int32, int64
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import unbacked
from fusewire.ir.graph import Node
from fusewire.onnx.ops.reading import cast, is_told, scalar
from fusewire.onnx.ops.rows import OnnxRow, readers, writers
from fusewire.onnx.ops.writing import attrs_of, indices, operand
from fusewire.ops import creation, elementwise, indexing, logic, movement
from fusewire.ops.inference import axis_of
from fusewire.ops.slicing import slice_axis

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


def _write_gather(e: Emitter, node: Node, x: Ref, places: Ref) -> Ref:
    """Take slices of an axis; a table of rows is one whose axis is the first."""
    axis = node.attrs.get("axis", 0)
    assert isinstance(axis, int)
    return e("Gather", x, indices(e, places, "Gather"), axis=axis)


def _write_gather_elements(e: Emitter, node: Node, x: Ref, places: Ref) -> Ref:
    """Take elements along an axis."""
    axis = attrs_of(node)["axis"]
    return e("GatherElements", x, indices(e, places, "GatherElements"), axis=axis)


def _write_reverse_sequence(e: Emitter, node: Node, x: Ref, lengths: Ref) -> Ref:
    """Reverse the first steps of each sequence; ONNX wants time and batch as the first axes."""
    rank = operand(node, 0).tensor.rank
    attrs = attrs_of(node)
    batch, time = (axis_of(attrs[key], rank) for key in ("batch_axis", "time_axis"))
    if {batch, time} != {0, 1}:
        raise FormatError("ReverseSequence needs batch and time as the first two axes.")
    return e("ReverseSequence", x, indices(e, lengths), batch_axis=batch, time_axis=time)


def _read_one_hot(call: OnnxCall) -> Converted:
    indices, values = cast(call[0], dtypes.int64), call[2]
    depth = cast(scalar(call[1]) or call[1], dtypes.int64)
    (depth,) = call.settled(depth)
    axis = axis_of(call.attr("axis", -1), indices.tensor.rank + 1)
    if call.opset < 11:
        # Negative indices did not count from the end, they were out of range.
        indices = logic.where(logic.less(indices, 0), depth, indices)
    known = call.dims(depth)
    if known is not None:
        found = indexing.one_hot(indices, values, depth=known[0], axis=axis)
        if is_told(found, indices, values):
            return found
    zero, one = (constant(np.int64(n)) for n in (0, 1))
    count = unbacked() if known is None else known[0]
    places = creation.range_(zero, depth, one, count=count)
    places = movement.reshape(places, shape=(count, *([1] * (indices.tensor.rank - axis))))
    at = movement.expand_dims(indices, axes=(axis,))
    held = logic.logical_or(
        logic.equal(at, places), logic.equal(at, elementwise.subtract(places, depth))
    )
    off, on = (movement.reshape(slice_axis(values, 0, slice(i, i + 1)), shape=()) for i in (0, 1))
    return logic.where(held, on, off)


def _write_one_hot(e: Emitter, node: Node, places: Ref, values: Ref) -> Ref:
    """Write ``on`` where an index names the place."""
    axis, depth = node.attrs["axis"], node.attrs["depth"]
    assert isinstance(axis, int)
    if operand(node, 0).tensor.rank == 0:
        raise FormatError("ONNX's OneHot wants indices with an axis.")
    if values.dtype not in (float32, int32, int64):
        e.caution(f"Engines have no OneHot of {values.dtype}.")
    given: Any = depth
    places = indices(e, places, "OneHot", 0)
    return e("OneHot", places, e.size(given), values, of=values.dtype, axis=axis)


def _write_gather_nd(e: Emitter, node: Node, x: Ref, places: Ref) -> Ref:
    """Take what the last axis of the indices names; if it names nothing, all of x each time."""
    batch = attrs_of(node)["batch_dims"]
    if operand(node, 1).tensor.shape[-1] == 0:
        if batch:
            raise FormatError("ONNX's GatherND needs indices that name an axis.")
        return e("Expand", x, e.shape(node.outputs[0].tensor.shape))
    return e("GatherND", x, indices(e, places), batch_dims=batch)


def _write_nonzero(e: Emitter, node: Node, x: Ref) -> Ref:
    """List places; of a scalar ONNX gives a row that we do not."""
    if operand(node, 0).tensor.rank and not e.target.is_cautious:
        return e("NonZero", x, dtype=int64)
    flags = e.cast(x, bool_)
    if operand(node, 0).tensor.rank:
        return e("NonZero", flags, dtype=int64)
    count = e("Reshape", e.cast(flags, int64), e.integers(1))
    zero = e("Expand", e.constant([[0]], int64), e("Concat", e.integers(1), count, axis=0))
    return e("Slice", zero, e.integers(0), e.integers(0), e.integers(0))


def _write_compress(e: Emitter, node: Node, x: Ref, condition: Ref) -> Ref:
    """Keep slices where a list holds."""
    axis = attrs_of(node)["axis"]
    if operand(node, 0).tensor.rank == 0:
        x = e("Reshape", x, e.integers(1))
    return e("Compress", x, condition, axis=axis)


ROWS = (
    OnnxRow(indexing.gather, "Gather", {"axis": ("axis", 0)}, writer=_write_gather),
    OnnxRow(
        indexing.gather_elements,
        "GatherElements",
        {"axis": ("axis", 0)},
        writer=_write_gather_elements,
    ),
    OnnxRow(
        indexing.gather_nd, "GatherND", {"batch_dims": ("batch_dims", 0)}, writer=_write_gather_nd
    ),
    OnnxRow(indexing.compress, "Compress", {"axis": ("axis", None)}, writer=_write_compress),
    OnnxRow(indexing.nonzero, "NonZero", writer=_write_nonzero),
    OnnxRow(
        indexing.reverse_sequence,
        "ReverseSequence",
        {"batch_axis": ("batch_axis", 1), "time_axis": ("time_axis", 0)},
        writer=_write_reverse_sequence,
    ),
    OnnxRow(indexing.one_hot, "OneHot", reader=_read_one_hot, writer=_write_one_hot),
)
READERS: Mapping[str, Read] = readers(ROWS)
WRITERS: Mapping[str, Write] = {**writers(ROWS), "embedding": _write_gather}
