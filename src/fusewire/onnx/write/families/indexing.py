"""Reading at places that operands tell."""

from __future__ import annotations

from typing import Any

from fusewire.dtypes import bool_, float32, int32, int64
from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import attrs_of, indices, operand
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref
from fusewire.ops.inference import axis_of


def gather(e: Emitter, node: Node, x: Ref, places: Ref) -> Ref:
    """Take slices of an axis; a table of rows is one whose axis is the first."""
    axis = node.attrs.get("axis", 0)
    assert isinstance(axis, int)
    return e("Gather", x, indices(e, places, "Gather"), axis=axis)


def gather_elements(e: Emitter, node: Node, x: Ref, places: Ref) -> Ref:
    """Take elements along an axis."""
    axis = attrs_of(node)["axis"]
    return e("GatherElements", x, indices(e, places, "GatherElements"), axis=axis)


def gather_nd(e: Emitter, node: Node, x: Ref, places: Ref) -> Ref:
    """Take what the last axis of the indices names; if it names nothing, all of x each time."""
    batch = attrs_of(node)["batch_dims"]
    if operand(node, 1).tensor.shape[-1] == 0:
        if batch:
            raise FormatError("ONNX's GatherND needs indices that name an axis.")
        return e("Expand", x, e.shape(node.outputs[0].tensor.shape))
    return e("GatherND", x, indices(e, places), batch_dims=batch)


def one_hot(e: Emitter, node: Node, places: Ref, values: Ref) -> Ref:
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


def reverse_sequence(e: Emitter, node: Node, x: Ref, lengths: Ref) -> Ref:
    """Reverse the first steps of each sequence; ONNX wants time and batch as the first axes."""
    rank = operand(node, 0).tensor.rank
    attrs = attrs_of(node)
    batch, time = (axis_of(attrs[key], rank) for key in ("batch_axis", "time_axis"))
    if {batch, time} != {0, 1}:
        raise FormatError("ReverseSequence needs batch and time as the first two axes.")
    return e("ReverseSequence", x, indices(e, lengths), batch_axis=batch, time_axis=time)


def nonzero(e: Emitter, node: Node, x: Ref) -> Ref:
    """List places; of a scalar ONNX gives a row that we do not."""
    if operand(node, 0).tensor.rank and not e.target.is_cautious:
        return e("NonZero", x, dtype=int64)
    flags = e.cast(x, bool_)
    if operand(node, 0).tensor.rank:
        return e("NonZero", flags, dtype=int64)
    count = e("Reshape", e.cast(flags, int64), e.integers(1))
    zero = e("Expand", e.constant([[0]], int64), e("Concat", e.integers(1), count, axis=0))
    return e("Slice", zero, e.integers(0), e.integers(0), e.integers(0))


def compress(e: Emitter, node: Node, x: Ref, condition: Ref) -> Ref:
    """Keep slices where a list holds."""
    axis = attrs_of(node)["axis"]
    if operand(node, 0).tensor.rank == 0:
        x = e("Reshape", x, e.integers(1))
    return e("Compress", x, condition, axis=axis)


WRITERS = {
    "gather": gather,
    "embedding": gather,
    "gather_elements": gather_elements,
    "gather_nd": gather_nd,
    "one_hot": one_hot,
    "reverse_sequence": reverse_sequence,
    "nonzero": nonzero,
    "compress": compress,
}
