"""Composites that the engine has whole, and has right."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset16 as ops

from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    elementwise,
    number,
    on_ints,
    rank_of,
    select,
)
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.ir.graph import Node


def relu(x: Ov) -> Ov:
    """Keep NaN, which the engine's own drops: of two operands it gives the second for NaN."""
    return ops.maximum(number(0, x), x)


def _softmax(s: Any, node: Node, x: Ov) -> Ov:
    axis = int(attr(node, "axis")) % rank_of(x)
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


def _gelu(s: Any, node: Node, x: Ov) -> Ov:
    found = ops.gelu(x, "tanh" if attr(node, "approximate") else "erf")
    # The engine has NaN at infinity (2026.4.1).
    return select(ops.equal(x, number(np.inf, x)), x, found)


def _leaky_relu(s: Any, node: Node, x: Ov) -> Ov:
    return ops.prelu(x, const([float(attr(node, "alpha"))], "f32"))


TABLE: Table = {
    "relu": Entry(on_ints(relu), "fi"),
    "softmax": Entry(_softmax),
    "layer_norm": Entry(_layer_norm),
    "gelu": Entry(_gelu),
    "leaky_relu": Entry(_leaky_relu),
    "silu": Entry(elementwise(lambda x: ops.swish(x))),
}
