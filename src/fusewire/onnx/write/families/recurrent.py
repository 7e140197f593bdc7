"""Recurrent layers: ours are ONNX's, but for how activations are spelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import bool_, int32
from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import attrs_of, either, operand
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.families.convolution import require_filled
from fusewire.onnx.write.model import Ref, Write
from fusewire.ops.table import get_op

# ONNX's name, and how many numbers it takes: (alpha, beta).
ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "tanh": ("Tanh", ()),
    "sigmoid": ("Sigmoid", ()),
    "relu": ("Relu", ()),
    "softsign": ("Softsign", ()),
    "softplus": ("Softplus", ()),
    "affine": ("Affine", (1.0, 0.0)),
    "scaled_tanh": ("ScaledTanh", (1.0, 1.0)),
    "leaky_relu": ("LeakyRelu", (0.01,)),
    "thresholded_relu": ("ThresholdedRelu", (1.0,)),
    "hard_sigmoid": ("HardSigmoid", (0.2, 0.5)),
    "elu": ("Elu", (1.0,)),
}


def _activations(e: Emitter, node: Node, count: int) -> dict[str, Any]:
    """Spell the activations of all directions; numbers are listed for those that take some."""
    attrs = attrs_of(node)
    given = attrs["activations"]
    _, _, declared = get_op(node.op).parameters
    if given == declared["activations"] and not e.target.is_cautious:
        return {}
    if attrs["direction"] == "bidirectional" and len(given) == count:
        given = given * 2
    names, alphas, betas = [], [], []
    for of in given:
        name, *numbers = (of,) if isinstance(of, str) else of
        theirs, defaults = ACTIVATIONS[name]
        full = [*numbers, *defaults[len(numbers) :]]
        names.append(theirs)
        alphas += full[:1]
        betas += full[1:]
    found: dict[str, Any] = {"activations": names}
    found |= {"activation_alpha": alphas} if alphas else {}
    return found | ({"activation_beta": betas} if betas else {})


def layer(op: str, count: int, states: int, **flags: str) -> Write:
    """Write a layer with so many activations and states; ``flags`` are attributes of its own."""

    def write(
        e: Emitter,
        node: Node,
        x: Ref,
        w: Ref,
        r: Ref,
        bias: Ref | None,
        lengths: Ref | None,
        *rest: Ref | None,
    ) -> list[Ref]:
        attrs, (time, batch, _) = attrs_of(node), operand(node, 0).tensor.shape
        require_filled(e, node)
        hidden = operand(node, 2).tensor.shape[2]
        if not isinstance(hidden, int):
            raise FormatError("ONNX wants the hidden size as a number.")
        given = _activations(e, node, count)
        given |= {"hidden_size": hidden, "direction": attrs["direction"], "clip": attrs["clip"]}
        given |= {theirs: int(attrs[ours]) for theirs, ours in flags.items()}
        ends = None if lengths is None else e.cast(lengths, int32)
        made = [x.dtype] * (states + 1)

        def run(e: Emitter) -> list[Ref]:
            return e.many(op, x, w, r, bias, ends, *rest, made=made, **given)

        steps = time * batch
        if isinstance(steps, int) or not e.target.is_cautious:
            return run(e)
        # Nothing to do, which only the run can tell, stops the process of an engine.
        any_ = e("Greater", e.scalar(steps), e.scalar(0), dtype=bool_)
        return either(e, node, any_, run, lambda inner: _idle(inner, node, rest[:states]))

    return write


def _idle(e: Emitter, node: Node, states: Sequence[Ref | None]) -> list[Ref]:
    """Give what a layer without steps gives: no rows, and the states it began with."""
    zeros = []
    for value in node.outputs:
        zero = e.constant(np.zeros((), value.tensor.dtype.numpy))
        zeros.append(e("Expand", zero, e.shape(value.tensor.shape)))
    kept = zip(states, zeros[1:], strict=True)
    return [zeros[0], *(zero if state is None else state for state, zero in kept)]


WRITERS = {
    "rnn": layer("RNN", 1, 1),
    "lstm": layer("LSTM", 3, 2, input_forget="input_forget"),
    "gru": layer("GRU", 2, 1, linear_before_reset="linear_before_reset"),
}
