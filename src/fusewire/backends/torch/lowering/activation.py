"""Activations and normalizations that PyTorch has kernels for."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's own documentation has it

from fusewire.backends.torch.lowering.signature import (
    Function,
    Lower,
    Sized,
    operand,
    plain,
    sized,
    with_attrs,
)
from fusewire.backends.torch.storage import Tensor
from fusewire.ir.graph import Node
from fusewire.ops.inference import axis_of


def _gelu(approximate: bool) -> Function:
    kind = "tanh" if approximate else "none"
    return lambda x: F.gelu(x, approximate=kind)


def _clip(x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    if low is None and high is None:
        return x
    return torch.clamp(x, low, high)


def _softplus(x: Tensor) -> Tensor:
    # Its own threshold of 20 leaves off what float64 holds.
    return F.softplus(x, threshold=40.0)


def _layer_norm(node: Node) -> Function:
    attrs: Any = node.attrs
    epsilon, rank = attrs["epsilon"], operand(node).rank
    axis = axis_of(attrs["axis"], rank)
    types = [None if v is None else v.tensor for v in node.inputs]
    inner = types[0].shape[axis:] if types[0] is not None else ()
    fits = all(of is None or of.shape == inner for of in types[1:])

    def function(x: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
        if fits:
            return torch.layer_norm(x, x.shape[axis:], scale, bias, epsilon, False)
        found = torch.layer_norm(x, x.shape[axis:], None, None, epsilon, False)
        found = found if scale is None else found * scale
        return found if bias is None else found + bias

    return function


def _rms_norm(node: Node) -> Function:
    attrs: Any = node.attrs
    epsilon, axis = attrs["epsilon"], axis_of(attrs["axis"], operand(node).rank)

    def function(x: Tensor, scale: Tensor | None) -> Tensor:
        found = torch.rms_norm(x, x.shape[axis:], None, epsilon)
        return found if scale is None else found * scale

    return function


def _batch_norm(node: Node) -> Function:
    epsilon: Any = node.attrs["epsilon"]

    def function(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        if not x.numel():
            return x.clone()
        return torch.batch_norm(x, scale, bias, mean, variance, False, 0.0, epsilon, False)

    return function


def _group_norm(node: Node) -> Function | Sized:
    epsilon: Any = node.attrs["epsilon"]
    groups: Any = node.attrs["groups"]

    def function(x: Tensor, scale: Any, bias: Any, sizes: tuple[int, ...]) -> Tensor:
        return torch.group_norm(x, sizes[0], scale, bias, epsilon, False)

    return sized((groups,), function)


def _instance_norm(node: Node) -> Function:
    epsilon: Any = node.attrs["epsilon"]
    return lambda x, scale, bias: torch.group_norm(x, x.shape[1], scale, bias, epsilon, False)


TABLE: dict[str, Lower] = {
    "relu": plain(torch.relu),
    "relu6": plain(lambda x: torch.clamp(x, 0.0, 6.0)),
    "hard_tanh": with_attrs(lambda low, high: lambda x: torch.clamp(x, low, high)),
    "leaky_relu": with_attrs(lambda alpha: lambda x: F.leaky_relu(x, alpha)),
    "elu": with_attrs(lambda alpha: lambda x: F.elu(x, alpha)),
    "celu": with_attrs(lambda alpha: lambda x: F.celu(x, alpha)),
    "softplus": plain(_softplus),
    "softsign": plain(lambda x: x / (x.abs() + 1.0)),
    "log_sigmoid": plain(F.logsigmoid),
    "silu": plain(F.silu),
    "mish": plain(F.mish),
    "hard_swish": plain(F.hardswish),
    "hard_sigmoid": with_attrs(
        lambda alpha, beta: lambda x: torch.clamp(x * alpha + beta, 0.0, 1.0)
    ),
    "gelu": with_attrs(_gelu),
    "glu": with_attrs(lambda axis: lambda x: F.glu(x, axis)),
    "prelu": plain(lambda x, y: torch.where(x < 0, x * y, x)),
    "clip": plain(_clip),
    "softmax": with_attrs(lambda axis: lambda x: torch.softmax(x, axis)),
    "log_softmax": with_attrs(lambda axis: lambda x: torch.log_softmax(x, axis)),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
}
