"""Normalizations that the engine has itself, and computes correctly."""

from __future__ import annotations

from typing import Any

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    number,
    rank_of,
)
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.ir.graph import Node


def _softmax(s: Any, node: Node, x: Ov) -> Ov:
    return softmax(x, int(attr(node, "axis")) % rank_of(x))


def softmax(x: Ov, axis: int) -> Ov:
    """Give each its share of a row."""
    found = ops.softmax(x, axis)
    # The engine leaves a NaN where it is; it belongs into every element of its row.
    total = ops.reduce_sum(found, const([axis]), True)
    return ops.add(found, ops.multiply(total, number(0.0, x)))


def _layer_norm(s: Any, node: Node, x: Ov, scale: Ov | None, bias: Ov | None) -> Ov:
    rank = rank_of(x)
    axes = list(range(int(attr(node, "axis")) % rank, rank))
    found = ops.mvn(x, const(axes), True, float(attr(node, "epsilon")), "INSIDE_SQRT")
    found = found if scale is None else ops.multiply(found, scale)
    return found if bias is None else ops.add(found, bias)


TABLE: Table = {
    "softmax": Entry(_softmax),
    "layer_norm": Entry(_layer_norm),
}
