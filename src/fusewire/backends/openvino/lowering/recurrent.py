"""Recurrent layers, as the engine's sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import Entry, Ov, Table, concat, const, dim_of
from fusewire.backends.openvino.lowering.indexing import limited
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node

# The engine's order of gates, as places in the op's.
_ORDERS = {"rnn": (0,), "lstm": (2, 0, 3, 1), "gru": (0, 1, 2)}
_DEFAULTS = {
    "rnn": ("tanh",),
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
}


def _reordered(x: Ov, order: tuple[int, ...], hidden: int) -> Ov:
    """Bring the gates on axis 1 into another order."""
    if order == tuple(range(len(order))):
        return x
    rows = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in order])
    return ops.gather(x, const(rows.astype(np.int32)), const(1))


def _bias(node: Node, bias: Ov | None, directions: int, hidden: int) -> Ov:
    """Add the biases of w and r; the engine keeps one apart for a gate that resets late."""
    order = _ORDERS[node.op]
    late = node.op == "gru" and bool(attr(node, "linear_before_reset"))
    rows = len(order) * hidden
    if bias is None:
        return const(np.zeros((directions, rows + hidden * late)), "f32")
    own, more = ops.split(bias, const(1), 2).outputs()
    if not late:
        return _reordered(ops.add(own, more), order, hidden)
    gates = const(list(range(2 * hidden)))
    last = const(list(range(2 * hidden, 3 * hidden)))
    both = ops.gather(ops.add(own, more), gates, const(1))
    apart = [ops.gather(part, last, const(1)) for part in (own, more)]
    return concat([both, *apart], 1)


def _lowered(
    s: Any, node: Node, x: Ov, w: Ov, r: Ov, bias: Ov | None, lengths: Ov | None, *states: Ov | None
) -> list[Ov]:
    hidden = _hidden(node)
    directions = int(node.outputs[0].tensor.shape[1])  # type: ignore[arg-type] # one or two
    batch = dim_of(x, 1)
    shape = concat([batch, const([directions, hidden])], 0)
    given = [
        ops.broadcast(const(0.0, "f32"), shape)
        if state is None
        else ops.transpose(state, const([1, 0, 2]))
        for state in states[: len(node.outputs) - 1]
    ]
    if lengths is None:
        lengths = ops.broadcast(ops.squeeze(dim_of(x, 0), const([0])), batch)
    else:
        lengths = limited(lengths, const(0), dim_of(x, 0))
    order = _ORDERS[node.op]
    weights = [_reordered(part, order, hidden) for part in (w, r)]
    more = (
        {"linear_before_reset": bool(attr(node, "linear_before_reset"))} if node.op == "gru" else {}
    )
    build = getattr(ops, f"{node.op}_sequence")
    made = build(
        ops.transpose(x, const([1, 0, 2])),
        *given,
        lengths,
        *weights,
        _bias(node, bias, directions, hidden),
        hidden,
        attr(node, "direction"),
        **more,
    )
    first, *last = made.outputs()
    return [
        _by_time(first, directions),
        *(ops.transpose(state, const([1, 0, 2])) for state in last),
    ]


def _by_time(y: Ov, directions: int) -> Ov:
    """Bring [batch, directions, time, hidden] to [time, directions, batch, hidden]."""
    if directions > 1:
        return ops.transpose(y, const([2, 1, 0, 3]))
    # A transpose before a sequence and (2, 1, 0, 3) behind it are left out, and what follows, other
    # than a reshape, then reads elements in the wrong order (2026.4.1).
    turned = ops.transpose(ops.squeeze(y, const([1])), const([1, 0, 2]))
    return ops.unsqueeze(turned, const([1]))


def _hidden(node: Node) -> int:
    found: Dim = node.operands[2].tensor.shape[2]
    assert isinstance(found, int), "or refused"
    return found


def _refuses(node: Node) -> str | None:
    count = len(_DEFAULTS[node.op])
    kinds = attr(node, "activations")
    if any(kinds[i : i + count] != _DEFAULTS[node.op] for i in range(0, len(kinds), count)):
        return "OpenVINO's layers are used with their own activations; others go step by step."
    if attr(node, "clip") is not None:
        return "OpenVINO's layers do not clip as the op does; it goes step by step."
    if node.attrs.get("input_forget"):
        return "OpenVINO's LSTM has no joined input and forget gate; it goes step by step."
    if node.op == "lstm" and node.inputs[7] is not None:
        return "OpenVINO's LSTM has no peepholes; it goes step by step."
    if not isinstance(node.operands[2].tensor.shape[2], int):
        return "OpenVINO's layers need a hidden size that is known."
    if any(0 in v.tensor.shape for v in node.operands[:3]):
        return "OpenVINO's layers need at least one step of at least one sequence."
    return None


# With open sizes the engine ignores the lengths, and leaves the last states of an empty sequence as
# an earlier run wrote them (2026.4.1).
TABLE: Table = {name: Entry(_lowered, refuses=_refuses, is_sized=True) for name in _ORDERS}
