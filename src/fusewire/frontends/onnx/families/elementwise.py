"""Elementwise ops: arithmetic, comparison, logic, activations, casts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from fusewire import dtypes
from fusewire.frontends.onnx.call import Call, Convert, Converted
from fusewire.frontends.onnx.pieces import cast
from fusewire.ir.graph import Value
from fusewire.ops import activation, elementwise, logic, movement
from fusewire.ops.declare import Op


def same(op: Op[Any]) -> Convert:
    """Take the operands in their order."""
    return lambda call: op(*call.rest)


def floats(op: Op[Any], **defaults: float) -> Convert:
    """Take float attributes of the same name."""
    return lambda call: op(
        call[0], **{name: call.attr(name, default) for name, default in defaults.items()}
    )


def aligned(call: Call) -> tuple[Value, Value]:
    """Give two operands that broadcast, also as ONNX did before opset 7.

    Then the second had to say so, and could begin at an axis of the first that is not the last.
    """
    x, y = call[0], call[1]
    axis = call.attr("axis")
    if call.opset >= 7 or axis is None or not call.flag("broadcast"):
        return x, y
    rank, place = x.tensor.rank, axis % x.tensor.rank if x.tensor.rank else 0
    missing = rank - place - y.tensor.rank
    if missing > 0:
        shape = (*y.tensor.shape, *([1] * missing))
        y = movement.reshape(y, shape=shape)
    return x, y


def binary(op: Op[Any]) -> Convert:
    return lambda call: op(*aligned(call))


def _divide(call: Call) -> Converted:
    x, y = aligned(call)
    # Integers are divided as C does.
    op = elementwise.divide if x.tensor.dtype.is_float else elementwise.truncate_divide
    return op(x, y)


def _mod(call: Call) -> Converted:
    return (elementwise.fmod if call.flag("fmod") else elementwise.remainder)(call[0], call[1])


def _power(call: Call) -> Converted:
    x, y = aligned(call)
    of = x.tensor.dtype
    if y.tensor.dtype is of:
        return elementwise.power(x, y)
    # The result has the dtype of the base; what it is computed in must hold both.
    if y.tensor.dtype.is_float and not of.is_float:
        wide = dtypes.float64
        found = elementwise.power(cast(x, wide), cast(y, wide))
        return cast(found, of)
    return elementwise.power(x, cast(y, of))


def folded(op: Op[Any]) -> Convert:
    """Combine any number of operands from the left."""
    return lambda call: reduce(op, call.rest)


def _mean(call: Call) -> Converted:
    total = reduce(elementwise.add, call.rest)
    return elementwise.divide(total, float(len(call.inputs)))


def _identity(call: Call) -> Converted:
    return call[0]


TABLE: Mapping[str, Convert] = {
    "Add": binary(elementwise.add),
    "Sub": binary(elementwise.subtract),
    "Mul": binary(elementwise.multiply),
    "Div": _divide,
    "Mod": _mod,
    "Pow": _power,
    "Max": folded(elementwise.maximum),
    "Min": folded(elementwise.minimum),
    "Sum": folded(elementwise.add),
    "Mean": _mean,
    "Identity": _identity,
    "Relu": same(activation.relu),
    "Sigmoid": same(activation.sigmoid),
    "Equal": binary(logic.equal),
    "Not": same(logic.logical_not),
}
