"""Recurrent layers. Ours are ONNX's, except for names of activations and order of axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fusewire.dtypes import bool_, int32
from fusewire.errors import FormatError
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.writing import attrs_of, either, operand, require_filled
from fusewire.ops import movement, recurrent
from fusewire.ops.declare import Op
from fusewire.ops.recurrent import DIRECTIONS
from fusewire.ops.table import get_op

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

Layer: TypeAlias = Op[tuple[Value, ...]]
# Our name, ONNX's, and alpha and beta where it takes them, as they are when not given.
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


_BY_ONNX_NAME = {theirs.lower(): (ours, numbers) for ours, (theirs, numbers) in ACTIVATIONS.items()}


def _read_activations(call: OnnxCall, default: Sequence[str]) -> tuple[Any, ...]:
    """Spell activations; alphas and betas are listed for those that take some, in order."""
    alphas, betas = (list(call.attr(f"activation_{n}", ())) for n in ("alpha", "beta"))
    found = []
    for name in call.attr("activations") or default:
        if name.lower() not in _BY_ONNX_NAME:
            call.refuse(f"activations are {', '.join(_BY_ONNX_NAME)}; found {name!r}.")
        ours, defaults = _BY_ONNX_NAME[name.lower()]
        taken = zip((alphas, betas), defaults, strict=False)
        numbers = [given.pop(0) if given else value for given, value in taken]
        found.append((ours, *numbers) if numbers else ours)
    return tuple(found)


def direction(call: OnnxCall) -> str:
    """Read the direction."""
    found: str = call.attr("direction", "forward").lower()
    if found not in DIRECTIONS:
        call.refuse(f"direction is one of {', '.join(DIRECTIONS)}, found {found!r}.")
    return found


def settings(call: OnnxCall, default: Sequence[str]) -> dict[str, Any]:
    """Read the attributes that all layers share."""
    told = direction(call)
    # Files list activations of the other direction as well when there is none.
    most = len(default) * len(DIRECTIONS[told])
    return {
        "direction": told,
        "activations": _read_activations(call, default)[:most],
        "clip": call.attr("clip"),
    }


def _swapped(x: Value | None, *perm: int) -> Value | None:
    return None if x is None else movement.transpose(x, perm=perm)


def run(
    call: OnnxCall,
    op: Op[tuple[Value, ...]],
    operands: Sequence[Value | None],
    states: int,
    **attrs: Any,
) -> Sequence[Value]:
    """Run a layer on x, w, r, bias, lengths, states, ...; with layout 1 batches come first."""
    if not call.flag("layout"):
        return op(*operands, **attrs)
    x, *rest = operands
    rest[4 : 4 + states] = [_swapped(state, 1, 0, 2) for state in rest[4 : 4 + states]]
    y, *last = op(_swapped(x, 1, 0, 2), *rest, **attrs)
    return [
        movement.transpose(y, perm=(2, 0, 1, 3)),
        *(movement.transpose(state, perm=(1, 0, 2)) for state in last),
    ]


def _read_layer(
    op: Op[tuple[Value, ...]], default: str, operands: int, states: int, *flags: str
) -> Read:
    """Make the converter of a layer; before opset 14 there was no layout."""

    def convert(call: OnnxCall) -> Converted:
        given = [call.get(i) for i in range(operands)]
        attrs = settings(call, default.split()) | {flag: call.flag(flag) for flag in flags}
        return run(call, op, given, states, **attrs)

    return convert


def _write_activations(e: Emitter, node: Node, count: int) -> dict[str, Any]:
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


def _write_layer(op: str, count: int, states: int, **flags: str) -> Write:
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
        given = _write_activations(e, node, count)
        given |= {"hidden_size": hidden, "direction": attrs["direction"], "clip": attrs["clip"]}
        given |= {theirs: int(attrs[ours]) for theirs, ours in flags.items()}
        ends = None if lengths is None else e.cast(lengths, int32)
        made = [x.dtype] * (states + 1)

        def run(e: Emitter) -> list[Ref]:
            return e.many(op, x, w, r, bias, ends, *rest, made=made, **given)

        if not may_be_idle(node) or not e.target.is_cautious:
            return run(e)
        # Nothing to do, which only the run can tell, stops the process of an engine.
        steps = time * batch
        any_ = e("Greater", e.scalar(steps), e.scalar(0), dtype=bool_)
        return either(e, node, any_, run, lambda inner: _idle(inner, node, rest[:states]))

    return write


def may_be_idle(node: Node) -> bool:
    """Tell whether only a run tells if a layer has anything to do."""
    time, batch, _ = operand(node, 0).tensor.shape
    return not isinstance(time * batch, int)


def _idle(e: Emitter, node: Node, states: Sequence[Ref | None]) -> list[Ref]:
    """Give what a layer without steps gives: no rows, and the states it began with."""
    zeros = []
    for value in node.outputs:
        zero = e.constant(np.zeros((), value.tensor.dtype.numpy))
        zeros.append(e("Expand", zero, e.shape(value.tensor.shape)))
    kept = zip(states, zeros[1:], strict=True)
    return [zeros[0], *(zero if state is None else state for state, zero in kept)]


READERS: Mapping[str, Read] = {
    "RNN": _read_layer(recurrent.rnn, "tanh", 6, 1),
    "LSTM": _read_layer(recurrent.lstm, "sigmoid tanh tanh", 8, 2, "input_forget"),
    "GRU": _read_layer(recurrent.gru, "sigmoid tanh", 6, 1, "linear_before_reset"),
}


WRITERS: Mapping[str, Write] = {
    "rnn": _write_layer("RNN", 1, 1),
    "lstm": _write_layer("LSTM", 3, 2, input_forget="input_forget"),
    "gru": _write_layer("GRU", 2, 1, linear_before_reset="linear_before_reset"),
}
