"""Writing at places that operands tell."""

from __future__ import annotations

from typing import Any

from fusewire.dtypes import float32
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import indices, larger, operand, smaller, widened
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref

_REDUCTIONS = {"set": "none", "add": "add", "multiply": "mul", "max": "max", "min": "min"}


def _combined(
    e: Emitter, op: str, node: Node, x: Ref, places: Ref, updates: Ref, **attrs: Any
) -> Ref:
    """Write updates; engines add up no floats of 16 bits."""
    reduction = _REDUCTIONS[str(node.attrs["reduction"])]
    of = x.dtype
    if reduction != "none" and of.is_float:
        x, updates = (widened(e, v, float32) for v in (x, updates))
    found = e(op, x, indices(e, places, op), updates, reduction=reduction, **attrs)
    return e.cast(found, of)


def scatter_elements(e: Emitter, node: Node, x: Ref, places: Ref, updates: Ref) -> Ref:
    """Write updates along an axis."""
    return _combined(e, "ScatterElements", node, x, places, updates, axis=node.attrs["axis"])


def scatter_nd(e: Emitter, node: Node, x: Ref, places: Ref, updates: Ref) -> Ref:
    """Write updates where the last axis of the indices says."""
    return _combined(e, "ScatterND", node, x, places, updates)


def dynamic_update_slice(e: Emitter, node: Node, x: Ref, update: Ref, starts: Ref) -> Ref:
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


WRITERS = {
    "scatter_elements": scatter_elements,
    "scatter_nd": scatter_nd,
    "dynamic_update_slice": dynamic_update_slice,
}
