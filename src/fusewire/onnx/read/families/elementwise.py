"""Elementwise ops: arithmetic, comparison, logic, bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from fusewire import dtypes
from fusewire.ir.builder import constant
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast, scalar
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import elementwise, logic, movement
from fusewire.ops.declare import Op


def same(op: Op[Any]) -> Read:
    """Take the operands in their order."""
    return lambda call: op(*call.rest)


def aligned(call: OnnxCall) -> tuple[Value, Value]:
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


def binary(op: Op[Any]) -> Read:
    return lambda call: op(*aligned(call))


def _divide(call: OnnxCall) -> Converted:
    x, y = aligned(call)
    # Integers are divided as C does.
    op = elementwise.divide if x.tensor.dtype.is_float else elementwise.truncate_divide
    return op(x, y)


def _mod(call: OnnxCall) -> Converted:
    return (elementwise.fmod if call.flag("fmod") else elementwise.remainder)(call[0], call[1])


def _power(call: OnnxCall) -> Converted:
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


def folded(op: Op[Any]) -> Read:
    """Combine any number of operands from the left."""
    return lambda call: reduce(op, call.rest)


def _mean(call: OnnxCall) -> Converted:
    total = reduce(elementwise.add, call.rest)
    return elementwise.divide(total, float(len(call.inputs)))


def _identity(call: OnnxCall) -> Converted:
    return call[0]


def _clip(call: OnnxCall) -> Converted:
    x = call[0]
    if call.opset < 11:
        held = [call.attr(name) for name in ("min", "max")]
        bounds = [None if n is None else constant(np.array(n, x.tensor.dtype.numpy)) for n in held]
    else:
        bounds = [scalar(call.get(position)) for position in (1, 2)]
    return x if bounds == [None, None] else logic.clip(x, *bounds)


def _shift(call: OnnxCall) -> Converted:
    direction = call.needed("direction")
    if direction not in ("LEFT", "RIGHT"):
        call.refuse(f"direction must be LEFT or RIGHT, found {direction!r}.")
    x, y = call[0], call[1]
    if direction == "LEFT":
        return logic.shift_left(x, y)
    if y.tensor.dtype.is_signed:
        # A negative amount leaves only signs, as one of the width or more does.
        y = logic.where(logic.less(y, 0), y.tensor.dtype.bits, y)
    return logic.shift_right(x, y)


def _isinf(call: OnnxCall) -> Converted:
    x = call[0]
    negative, positive = (call.flag(f"detect_{side}", 1) for side in ("negative", "positive"))
    found = logic.isinf(x)
    if negative and positive:
        return found
    wide = cast(x, dtypes.float32) if x.tensor.dtype.is_narrow else x
    sides = [logic.greater(wide, 0.0)] if positive else []
    sides += [logic.less(wide, 0.0)] if negative else []
    # Of neither side, none is.
    return logic.logical_and(found, *(sides or [logic.logical_not(found)]))


_UNARY = {
    "Abs": elementwise.abs_,
    "Acos": elementwise.acos,
    "Acosh": elementwise.acosh,
    "Asin": elementwise.asin,
    "Asinh": elementwise.asinh,
    "Atan": elementwise.atan,
    "Atanh": elementwise.atanh,
    "BitwiseNot": logic.bitwise_not,
    "Ceil": elementwise.ceil,
    "Cos": elementwise.cos,
    "Cosh": elementwise.cosh,
    "Erf": elementwise.erf,
    "Exp": elementwise.exp,
    "Floor": elementwise.floor,
    "IsNaN": logic.isnan,
    "Log": elementwise.log,
    "Neg": elementwise.negative,
    "Not": logic.logical_not,
    "Reciprocal": elementwise.reciprocal,
    "Round": elementwise.round_,
    "Sign": elementwise.sign,
    "Sin": elementwise.sin,
    "Sinh": elementwise.sinh,
    "Sqrt": elementwise.sqrt,
    "Tan": elementwise.tan,
    "Tanh": elementwise.tanh,
    "Where": logic.where,
}
_BINARY = {
    "Add": elementwise.add,
    "Sub": elementwise.subtract,
    "Mul": elementwise.multiply,
    "And": logic.logical_and,
    "Or": logic.logical_or,
    "Xor": logic.logical_xor,
    "Equal": logic.equal,
    "Less": logic.less,
    "LessOrEqual": logic.less_equal,
    "Greater": logic.greater,
    "GreaterOrEqual": logic.greater_equal,
    "BitwiseAnd": logic.bitwise_and,
    "BitwiseOr": logic.bitwise_or,
    "BitwiseXor": logic.bitwise_xor,
}
TABLE: Mapping[str, Read] = {
    **{name: same(op) for name, op in _UNARY.items()},
    **{name: binary(op) for name, op in _BINARY.items()},
    "Div": _divide,
    "Mod": _mod,
    "Pow": _power,
    "Max": folded(elementwise.maximum),
    "Min": folded(elementwise.minimum),
    "Sum": folded(elementwise.add),
    "Mean": _mean,
    "Identity": _identity,
    "Clip": _clip,
    "BitShift": _shift,
    "IsInf": _isinf,
}
