"""Arithmetic and functions of elements."""

from __future__ import annotations

import math
from typing import Any

from fusewire.dtypes import bool_, float16
from fusewire.frontends.torch.aten.rows import Convert, Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import activation, elementwise, logic
from fusewire.ops.declare import Op

ROWS = Rows()

# One operand, of the result's dtype: floats for integers where the function has no integers.
_UNARY = {
    "sqrt": elementwise.sqrt,
    "rsqrt": elementwise.rsqrt,
    "exp": elementwise.exp,
    "exp2": elementwise.exp2,
    "expm1": elementwise.expm1,
    "log": elementwise.log,
    "log2": elementwise.log2,
    "log10": elementwise.log10,
    "log1p": elementwise.log1p,
    "sin": elementwise.sin,
    "cos": elementwise.cos,
    "tan": elementwise.tan,
    "asin": elementwise.asin,
    "acos": elementwise.acos,
    "atan": elementwise.atan,
    "sinh": elementwise.sinh,
    "cosh": elementwise.cosh,
    "tanh": elementwise.tanh,
    "asinh": elementwise.asinh,
    "acosh": elementwise.acosh,
    "atanh": elementwise.atanh,
    "erf": elementwise.erf,
    "erfc": elementwise.erfc,
    "lgamma": elementwise.lgamma,
    "reciprocal": elementwise.reciprocal,
    "sigmoid": activation.sigmoid,
    "neg": elementwise.negative,
}
# Functions that leave integers as they are.
_ROUNDING = {
    "ceil": elementwise.ceil,
    "floor": elementwise.floor,
    "round": elementwise.round_,
    "trunc": elementwise.trunc,
}


def _unary(op: Op[Value]) -> Convert:
    return lambda call, x: op(call.value(x))


def _rounding(op: Op[Value]) -> Convert:
    return lambda call, x: op(x) if x.tensor.dtype.is_float else x


for _name, _op in _UNARY.items():
    ROWS.add(_name, ops=_op.name)(_unary(_op))
for _name, _op in _ROUNDING.items():
    ROWS.add(_name, ops=_op.name)(_rounding(_op))


@ROWS.add("digamma", "special_digamma", ops="digamma")
def _digamma(call: AtenCall, x: Value) -> Value:
    of = call.value(x)
    # PyTorch gives -inf at 0 and inf at -0.
    pole = elementwise.negative(elementwise.copysign(call.value(math.inf), of))
    return logic.where(logic.equal(of, 0), pole, elementwise.digamma(of))


@ROWS.add("round.decimals", ops="round")
def _round_to(call: AtenCall, x: Value, decimals: int) -> Value:
    if not x.tensor.dtype.is_float:
        return x
    factor = 10.0 ** abs(decimals)
    if decimals >= 0:
        return elementwise.divide(elementwise.round_(elementwise.multiply(x, factor)), factor)
    return elementwise.multiply(elementwise.round_(elementwise.divide(x, factor)), factor)


@ROWS.add("abs", ops="abs")
def _abs(call: AtenCall, x: Value) -> Value:
    return x if x.tensor.dtype is bool_ else elementwise.abs_(x)


@ROWS.add("sign", "sgn", ops="sign")
def _sign(call: AtenCall, x: Value) -> Value:
    if x.tensor.dtype is bool_:
        return x
    if x.tensor.dtype.is_complex:
        size = elementwise.abs_(x)
        unit = elementwise.divide(x, call.value(logic.where(logic.equal(size, 0), 1.0, size)))
        return logic.where(logic.equal(size, 0), call.value(0), unit)
    if x.tensor.dtype.is_float:
        # PyTorch gives 0 for NaN.
        return logic.where(logic.isnan(x), 0.0, elementwise.sign(x))
    return elementwise.sign(x)


@ROWS.add("square", ops="square")
def _square(call: AtenCall, x: Value) -> Value:
    return elementwise.square(call.value(x))


@ROWS.add("positive", "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh",
          "detach_", "resolve_conj", "resolve_neg", "alias_copy", "_conj_physical_like",
          "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
          ops="the operand itself")  # fmt: skip
def _same(call: AtenCall, x: Value, *options: Any) -> Value:
    if call.name.partition(".")[2].partition(".")[0].endswith("dropout") and options[1]:
        raise call.training_refusal("it draws random numbers in training.")
    return x


@ROWS.add("native_dropout", ops="the operand itself")
def _native_dropout(call: AtenCall, x: Value, rate: float, train: bool | None) -> Any:
    if train or train is None:
        raise call.training_refusal("it draws random numbers in training.")
    return x, logic.equal(x, x)


def _scaled(call: AtenCall, y: Any, alpha: Any) -> Value:
    value = call.value(y)
    return value if alpha == 1 else elementwise.multiply(value, call.value(alpha))


@ROWS.add("add.Tensor", "add.Scalar", ops="add")
def _add(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Value:
    if call.dtype is bool_:
        return logic.logical_or(call.value(x), call.value(y if alpha else False))
    return elementwise.add(call.value(x), _scaled(call, y, alpha))


@ROWS.add("sub.Tensor", "sub.Scalar", ops="subtract")
def _sub(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Value:
    return elementwise.subtract(call.value(x), _scaled(call, y, alpha))


@ROWS.add("rsub.Tensor", "rsub.Scalar", ops="subtract")
def _rsub(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Value:
    return elementwise.subtract(call.value(y), _scaled(call, x, alpha))


@ROWS.add("mul.Tensor", "mul.Scalar", ops="multiply")
def _mul(call: AtenCall, x: Any, y: Any) -> Value:
    left, right = call.values(x, y)
    if call.dtype is bool_:
        return logic.logical_and(left, right)
    return elementwise.multiply(left, right)


@ROWS.add("div.Tensor", "div.Scalar", ops="divide")
def _div(call: AtenCall, x: Any, y: Any) -> Value:
    return elementwise.divide(*call.values(x, y))


@ROWS.add("div.Tensor_mode", "div.Scalar_mode", ops="divide, floor_divide, truncate_divide")
def _div_mode(call: AtenCall, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    left, right = call.values(x, y)
    if rounding_mode is None:
        return elementwise.divide(left, right)
    if rounding_mode == "floor":
        return _floor_divide(call, left, right)
    if call.dtype.is_float:
        return elementwise.trunc(elementwise.divide(left, right))
    return elementwise.truncate_divide(left, right)


@ROWS.add("floor_divide", "floor_divide.Scalar", ops="floor_divide")
def _floor_divide(call: AtenCall, x: Any, y: Any) -> Value:
    left, right = call.values(x, y)
    if not call.dtype.is_float:
        return elementwise.floor_divide(left, right)
    # As PyTorch rounds, and infinite for a division by 0.
    quotient = elementwise.divide(left, right)
    return logic.where(logic.equal(right, 0), quotient, elementwise.floor_divide(left, right))


@ROWS.add("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", ops="remainder")
def _remainder(call: AtenCall, x: Any, y: Any) -> Value:
    return elementwise.remainder(*call.values(x, y))


@ROWS.add("fmod.Tensor", "fmod.Scalar", ops="fmod")
def _fmod(call: AtenCall, x: Any, y: Any) -> Value:
    return elementwise.fmod(*call.values(x, y))


@ROWS.add("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", ops="power, square, sqrt, rsqrt")
def _pow(call: AtenCall, x: Any, y: Any) -> Value:
    base = call.value(x)
    if call.dtype is bool_:
        return logic.logical_or(base, logic.logical_not(call.value(y)))
    if not isinstance(y, Value) and isinstance(y, int | float) and y == 2:
        return elementwise.square(base)
    if not isinstance(y, Value) and y in (0.5, -0.5) and call.dtype.is_float:
        root = elementwise.sqrt if y > 0 else elementwise.rsqrt
        return root(_without_sign(base) if call.dtype is float16 else base)
    if call.dtype.is_complex:
        return _complex_power(call, base, call.value(y))
    return elementwise.power(base, call.value(y))


def _without_sign(x: Value) -> Value:
    """Drop the sign of -0 and -inf, which have a power, but not a root.

    PyTorch takes a root for a power of 0.5 of all floats but these of 16 bits.
    """
    has_power = logic.logical_or(logic.equal(x, 0), logic.equal(x, -math.inf))
    return logic.where(has_power, elementwise.abs_(x), x)


def _complex_power(call: AtenCall, x: Value, y: Value) -> Value:
    raise call.refusal("there is no power of complex numbers. Use torch.polar and real numbers.")


@ROWS.add("atan2", ops="atan2")
def _atan2(call: AtenCall, x: Any, y: Any) -> Value:
    return elementwise.atan2(*call.values(x, y))


@ROWS.add("copysign.Tensor", "copysign.Scalar", ops="copysign")
def _copysign(call: AtenCall, x: Any, y: Any) -> Value:
    return elementwise.copysign(*call.values(x, y))


@ROWS.add("nextafter", ops="nextafter")
def _nextafter(call: AtenCall, x: Any, y: Any) -> Value:
    return elementwise.nextafter(*call.values(x, y))


@ROWS.add("hypot", ops="hypot")
def _hypot(call: AtenCall, x: Any, y: Any) -> Value:
    return elementwise.hypot(*call.values(x, y))


@ROWS.add("logaddexp", ops="logaddexp")
def _logaddexp(call: AtenCall, x: Any, y: Any) -> Value:
    return elementwise.logaddexp(*call.values(x, y))


@ROWS.add("maximum", ops="maximum")
def _maximum(call: AtenCall, x: Any, y: Any) -> Value:
    left, right = call.values(x, y)
    op = logic.logical_or if call.dtype is bool_ else elementwise.maximum
    return op(left, right)


@ROWS.add("minimum", ops="minimum")
def _minimum(call: AtenCall, x: Any, y: Any) -> Value:
    left, right = call.values(x, y)
    op = logic.logical_and if call.dtype is bool_ else elementwise.minimum
    return op(left, right)


@ROWS.add("fmax", ops="maximum")
def _fmax(call: AtenCall, x: Any, y: Any) -> Value:
    return _ignoring_nan(call, x, y, _maximum)


@ROWS.add("fmin", ops="minimum")
def _fmin(call: AtenCall, x: Any, y: Any) -> Value:
    return _ignoring_nan(call, x, y, _minimum)


def _ignoring_nan(call: AtenCall, x: Any, y: Any, extreme: Convert) -> Value:
    left, right = call.values(x, y)
    best: Value = extreme(call, left, right)
    if not call.dtype.is_float:
        return best
    rest = logic.where(logic.isnan(right), left, best)
    return logic.where(logic.isnan(left), right, rest)


@ROWS.add("lerp.Scalar", "lerp.Tensor", ops="add, subtract, multiply")
def _lerp(call: AtenCall, x: Value, y: Value, weight: Any) -> Value:
    """Begin at the nearer end, as PyTorch does: it differs where an end is infinite."""
    start, end, share = call.values(x, y, weight)
    difference = elementwise.subtract(end, start)
    from_start = elementwise.add(start, elementwise.multiply(difference, share))
    if not isinstance(weight, Value) and abs(weight) < 0.5:
        return from_start
    rest = elementwise.subtract(call.value(1), share)
    from_end = elementwise.subtract(end, elementwise.multiply(difference, rest))
    if not isinstance(weight, Value):
        return from_end
    return logic.where(logic.less(elementwise.abs_(share), 0.5), from_start, from_end)


@ROWS.add("addcmul", ops="add, multiply")
def _addcmul(call: AtenCall, x: Value, left: Value, right: Value, value: Any = 1) -> Value:
    product = elementwise.multiply(*call.values(left, right))
    scaled = product if value == 1 else elementwise.multiply(product, call.value(value))
    return elementwise.add(call.value(x), scaled)


@ROWS.add("addcdiv", ops="add, divide")
def _addcdiv(call: AtenCall, x: Value, left: Value, right: Value, value: Any = 1) -> Value:
    quotient = elementwise.divide(*call.values(left, right))
    scaled = quotient if value == 1 else elementwise.multiply(quotient, call.value(value))
    return elementwise.add(call.value(x), scaled)


@ROWS.add("clamp", "clamp.Tensor", "clip", "clip.Tensor", ops="clip")
def _clamp(call: AtenCall, x: Value, low: Any = None, high: Any = None) -> Value:
    bounds = [None if bound is None else call.value(bound) for bound in (low, high)]
    return elementwise.clip(call.value(x), *bounds)


@ROWS.add("clamp_min", "clamp_min.Tensor", ops="maximum")
def _clamp_min(call: AtenCall, x: Value, low: Any) -> Value:
    return elementwise.maximum(*call.values(x, low))


@ROWS.add("clamp_max", "clamp_max.Tensor", ops="minimum")
def _clamp_max(call: AtenCall, x: Value, high: Any) -> Value:
    return elementwise.minimum(*call.values(x, high))


@ROWS.add("frac", ops="subtract, trunc")
def _frac(call: AtenCall, x: Value) -> Value:
    return elementwise.subtract(x, elementwise.trunc(x))


@ROWS.add("deg2rad", ops="multiply")
def _deg2rad(call: AtenCall, x: Value) -> Value:
    return elementwise.multiply(call.value(x), call.value(math.pi / 180))


@ROWS.add("rad2deg", ops="multiply")
def _rad2deg(call: AtenCall, x: Value) -> Value:
    return elementwise.multiply(call.value(x), call.value(180 / math.pi))


@ROWS.add("complex", ops="complex")
def _complex(call: AtenCall, real: Value, imag: Value) -> Value:
    return elementwise.complex_(real, imag)


@ROWS.add("real", ops="real")
def _real(call: AtenCall, x: Value) -> Value:
    return elementwise.real(x) if x.tensor.dtype.is_complex else x


@ROWS.add("imag", ops="imag")
def _imag(call: AtenCall, x: Value) -> Value:
    return elementwise.imag(x)


@ROWS.add("_conj", "_conj_physical", "conj_physical", "conj", ops="conj")
def _conj(call: AtenCall, x: Value) -> Value:
    return elementwise.conj(x) if x.tensor.dtype.is_complex else x


@ROWS.add("angle", ops="angle")
def _angle(call: AtenCall, x: Value) -> Value:
    if x.tensor.dtype.is_complex:
        return elementwise.angle(x)
    value = call.value(x)
    angle = logic.where(logic.less(value, 0), call.value(math.pi), call.value(0))
    return logic.where(logic.isnan(value), value, angle) if x.tensor.dtype.is_float else angle


@ROWS.add("polar", ops="complex, cos, sin")
def _polar(call: AtenCall, size: Value, angle: Value) -> Value:
    real = elementwise.multiply(size, elementwise.cos(angle))
    return elementwise.complex_(real, elementwise.multiply(size, elementwise.sin(angle)))


@ROWS.add("view_as_real", ops="real, imag, stack")
def _view_as_real(call: AtenCall, x: Value) -> Value:
    from fusewire.ops.movement import stack

    return stack(elementwise.real(x), elementwise.imag(x), axis=x.tensor.rank)


@ROWS.add("view_as_complex", ops="complex")
def _view_as_complex(call: AtenCall, x: Value) -> Value:
    from fusewire.ops.movement import squeeze
    from fusewire.ops.slicing import slice_axis

    last = x.tensor.rank - 1
    parts = [squeeze(slice_axis(x, last, slice(i, i + 1)), axes=(last,)) for i in range(2)]
    return elementwise.complex_(*parts)
