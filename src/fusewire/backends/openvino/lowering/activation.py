"""Activations that the engine has itself; it fuses them into the preceding node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Lower,
    Ov,
    Table,
    const,
    elementwise,
    number,
    on_ints,
    select,
)
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.ir.graph import Node

Activation: TypeAlias = Callable[[Node, Ov], Ov]


def relu(x: Ov) -> Ov:
    """Keep NaN, which the engine's own drops: of two operands it gives the second for NaN."""
    return ops.maximum(number(0, x), x)


def _gelu(node: Node, x: Ov) -> Ov:
    return ops.gelu(x, "tanh" if attr(node, "approximate") else "erf")


def _hard_sigmoid(node: Node, x: Ov) -> Ov:
    alpha, beta = (const(float(attr(node, name)), "f32") for name in ("alpha", "beta"))
    return ops.hard_sigmoid(x, alpha, beta)


def _leaky_relu(s: Any, node: Node, x: Ov) -> Ov:
    return ops.prelu(x, const([float(attr(node, "alpha"))], "f32"))


# What the engine drops NaN of, and by what nodes.
LIMITED: Mapping[str, Activation] = {
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda node, x: ops.hswish(x),
    "relu6": lambda node, x: ops.clamp(x, 0.0, 6.0),
    "hard_tanh": lambda node, x: ops.clamp(x, float(attr(node, "low")), float(attr(node, "high"))),
}


def _kept(function: Activation) -> Lower:
    return lambda s, node, x: select(ops.is_nan(x), x, function(node, x))


def _finite_gelu(s: Any, node: Node, x: Ov) -> Ov:
    # The engine has NaN at infinity (2026.4.1).
    return select(ops.equal(x, number(np.inf, x)), x, _gelu(node, x))


def _plain(function: Activation) -> Lower:
    return lambda s, node, x: function(node, x)


OWN: Mapping[str, Lower] = {
    "relu": elementwise(ops.relu),
    "gelu": _plain(_gelu),
    **{name: _plain(function) for name, function in LIMITED.items()},
}
TABLE: Table = {
    "relu": Entry(on_ints(relu), "fi"),
    "gelu": Entry(_finite_gelu),
    "leaky_relu": Entry(_leaky_relu),
    "silu": Entry(elementwise(lambda x: ops.swish(x))),
    **{name: Entry(_kept(function)) for name, function in LIMITED.items()},
}
