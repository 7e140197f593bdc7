"""Padding with constants, or with elements from inside at computed indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    concat,
    const,
    dim_of,
    number,
    rank_of,
    select,
    shape_of,
    type_name,
)
from fusewire.backends.openvino.lowering.integers import floored
from fusewire.backends.openvino.lowering.movement import as_numbers, attr
from fusewire.dtypes import float8_e8m0fnu
from fusewire.ir.graph import Node
from fusewire.ops.slicing import pad_positions


def filled(x: Ov, low: Ov, high: Ov, value: Ov | None) -> Ov:
    """Pad by a constant; sides that are negative are cut off."""
    zero = number(0, x)
    kept = _cut(x, low, high)
    before, after = (ops.maximum(side, const(0)) for side in (low, high))
    if value is None or (type_name(x) == "f32" and _known(value) is not None):
        return ops.pad(kept, before, after, "constant", zero if value is None else value)
    # The engine passes the value of ints through float32, and pads tensors of static shape with 0
    # unless the value is a constant (2026.4.1).
    inside = ops.broadcast(const(1, "u8"), shape_of(kept))
    mask = ops.pad(inside, before, after, "constant", const(0, "u8"))
    grown = ops.pad(kept, before, after, "constant", zero)
    return select(ops.equal(mask, const(1, "u8")), grown, value)


def _cut(x: Ov, low: Ov, high: Ov) -> Ov:
    sides = [_known(side) for side in (low, high)]
    if all(side is not None and (side >= 0).all() for side in sides):
        return x
    starts = ops.negative(ops.minimum(low, const(0)))
    limits = ops.add(shape_of(x), ops.minimum(high, const(0)))
    rank = rank_of(x)
    return ops.slice(x, starts, limits, const([1] * rank), const(list(range(rank))))


def _known(x: Ov) -> Any:
    node = x if hasattr(x, "get_type_name") else x.get_node()
    return node.data if node.get_type_name() == "Constant" else None


def _places(first: Ov, last: Ov, size: Ov, mode: str) -> Ov:
    """Compute where elements outside of an axis come from; all are lists of one."""
    ends = (ops.squeeze(side, const([0])) for side in (first, last))
    at = ops.range(*ends, const(1), "i32")
    if mode == "edge":
        inner = ops.maximum(ops.subtract(size, const([1])), const([0]))
        return ops.minimum(ops.maximum(at, const([0])), inner)
    if mode == "wrap":
        return floored(at, ops.maximum(size, const([1])))[1]
    twice = ops.multiply(size, const([2]))
    period = twice if mode == "symmetric" else ops.subtract(twice, const([2]))
    period = ops.maximum(period, const([1]))
    at = floored(at, period)[1]
    back = ops.subtract(period, at)
    back = ops.subtract(back, const([1])) if mode == "symmetric" else back
    return ops.minimum(at, back)


def _repeated(x: Ov, low: Ov, high: Ov, mode: str, axes: Sequence[int]) -> Ov:
    """Put elements from inside before and after what there is."""
    x = _cut(x, low, high)
    for axis in axes:
        before, after = (
            ops.maximum(ops.gather(side, const([axis]), const(0)), const(0)) for side in (low, high)
        )
        size = dim_of(x, axis)
        front = _places(ops.negative(before), const([0]), size, mode)
        back = _places(size, ops.add(size, after), size, mode)
        x = concat([ops.gather(x, front, const(axis)), x, ops.gather(x, back, const(axis))], axis)
    return x


def _pad(s: Any, node: Node, x: Ov, value: Ov | None) -> Ov:
    padding, mode = attr(node, "padding"), attr(node, "mode")
    if not padding:
        return x
    low, high = (s.shape([side[i] for side in padding]) for i in (0, 1))
    if mode == "constant":
        return filled(x, low, high, value)
    shape: Any = node.operands[0].tensor.shape
    axes = [axis for axis, sides in enumerate(padding) if sides != (0, 0)]
    if not all(isinstance(n, int) for axis in axes for n in (shape[axis], *padding[axis])):
        return _repeated(x, low, high, mode, axes)
    x = _cut(x, low, high)
    for axis in axes:
        before, after = padding[axis]
        kept = shape[axis] + min(before, 0) + min(after, 0)
        if before > 0 or after > 0:
            at = pad_positions(kept, max(before, 0), max(after, 0), mode)
            x = ops.gather(x, const(at.astype(np.int32)), const(axis))
    return x


def _dynamic_pad(s: Any, node: Node, x: Ov, padding: Ov, value: Ov | None) -> Ov:
    rank, mode = rank_of(x), attr(node, "mode")
    if not rank:
        return x
    halves = [const(list(range(start, start + rank))) for start in (0, rank)]
    low, high = (ops.gather(padding, half, const(0)) for half in halves)
    if mode == "constant":
        return filled(x, low, high, value)
    return _repeated(x, low, high, mode, range(rank))


def _refuses(node: Node) -> str | None:
    value = node.inputs[-1] if node.op == "dynamic_pad" else node.inputs[1]
    if value is None and node.outputs[0].tensor.dtype is float8_e8m0fnu:
        return "float8_e8m0fnu has no 0 to pad with. Give a value."
    return None


TABLE: Table = {
    "pad": Entry(as_numbers(_pad), refuses=_refuses),
    "dynamic_pad": Entry(as_numbers(_dynamic_pad), refuses=_refuses),
}
