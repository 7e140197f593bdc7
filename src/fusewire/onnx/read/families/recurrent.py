"""Recurrent layers. Ours are ONNX's, but for how activations are spelled and axes are laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fusewire.ir.graph import Value
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import movement, recurrent
from fusewire.ops.declare import Op
from fusewire.ops.recurrent import DIRECTIONS

Layer: TypeAlias = Op[tuple[Value, ...]]
# Our name, and how many of alpha and beta it takes with what they are when not given.
ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "tanh": ("tanh", ()),
    "sigmoid": ("sigmoid", ()),
    "relu": ("relu", ()),
    "softsign": ("softsign", ()),
    "softplus": ("softplus", ()),
    "affine": ("affine", (1.0, 0.0)),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    "leakyrelu": ("leaky_relu", (0.01,)),
    "thresholdedrelu": ("thresholded_relu", (1.0,)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "elu": ("elu", (1.0,)),
}


def activations(call: OnnxCall, default: Sequence[str]) -> tuple[Any, ...]:
    """Spell activations; alphas and betas are listed for those that take some, in order."""
    alphas, betas = (list(call.attr(f"activation_{n}", ())) for n in ("alpha", "beta"))
    found = []
    for name in call.attr("activations") or default:
        if name.lower() not in ACTIVATIONS:
            call.refuse(f"activations are {', '.join(ACTIVATIONS)}; found {name!r}.")
        ours, defaults = ACTIVATIONS[name.lower()]
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
        "activations": activations(call, default)[:most],
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


def _layer(
    op: Op[tuple[Value, ...]], default: str, operands: int, states: int, *flags: str
) -> Read:
    """Make the converter of a layer; before opset 14 there was no layout."""

    def convert(call: OnnxCall) -> Converted:
        given = [call.get(i) for i in range(operands)]
        attrs = settings(call, default.split()) | {flag: call.flag(flag) for flag in flags}
        return run(call, op, given, states, **attrs)

    return convert


TABLE: Mapping[str, Read] = {
    "RNN": _layer(recurrent.rnn, "tanh", 6, 1),
    "LSTM": _layer(recurrent.lstm, "sigmoid tanh tanh", 8, 2, "input_forget"),
    "GRU": _layer(recurrent.gru, "sigmoid tanh", 6, 1, "linear_before_reset"),
}
