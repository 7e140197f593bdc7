"""The engine's own nodes, which may lose NaN: the option ``nan="engine"``.

Each answers what the row of the table does where all operands and the answer are finite. What is
left out follows NaN and infinities by nodes of its own, which costs up to twice the time and keeps
the engine from fusing: a Maximum is no Relu, and is computed outside of the convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering import (
    activation,
    pooling,
    quantization,
    reduction,
    sorting,
    transformer,
)
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Lower,
    Ov,
    Pair,
    Table,
    const,
    dim_of,
    elementwise,
    rank_of,
)
from fusewire.backends.openvino.lowering.movement import attr, axis_of
from fusewire.ir.graph import Node, Value


def _bound(value: Value | None, default: float) -> float | None:
    """Read a bound that is one number and known; None where it is not."""
    if value is None:
        return default
    if value.constant is None or value.tensor.size != 1 or value.tensor.rank:
        return None
    return float(np.asarray(value.constant.array, np.float32).reshape(()))


def _clip(s: Any, node: Node, x: Ov, low: Ov | None, high: Ov | None) -> Ov:
    given = (*node.inputs, None, None)[1:3]
    bounds = [_bound(v, side * np.inf) for v, side in zip(given, (-1, 1), strict=True)]
    if bounds[0] is not None and bounds[1] is not None and bounds[0] <= bounds[1]:
        return ops.clamp(x, *bounds)
    x = x if low is None else ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


def _softmax(s: Any, node: Node, x: Ov) -> Ov:
    return ops.softmax(x, int(attr(node, "axis")) % rank_of(x))


def _order(node: Node, x: Ov, count: Ov, largest: str) -> Pair:
    axis = axis_of(node, rank_of(x))
    return sorting.top(x, count, axis, "max" if attr(node, largest) else "min")


def _sorted(node: Node, x: Ov) -> Pair:
    count = ops.squeeze(dim_of(x, axis_of(node, rank_of(x))), const([0]))
    return _order(node, x, count, "descending")


OWN: Mapping[str, Lower] = {
    **activation.OWN,
    "maximum": elementwise(ops.maximum),
    "minimum": elementwise(ops.minimum),
    "clip": _clip,
    "exp": elementwise(ops.exp),
    "softmax": _softmax,
    "attention": transformer.own,
    "quantize": quantization.faked,
    "max_pool": lambda s, node, x: pooling.largest(x, pooling.pooled(node)),
    "reduce_mean": lambda s, node, x: reduction.over(node, ops.reduce_mean, x),
    "reduce_max": lambda s, node, x: reduction.over(node, ops.reduce_max, x),
    "reduce_min": lambda s, node, x: reduction.over(node, ops.reduce_min, x),
    "argmax": reduction.position(True, exact=False),
    "argmin": reduction.position(False, exact=False),
    "sort": lambda s, node, x: _sorted(node, x)[0],
    "argsort": lambda s, node, x: _sorted(node, x)[1],
    "top_k": lambda s, node, x: list(_order(node, x, s.scalar(attr(node, "k")), "largest")),
    "dynamic_top_k": lambda s, node, x, count: list(_order(node, x, count, "largest")),
}


def with_own(table: Table) -> dict[str, Entry]:
    """Add what is here to the rows of a table."""
    return {name: replace(row, own=OWN.get(name)) for name, row in table.items()}
