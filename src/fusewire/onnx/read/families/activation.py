"""Activations, whole: engines that have them are given them so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.dtypes import float64
from fusewire.ir.dims import size
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import activation, movement, normalization
from fusewire.ops.declare import Op
from fusewire.ops.inference import axis_of


def _plain(op: Op[Any], **attrs: tuple[str, float]) -> Read:
    """Take one operand; ``attrs`` give for ours ONNX's attribute and its default."""
    return lambda call: op(
        call[0], **{ours: call.attr(name, default) for ours, (name, default) in attrs.items()}
    )


def _alpha(op: Op[Any], default: float) -> Read:
    return _plain(op, alpha=("alpha", default))


def _selu(call: OnnxCall) -> Converted:
    # What was rounded to five digits at first has the digits of float32 since.
    alpha, gamma = (
        (1.6732, 1.0507) if call.opset < 6 else (1.67326319217681884, 1.05070102214813232)
    )
    return activation.selu(
        call[0], alpha=call.attr("alpha", alpha), gamma=call.attr("gamma", gamma)
    )


def _gelu(call: OnnxCall) -> Converted:
    approximate = call.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        call.refuse(f"approximate must be none or tanh, found {approximate!r}.")
    return activation.gelu(call[0], approximate=approximate == "tanh")


def _prelu(call: OnnxCall) -> Converted:
    x, slope = call[0], call[1]
    rank = x.tensor.rank
    if call.opset < 7 and slope.tensor.rank == 1 and rank > 2:
        # One slope a channel, which is axis 1.
        slope = movement.reshape(slope, shape=(slope.tensor.size, *([1] * (rank - 2))))
    return activation.prelu(x, slope)


def _shrink(call: OnnxCall) -> Converted:
    x = call[0]
    limit, bias = call.attr("lambd", 0.5), call.attr("bias", 0.0)
    of = x.tensor.dtype
    if of.is_float:
        return activation.shrink(x, limit=limit, bias=bias)
    # Compared and moved as numbers, then cut to whole ones.
    return cast(activation.shrink(cast(x, float64), limit=limit, bias=bias), of)


def _along(op: Op[Value]) -> Read:
    """Normalize along an axis; before opset 13, along all axes from one on taken together."""

    def convert(call: OnnxCall) -> Converted:
        x = call[0]
        if call.opset >= 13:
            return op(x, axis=call.attr("axis", -1))
        shape = x.tensor.shape
        axis = call.attr("axis", 1)
        axis = axis_of(axis, len(shape)) if axis < len(shape) else axis
        if all(dim == 1 for dim in shape[axis + 1 :]) and axis < len(shape):
            return op(x, axis=axis)
        flat = movement.reshape(x, shape=(size(shape[:axis]), size(shape[axis:])))
        return movement.reshape(op(flat, axis=1), shape=shape)

    return convert


TABLE: Mapping[str, Read] = {
    "Relu": _plain(activation.relu),
    "Sigmoid": _plain(activation.sigmoid),
    "Softplus": _plain(activation.softplus),
    "Softsign": _plain(activation.softsign),
    "Mish": _plain(activation.mish),
    "HardSwish": _plain(activation.hard_swish),
    "LeakyRelu": _alpha(activation.leaky_relu, 0.01),
    "Elu": _alpha(activation.elu, 1.0),
    "Celu": _alpha(activation.celu, 1.0),
    "ThresholdedRelu": _alpha(activation.thresholded_relu, 1.0),
    "Swish": _alpha(activation.swish, 1.0),
    "HardSigmoid": _plain(activation.hard_sigmoid, alpha=("alpha", 0.2), beta=("beta", 0.5)),
    "Selu": _selu,
    "Gelu": _gelu,
    "PRelu": _prelu,
    "Shrink": _shrink,
    "Softmax": _along(normalization.softmax),
    "LogSoftmax": _along(normalization.log_softmax),
    "Hardmax": _along(normalization.hardmax),
}
