"""Activations."""

from __future__ import annotations

from typing import Any

from fusewire.frontends.torch.aten.rows import Convert, Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import activation, elementwise, logic
from fusewire.ops.declare import Op
from fusewire.ops.movement import reshape

ROWS = Rows()

_PLAIN = {
    "relu6": activation.relu6,
    "silu": activation.silu,
    "mish": activation.mish,
    "log_sigmoid": activation.log_sigmoid,
    "hardswish": activation.hard_swish,
    "selu": activation.selu,
}


def _plain(op: Op[Value]) -> Convert:
    return lambda call, x: op(x)


for _name, _op in _PLAIN.items():
    ROWS.add(_name, ops=_op.name)(_plain(_op))


@ROWS.add("relu", ops="relu")
def _relu(call: AtenCall, x: Value) -> Value:
    return activation.relu(x) if x.tensor.dtype.is_float else elementwise.maximum(x, 0)


@ROWS.add("gelu", ops="gelu")
def _gelu(call: AtenCall, x: Value, approximate: str = "none") -> Value:
    return activation.gelu(x, approximate=approximate == "tanh")


@ROWS.add("leaky_relu", ops="leaky_relu")
def _leaky_relu(call: AtenCall, x: Value, slope: float = 0.01) -> Value:
    return activation.leaky_relu(x, alpha=float(slope))


@ROWS.add("elu", ops="elu")
def _elu(call: AtenCall, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    if scale == 1 and input_scale == 1:
        return activation.elu(x, alpha=float(alpha))
    low = elementwise.expm1(elementwise.multiply(x, float(input_scale)))
    y = logic.where(logic.greater(x, 0), x, elementwise.multiply(low, float(alpha)))
    return elementwise.multiply(y, float(scale))


@ROWS.add("celu", ops="celu")
def _celu(call: AtenCall, x: Value, alpha: Any = 1) -> Value:
    return activation.celu(x, alpha=float(alpha))


@ROWS.add("hardtanh", ops="clip")
def _hardtanh(call: AtenCall, x: Value, low: Any = -1, high: Any = 1) -> Value:
    return elementwise.clip(x, *call.values(low, high))


@ROWS.add("hardsigmoid", ops="hard_sigmoid")
def _hardsigmoid(call: AtenCall, x: Value) -> Value:
    return activation.hard_sigmoid(x, alpha=1 / 6, beta=0.5)


@ROWS.add("softplus", ops="softplus")
def _softplus(call: AtenCall, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    scaled = x if beta == 1 else elementwise.multiply(x, float(beta))
    y = activation.softplus(scaled)
    if beta != 1:
        y = elementwise.divide(y, float(beta))
    # Beyond the threshold PyTorch returns x; from 20 on no float32 differs from it.
    if threshold >= 20 and x.tensor.dtype.bits <= 32:
        return y
    return logic.where(logic.greater(scaled, float(threshold)), x, y)


@ROWS.add("softshrink", ops="shrink")
def _softshrink(call: AtenCall, x: Value, limit: Any = 0.5) -> Value:
    moved = activation.shrink(x, limit=float(limit), bias=float(limit))
    # Ours makes 0 of NaN.
    return logic.where(logic.isnan(x), x, moved)


@ROWS.add("hardshrink", ops="where")
def _hardshrink(call: AtenCall, x: Value, limit: Any = 0.5) -> Value:
    is_small = logic.less_equal(elementwise.abs_(x), call.value(float(limit)))
    return logic.where(is_small, call.value(0), x)


@ROWS.add("threshold", ops="where")
def _threshold(call: AtenCall, x: Value, threshold: Any, value: Any) -> Value:
    return logic.where(logic.less_equal(x, call.value(threshold)), call.value(value), x)


@ROWS.add("prelu", "_prelu_kernel", ops="prelu")
def _prelu(call: AtenCall, x: Value, weight: Value) -> Value:
    if call.name.startswith("aten.prelu") and x.tensor.rank > 1 and weight.tensor.rank == 1:
        # One slope for each channel.
        weight = reshape(weight, shape=(*weight.tensor.shape, *(1,) * (x.tensor.rank - 2)))
    return activation.prelu(x, weight)


@ROWS.add("glu", ops="glu")
def _glu(call: AtenCall, x: Value, dim: int = -1) -> Value:
    return activation.glu(x, axis=dim)


@ROWS.add("rrelu", ops="leaky_relu")
def _rrelu(
    call: AtenCall,
    x: Value,
    low: Any = 0.125,
    high: Any = 1 / 3,
    training: bool = False,
    *rest: Any,
) -> Value:
    if training:
        raise call.training_refusal("it draws random numbers in training.")
    return activation.leaky_relu(x, alpha=(float(low) + float(high)) / 2)
