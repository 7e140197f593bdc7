"""LSTM, GRU and simple recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.frontends.torch.aten.rows import Convert, Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import activation as activation_ops
from fusewire.ops import contraction, elementwise, movement, recurrent, slicing

ROWS = Rows()

# The order of gates: ours (ONNX's) of PyTorch's.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def _reordered(kind: str, w: Value) -> Value:
    """Bring the gates of weights [gates * hidden, ...] to our order."""
    order = _GATES[kind]
    if order == tuple(range(len(order))):
        return w
    count = w.tensor.shape[0]
    assert isinstance(count, int)
    parts = slicing.split(w, axis=0, sizes=(count // len(order),) * len(order))
    return movement.concat(*(parts[place] for place in order), axis=0)


class _Layer:
    """The weights of a layer, for each direction."""

    def __init__(self, kind: str, directions: Sequence[Sequence[Value]], has_biases: bool) -> None:
        parts = [[_reordered(kind, w) for w in weights] for weights in directions]
        self.w = movement.stack(*(weights[0] for weights in parts), axis=0)
        self.r = movement.stack(*(weights[1] for weights in parts), axis=0)
        self.bias: Value | None = None
        if has_biases:
            both = [movement.concat(weights[2], weights[3], axis=0) for weights in parts]
            self.bias = movement.stack(*both, axis=0)


def _weights(params: Sequence[Value], layers: int, directions: int) -> list[list[Sequence[Value]]]:
    """List the weights of each direction of each layer."""
    width = len(params) // (layers * directions)
    groups = [params[i : i + width] for i in range(0, len(params), width)]
    return [groups[i * directions : (i + 1) * directions] for i in range(layers)]


def _run(
    call: AtenCall,
    kind: str,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    options: Sequence[Any],
    activation: str = "tanh",
) -> tuple[Value, ...]:
    """Run stacked layers; states are [layers * directions, batch, hidden]."""
    has_biases, layers, dropout, training, bidirectional, batch_first = options
    if training and dropout:
        raise call.training_refusal("it draws random numbers in training.")
    count = 2 if bidirectional else 1
    is_projected = len(params) != (4 if has_biases else 2) * layers * count
    is_single = x.tensor.rank == 2
    if is_single:
        x = movement.expand_dims(x, axes=(1,))
        states = [movement.expand_dims(s, axes=(1,)) for s in states]
    elif batch_first:
        x = movement.transpose(x, perm=(1, 0, 2))
    last: list[list[Value]] = [[] for _ in states]
    for i, directions in enumerate(_weights(params, layers, count)):
        first = [slicing.slice_axis(s, 0, slice(i * count, (i + 1) * count)) for s in states]
        if is_projected:
            y, *ends = _projected(call, x, directions, first)
        else:
            layer = _Layer(kind, directions, has_biases)
            y, *ends = _layer(kind, x, layer, first, bidirectional, activation)
        # [time, directions, batch, hidden] to [time, batch, directions * hidden].
        time, _, batch, hidden = y.tensor.shape
        turned = movement.transpose(y, perm=(0, 2, 1, 3))
        x = movement.reshape(turned, shape=(time, batch, hidden * count))
        for kept, end in zip(last, ends, strict=True):
            kept.append(end)
    finals = [ends[0] if len(ends) == 1 else movement.concat(*ends, axis=0) for ends in last]
    if is_single:
        return tuple(movement.squeeze(v, axes=(1,)) for v in (x, *finals))
    return (movement.transpose(x, perm=(1, 0, 2)) if batch_first else x), *finals


def _layer(
    kind: str,
    x: Value,
    layer: _Layer,
    states: Sequence[Value],
    bidirectional: bool,
    activation: str,
) -> tuple[Value, ...]:
    direction = "bidirectional" if bidirectional else "forward"
    if kind == "lstm":
        return recurrent.lstm(x, layer.w, layer.r, layer.bias, None, *states, direction=direction)
    if kind == "gru":
        return recurrent.gru(
            x,
            layer.w,
            layer.r,
            layer.bias,
            None,
            *states,
            direction=direction,
            linear_before_reset=True,
        )
    return recurrent.rnn(
        x,
        layer.w,
        layer.r,
        layer.bias,
        None,
        *states,
        direction=direction,
        activations=(activation,) * (2 if bidirectional else 1),
    )


def _projected(
    call: AtenCall, x: Value, directions: Sequence[Sequence[Value]], states: Sequence[Value]
) -> tuple[Value, ...]:
    """Unroll an LSTM whose hidden states are projected, for which there is no op."""
    time = call.number(x.tensor.shape[0], "the length of a sequence with proj_size")
    outputs, last = [], []
    for which, (w, r, *biases, projection) in enumerate(directions):
        h, c = (
            movement.squeeze(slicing.slice_axis(s, 0, slice(which, which + 1)), axes=(0,))
            for s in states
        )
        bias = elementwise.add(*biases) if biases else None
        steps = slicing.split(contraction.linear(x, w, bias), axis=0, sizes=(1,) * time)
        hidden: list[Value] = []
        for step in steps[::-1] if which else steps:
            given = movement.squeeze(step, axes=(0,))
            gates = elementwise.add(given, contraction.linear(h, r))
            quarter = call.number(c.tensor.shape[-1], "the width of an LSTM")
            i, f, g, o = slicing.split(gates, axis=-1, sizes=(quarter,) * 4)
            kept = elementwise.multiply(activation_ops.sigmoid(f), c)
            new = elementwise.multiply(activation_ops.sigmoid(i), elementwise.tanh(g))
            c = elementwise.add(kept, new)
            y = elementwise.multiply(activation_ops.sigmoid(o), elementwise.tanh(c))
            h = contraction.linear(y, projection)
            hidden.append(h)
        outputs.append(movement.stack(*(hidden[::-1] if which else hidden), axis=0))
        last.append((h, c))
    ends = (movement.stack(*state, axis=0) for state in zip(*last, strict=True))
    return movement.stack(*outputs, axis=1), *ends


@ROWS.add("lstm.input", ops="lstm")
def _lstm(
    call: AtenCall, x: Value, states: Sequence[Value], params: Sequence[Value], *options: Any
) -> tuple[Value, ...]:
    return _run(call, "lstm", x, states, params, options)


@ROWS.add("gru.input", ops="gru")
def _gru(
    call: AtenCall, x: Value, state: Value, params: Sequence[Value], *options: Any
) -> tuple[Value, ...]:
    return _run(call, "gru", x, [state], params, options)


def _rnn(activation: str) -> Convert:
    def convert(
        call: AtenCall, x: Value, state: Value, params: Sequence[Value], *options: Any
    ) -> tuple[Value, ...]:
        return _run(call, "rnn", x, [state], params, options, activation)

    return convert


ROWS.add("rnn_tanh.input", ops="rnn")(_rnn("tanh"))
ROWS.add("rnn_relu.input", ops="rnn")(_rnn("relu"))
