"""Recurrent layers by PyTorch's own kernels: its gates have another order than ONNX's."""

from __future__ import annotations

from typing import Any

import torch

from fusewire.backends.torch.lowering.signature import Function, Lower
from fusewire.backends.torch.storage import Tensor
from fusewire.ir.graph import Node

# Where each gate of PyTorch is among ONNX's: iofc becomes ifco, zrh becomes rzh.
_GATES = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2), "rnn": (0,)}
_USUAL = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}


def is_plain_layer(node: Node) -> bool:
    """Tell whether a layer has nothing that PyTorch's lack."""
    attrs: Any = node.attrs
    usual, directions = _USUAL[node.op], 2 if attrs["direction"] == "bidirectional" else 1
    if attrs["clip"] is not None or attrs["activations"] not in (usual, usual * directions):
        return False
    # Lengths, and the peepholes of an LSTM.
    if node.inputs[4] is not None or any(v is not None for v in node.inputs[7:]):
        return False
    return not attrs.get("input_forget") and attrs.get("linear_before_reset") is not False


def _ordered(x: Tensor, gates: tuple[int, ...]) -> Tensor:
    """Bring the gates, which are parts of the first axis, to PyTorch's order."""
    parts = x.chunk(len(gates), 0)
    return torch.cat([parts[gate] for gate in gates])


def _parameters(op: str, w: Tensor, r: Tensor, bias: Tensor | None) -> list[Tensor]:
    """List the parameters of each direction as PyTorch takes them."""
    found = []
    for direction in range(w.shape[0]):
        found += [_ordered(w[direction], _GATES[op]), _ordered(r[direction], _GATES[op])]
        if bias is not None:
            both = bias[direction].chunk(2)
            found += [_ordered(part, _GATES[op]) for part in both]
    return found


class _Weights:
    """Orders weights once: those of a program are the same tensors at every call."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._last: tuple[Any, Any, Any, list[Tensor]] | None = None

    def __call__(self, w: Tensor, r: Tensor, bias: Tensor | None) -> list[Tensor]:
        last = self._last
        if last is not None and last[0] is w and last[1] is r and last[2] is bias:
            return last[3]
        parameters = _parameters(self._op, w, r, bias)
        self._last = w, r, bias, parameters
        return parameters


_RUN = {"lstm": torch.lstm, "gru": torch.gru, "rnn": torch.rnn_tanh}


def _layer(node: Node) -> Function:
    op, direction = node.op, str(node.attrs["direction"])
    weights, run = _Weights(op), _RUN[op]
    both, backwards = direction == "bidirectional", direction == "reverse"

    def function(x: Tensor, w: Tensor, r: Tensor, bias: Any, lengths: Any, *states: Any) -> Any:
        directions, hidden = w.shape[0], r.shape[2]
        time, batch = x.shape[0], x.shape[1]
        first = states[: 2 if op == "lstm" else 1]
        start = [x.new_zeros(directions, batch, hidden) if s is None else s for s in first]
        if not x.numel():
            return (x.new_zeros(time, directions, batch, hidden), *(s.clone() for s in start))
        x = x.flip(0) if backwards else x
        state = tuple(start) if op == "lstm" else start[0]
        parameters = weights(w, r, bias)
        y, *last = run(x, state, parameters, bias is not None, 1, 0.0, False, both, False)
        y = y.flip(0) if backwards else y
        return (y.reshape(time, batch, directions, hidden).permute(0, 2, 1, 3), *last)

    return function


TABLE: dict[str, Lower] = {"lstm": _layer, "gru": _layer, "rnn": _layer}
