"""Attention, as the few nodes that the engine fuses into one."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import Entry, Ov, Table, const, number, select
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.backends.openvino.lowering.normalization import softmax
from fusewire.ir.graph import Node

_PLAIN = {
    "causal": False,
    "left": None,
    "right": None,
    "offset": 0,
    "softcap": 0.0,
    "precision": None,
}


def _scores(node: Node, q: Ov, k: Ov, mask: Ov | None) -> Ov:
    scale = attr(node, "scale")
    size = node.operands[0].tensor.shape[-1]
    factor = size**-0.5 if scale is None else scale  # type: ignore[operator] # or refused
    scores = ops.matmul(ops.multiply(q, number(factor, q)), k, False, True)
    if mask is None:
        return scores
    if node.operands[3].tensor.dtype.kind == "bool":
        return select(mask, scores, number(-np.inf, scores))
    return ops.add(scores, mask)


def _attention(s: Any, node: Node, q: Ov, k: Ov, v: Ov, mask: Ov | None = None) -> Ov:
    scores = _scores(node, q, k, mask)
    weights = softmax(scores, 3)
    if mask is not None:
        # A query that sees no key has no weights.
        hidden = ops.equal(scores, number(-np.inf, scores))
        seen = select(hidden, number(0.0, scores), number(1.0, scores))
        some = ops.reduce_max(seen, const([3]), True)
        weights = select(ops.equal(some, number(0.0, some)), some, weights)
    return ops.matmul(weights, v, False, False)


def own(s: Any, node: Node, q: Ov, k: Ov, v: Ov, mask: Ov | None = None) -> Ov:
    """Attend, where every query sees a key: a mask of bools does not tell."""
    if mask is not None and node.operands[3].tensor.dtype.kind == "bool":
        return _attention(s, node, q, k, v, mask)
    return ops.matmul(ops.softmax(_scores(node, q, k, mask), 3), v, False, False)


def _refuses(node: Node) -> str | None:
    q, k = (value.tensor.shape for value in node.operands[:2])
    if any(node.attrs[name] != plain for name, plain in _PLAIN.items()):
        return "OpenVINO gets attention with a window of keys expanded."
    if q[1] != k[1] or not isinstance(q[3], int) or q[3] == 0:
        return "OpenVINO gets attention with shared heads, or of open size, expanded."
    return None


TABLE: Table = {"attention": Entry(_attention, "fb", refuses=_refuses)}
