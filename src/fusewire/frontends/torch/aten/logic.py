"""Comparisons, bits, tests and choices."""

from __future__ import annotations

from typing import Any

from fusewire.dtypes import bool_
from fusewire.frontends.torch.aten.rows import Convert, Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import elementwise, logic
from fusewire.ops.declare import Op

ROWS = Rows()

_COMPARISONS = {
    "eq": logic.equal,
    "ne": logic.not_equal,
    "lt": logic.less,
    "le": logic.less_equal,
    "gt": logic.greater,
    "ge": logic.greater_equal,
}
_LOGICAL = {
    "logical_and": logic.logical_and,
    "logical_or": logic.logical_or,
    "logical_xor": logic.logical_xor,
}
_BITWISE = {
    "bitwise_and": (logic.bitwise_and, logic.logical_and),
    "bitwise_or": (logic.bitwise_or, logic.logical_or),
    "bitwise_xor": (logic.bitwise_xor, logic.logical_xor),
}
_SHIFTS = {
    "bitwise_left_shift": logic.shift_left,
    "bitwise_right_shift": logic.shift_right,
    "__lshift__": logic.shift_left,
    "__rshift__": logic.shift_right,
}


def _comparison(op: Op[Value]) -> Convert:
    def convert(call: AtenCall, x: Any, y: Any) -> Value:
        left, right = call.together(x, y)
        if left.tensor.dtype is bool_ and op.name not in ("equal", "not_equal"):
            from fusewire.dtypes import uint8

            left, right = call.value(left, uint8), call.value(right, uint8)
        return op(left, right)

    return convert


def _logical(op: Op[Value]) -> Convert:
    return lambda call, x, y: op(call.value(x, bool_), call.value(y, bool_))


def _bitwise(op: Op[Value], of_bools: Op[Value]) -> Convert:
    return lambda call, x, y: (of_bools if call.dtype is bool_ else op)(*call.values(x, y))


def _shift(op: Op[Value]) -> Convert:
    return lambda call, x, y: op(*call.values(x, y))


for _name, _op in _COMPARISONS.items():
    ROWS.add(f"{_name}.Tensor", f"{_name}.Scalar", ops=_op.name)(_comparison(_op))
for _name, _op in _LOGICAL.items():
    ROWS.add(_name, ops=_op.name)(_logical(_op))
for _name, (_op, _of_bools) in _BITWISE.items():
    ROWS.add(f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.Scalar_Tensor", ops=_op.name)(
        _bitwise(_op, _of_bools)
    )
    _short = _name.removeprefix("bitwise")
    ROWS.add(f"_{_short}__.Tensor", f"_{_short}__.Scalar", ops=_op.name)(_bitwise(_op, _of_bools))
for _name, _op in _SHIFTS.items():
    _suffixes = ("Tensor", "Scalar") if _name.startswith("__") else ("Tensor", "Tensor_Scalar")
    ROWS.add(*(f"{_name}.{suffix}" for suffix in _suffixes), ops=_op.name)(_shift(_op))


@ROWS.add("logical_not", ops="logical_not")
def _logical_not(call: AtenCall, x: Value) -> Value:
    return logic.logical_not(call.value(x, bool_))


@ROWS.add("bitwise_not", ops="bitwise_not")
def _bitwise_not(call: AtenCall, x: Value) -> Value:
    return logic.logical_not(x) if x.tensor.dtype is bool_ else logic.bitwise_not(x)


def _never(x: Value) -> Value:
    return logic.not_equal(x, x)


def _both_parts(x: Value, op: Op[Value], join: Op[Value]) -> Value:
    return join(op(elementwise.real(x)), op(elementwise.imag(x)))


def _test(op: Op[Value], join: Op[Value]) -> Convert:
    def convert(call: AtenCall, x: Value) -> Value:
        of = x.tensor.dtype
        if of.is_complex:
            return _both_parts(x, op, join)
        if of.is_float:
            return op(x)
        return logic.logical_not(_never(x)) if op is logic.isfinite else _never(x)

    return convert


ROWS.add("isnan", ops="isnan")(_test(logic.isnan, logic.logical_or))
ROWS.add("isinf", ops="isinf")(_test(logic.isinf, logic.logical_or))
ROWS.add("isfinite", ops="isfinite")(_test(logic.isfinite, logic.logical_and))


@ROWS.add("signbit", ops="signbit")
def _signbit(call: AtenCall, x: Value) -> Value:
    of = x.tensor.dtype
    if of.is_float:
        return logic.signbit(x)
    return _never(x) if of is bool_ else logic.less(x, 0)


@ROWS.add("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", ops="where")
def _where(call: AtenCall, condition: Value, x: Any, y: Any) -> Value:
    return logic.where(call.value(condition, bool_), *call.values(x, y))


@ROWS.add("masked_fill.Scalar", "masked_fill.Tensor", ops="where")
def _masked_fill(call: AtenCall, x: Value, mask: Value, value: Any) -> Value:
    return logic.where(call.value(mask, bool_), call.value(value), x)


@ROWS.add("nan_to_num", ops="where")
def _nan_to_num(
    call: AtenCall, x: Value, nan: float | None, posinf: float | None, neginf: float | None
) -> Value:
    of = x.tensor.dtype
    if not of.is_float:
        return x
    low, high = of.range
    x = logic.where(logic.isnan(x), call.value(0.0 if nan is None else nan), x)
    infinite = call.value(float("inf"))
    x = logic.where(logic.equal(x, infinite), call.value(high if posinf is None else posinf), x)
    negative = call.value(float("-inf"))
    return logic.where(logic.equal(x, negative), call.value(low if neginf is None else neginf), x)


@ROWS.add("heaviside", ops="where")
def _heaviside(call: AtenCall, x: Value, values: Value) -> Value:
    step = call.value(logic.greater(x, 0))
    return logic.where(logic.equal(x, 0), values, step)
