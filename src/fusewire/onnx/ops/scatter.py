"""Writes at indices given by operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fusewire.dtypes import float32
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.writing import indices, larger, operand, smaller, widened
from fusewire.ops import scatter
from fusewire.ops.declare import Op

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

_REDUCTIONS = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}
_ONNX_REDUCTIONS = {ours: theirs for theirs, ours in _REDUCTIONS.items()}


def _combined(
    e: Emitter, op: str, node: Node, x: Ref, places: Ref, updates: Ref, **attrs: Any
) -> Ref:
    """Write updates; engines add up no floats of 16 bits."""
    reduction = _ONNX_REDUCTIONS[str(node.attrs["reduction"])]
    of = x.dtype
    if reduction != "none" and of.is_float:
        x, updates = (widened(e, v, float32) for v in (x, updates))
    found = e(op, x, indices(e, places, op), updates, reduction=reduction, **attrs)
    return e.cast(found, of)


def _scatter(op: Op[Value], attrs: Callable[[OnnxCall], Mapping[str, Any]]) -> Read:
    def convert(call: OnnxCall) -> Converted:
        said = call.attr("reduction", "none")
        if said not in _REDUCTIONS:
            call.refuse(f"reduction must be one of {', '.join(_REDUCTIONS)}, found {said!r}.")
        return op(call[0], call[1], call[2], reduction=_REDUCTIONS[said], **attrs(call))

    return convert


def _write_scatter_nd(e: Emitter, node: Node, x: Ref, places: Ref, updates: Ref) -> Ref:
    """Write updates where the last axis of the indices says."""
    return _combined(e, "ScatterND", node, x, places, updates)


_SCATTER = _scatter(scatter.scatter_elements, lambda call: {"axis": call.attr("axis", 0)})


def _write_scatter_elements(e: Emitter, node: Node, x: Ref, places: Ref, updates: Ref) -> Ref:
    """Write updates along an axis."""
    return _combined(e, "ScatterElements", node, x, places, updates, axis=node.attrs["axis"])


def _read_tensor_scatter(call: OnnxCall) -> Converted:
    mode = call.attr("mode", "linear")
    if mode not in ("linear", "circular"):
        call.refuse(f"mode must be linear or circular, found {mode!r}.")
    return scatter.tensor_scatter(
        call[0], call[1], call.get(2), axis=call.attr("axis", -2), circular=mode == "circular"
    )


def _write_dynamic_update_slice(e: Emitter, node: Node, x: Ref, update: Ref, starts: Ref) -> Ref:
    """Join what is before, the block, and what is after, one axis inside the other."""
    whole, part = (operand(node, i).tensor.shape for i in (0, 1))
    moved = [axis for axis, dim in enumerate(whole) if part[axis] != dim]
    if not moved:
        return e("Identity", update)
    places = indices(e, starts)
    room = e("Sub", e.shape(whole), e.shape(part))
    first = larger(e, smaller(e, places, room), e.integers(0))

    def put(into: Ref, axes: list[int]) -> Ref:
        if not axes:
            return update
        axis, at = axes[0], e.integers(axes[0])
        start = e("Slice", first, at, e.integers(axis + 1))
        end = e("Add", start, e.size(part[axis]))
        none, far = e.integers(0), e.size(whole[axis])
        before = e("Slice", into, none, start, at)
        after = e("Slice", into, end, far, at)
        inside = put(e("Slice", into, start, end, at), axes[1:])
        return e("Concat", before, inside, after, axis=axis)

    return put(x, moved)


READERS: Mapping[str, Read] = {
    "Scatter": _SCATTER,
    "ScatterElements": _SCATTER,
    "ScatterND": _scatter(scatter.scatter_nd, lambda call: {}),
    "TensorScatter": _read_tensor_scatter,
}


WRITERS: Mapping[str, Write] = {
    "scatter_elements": _write_scatter_elements,
    "scatter_nd": _write_scatter_nd,
    "dynamic_update_slice": _write_dynamic_update_slice,
}
