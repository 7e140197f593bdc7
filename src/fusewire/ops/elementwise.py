"""Elementwise arithmetic on one and two operands, broadcast as in NumPy.

Integers wrap around. Where NumPy leaves integers undefined or raises, the ``doc`` says the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire.dtypes import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMERIC,
    REAL,
    SIGNED,
    DType,
    float32,
    float64,
)
from fusewire.errors import TypeRuleError
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges, special, symbolic
from fusewire.ops.declare import EXACT, CostClass, Family, Op, Tolerance, Trait, ulps
from fusewire.ops.decompose import Decomposition, Formula, in_both
from fusewire.ops.inference import binary_type, broadcast_types, unary_type
from fusewire.ops.logic import equal, logical_or, where
from fusewire.ops.sample import (
    Sample,
    Samples,
    bad,
    binary_samples,
    draw,
    given,
    sample,
    unary_samples,
)

FAMILY = Family("elementwise")

INEXACT = FLOATS + COMPLEX
ONE_ULP = ulps(1)
FOUR_ULPS = ulps(4)
JUMPS = (Trait.DISCONTINUOUS,)
SWAPS = (Trait.COMMUTATIVE,)

_EXTREMES = given([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5])


POSITIVE = unary_samples(0.1, 4.0)
WITHIN_ONE = unary_samples(-0.9, 0.9)


def _unary(
    name: str,
    reference: Callable[..., Any],
    doc: str,
    dtypes: tuple[DType, ...] = FLOATS,
    tolerance: Tolerance = FOUR_ULPS,
    samples: Samples | None = None,
    flops: int = 1,
    traits: tuple[Trait, ...] = (),
    rule: Callable[[TensorType], TensorType] = unary_type,
    **facts: Any,
) -> Op[Value]:
    drawn = samples or unary_samples()
    extremes = [sample(_EXTREMES, only=FLOATS)] if set(FLOATS) <= set(dtypes) else []
    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        reference=reference,
        dtypes=dtypes,
        traits=(Trait.ELEMENTWISE, *traits),
        tolerance=tolerance,
        flops=flops,
        samples=lambda: [*drawn(), *extremes],
        **facts,
    )


def _binary(
    name: str,
    reference: Callable[..., Any],
    doc: str,
    dtypes: tuple[DType, ...] = REAL,
    tolerance: Tolerance = FOUR_ULPS,
    traits: tuple[Trait, ...] = (),
    samples: Samples | None = None,
    flops: int = 1,
    **facts: Any,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        binary_type,
        doc=doc,
        reference=reference,
        dtypes=dtypes,
        traits=(Trait.ELEMENTWISE, *traits),
        tolerance=tolerance,
        flops=flops,
        samples=samples or binary_samples(),
        **facts,
    )


def _power(x: Array, y: Array) -> Array:
    if x.dtype.kind != "i":
        return np.asarray(np.power(x, y))
    # A negative exponent means the reciprocal rounded toward zero: only of 1 and -1 is it not 0.
    found = np.power(x, np.maximum(y, 0))
    inverse = np.where(np.abs(x) == 1, np.where(y % 2 == 0, 1, x), 0)
    return np.where(y < 0, inverse, found).astype(x.dtype)


def _truncate_divide(x: Array, y: Array) -> Array:
    quotient, rest = np.divmod(x, y)
    # Where the division was not exact and the quotient negative, rounding down went one too far.
    return np.asarray(quotient + ((rest != 0) & ((x < 0) != (y < 0))).astype(x.dtype))


def _quotients() -> list[Sample]:
    """Integers, 0 among the divisors; and floats whose quotients are far from whole numbers."""
    whole = [Sample(s.operands, only=INTEGERS) for s in binary_samples(-100, 100, -3, 7)()]
    dividend, divisors = draw(3, 4, low=5.2, high=5.8), given([[2.0], [-2.0], [4.0]])
    return [*whole, sample(dividend, divisors, only=FLOATS)]


# Elements that a formula of many steps takes at once, so that what lies between two steps stays in
# the cache: 196,608 of erf take 15 ms, and 23 all at once.
_BLOCK = 1 << 13


def _in_float64(formula: Formula) -> Callable[[Array], Array]:
    """Compute in float64 whatever is given, and round once."""

    def compute(x: Array) -> Array:
        if x.size <= _BLOCK:
            return np.asarray(formula(np, np.asarray(x, np.float64))).astype(x.dtype)
        flat = x.reshape(-1)
        outputs = np.empty_like(flat)
        for start in range(0, x.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            outputs[block] = formula(np, flat[block].astype(np.float64)).astype(x.dtype)
        return outputs.reshape(x.shape)

    return compute


def _real_type(x: TensorType) -> TensorType:
    return x.with_dtype(f"float{x.dtype.bits // 2}")


def _abs_type(x: TensorType) -> TensorType:
    return _real_type(x) if x.dtype.is_complex else x


add = _binary(
    "add",
    np.add,
    "Add.",
    NUMERIC,
    ONE_ULP,
    (*SWAPS, Trait.COUNTING),
    cost=CostClass.LIGHT,
    value_range=ranges.sums,
    symbolic=symbolic.add,
)
subtract = _binary(
    "subtract",
    np.subtract,
    "Subtract the second operand.",
    NUMERIC,
    ONE_ULP,
    traits=(Trait.COUNTING,),
    cost=CostClass.LIGHT,
    value_range=ranges.differences,
    symbolic=symbolic.subtract,
)
multiply = _binary(
    "multiply",
    np.multiply,
    "Multiply.",
    NUMERIC,
    ONE_ULP,
    (Trait.COMMUTATIVE, Trait.LINEAR, Trait.COUNTING),
    cost=CostClass.LIGHT,
    value_range=ranges.products,
    symbolic=symbolic.multiply,
)
divide = _binary(
    "divide",
    np.divide,
    "Divide by the second operand.",
    INEXACT,
    cost=CostClass.LIGHT,
    samples=binary_samples(right_low=0.5),
)
floor_divide = _binary(
    "floor_divide",
    np.floor_divide,
    "Divide and round down; an integer by 0 gives 0.",
    REAL,
    EXACT,
    (*JUMPS, Trait.COUNTING),
    _quotients,
    cost=CostClass.SLOW,
    value_range=ranges.quotients,
    symbolic=symbolic.floor_divide,
    refuses=lambda: [bad("operands must have one dtype, found int8 and bool", "int8[]", "bool[]")],
)
truncate_divide = _binary(
    "truncate_divide",
    _truncate_divide,
    "Divide integers and round toward 0; by 0 gives 0.",
    INTEGERS,
    EXACT,
    (Trait.COUNTING,),
    lambda: _quotients()[:-1],
    value_range=ranges.quotients,
    symbolic=symbolic.truncate_divide,
)
remainder = _binary(
    "remainder",
    np.remainder,
    "Take the remainder of floor_divide, with the divisor's sign; integers by 0 give 0.",
    REAL,
    ONE_ULP,
    (*JUMPS, Trait.COUNTING),
    _quotients,
    cost=CostClass.SLOW,
    value_range=ranges.floored_rests,
    symbolic=symbolic.remainder,
)
fmod = _binary(
    "fmod",
    np.fmod,
    "Take the remainder of truncate_divide, with the dividend's sign; integers by 0 give 0.",
    REAL,
    EXACT,
    (*JUMPS, Trait.COUNTING),
    _quotients,
    cost=CostClass.SLOW,
    value_range=ranges.rests,
    symbolic=symbolic.fmod,
)
maximum = _binary(
    "maximum",
    np.maximum,
    "Take the larger element; NaN if either is NaN.",
    REAL,
    EXACT,
    (*SWAPS, Trait.COUNTING),
    value_range=ranges.larger,
    symbolic=symbolic.maximum,
)
minimum = _binary(
    "minimum",
    np.minimum,
    "Take the smaller element; NaN if either is NaN.",
    REAL,
    EXACT,
    (*SWAPS, Trait.COUNTING),
    value_range=ranges.smaller,
    symbolic=symbolic.minimum,
)
power = _binary(
    "power",
    _power,
    "Raise to a power; a negative power of an integer is rounded toward 0.",
    tolerance=ulps(8),
    samples=binary_samples(0.5, 3.0),
    flops=16,
)
atan2 = _binary(
    "atan2",
    np.arctan2,
    "Take the angle of the point (y, x), first operand y.",
    FLOATS,
    flops=16,
    decompose=in_both(special.atan2),
)
copysign = _binary(
    "copysign", np.copysign, "Take the magnitude of x with the sign of y.", FLOATS, EXACT, JUMPS
)
nextafter = _binary(
    "nextafter",
    np.nextafter,
    "Take the next representable number toward y.",
    FLOATS,
    EXACT,
    (Trait.BITS,),
)

negative = _unary(
    "negative",
    np.negative,
    "Change the sign.",
    INEXACT + SIGNED,
    EXACT,
    traits=(Trait.COUNTING,),
    cost=CostClass.LIGHT,
    value_range=ranges.opposites,
    symbolic=symbolic.negative,
)
sign = _unary(
    "sign",
    np.sign,
    "Take the sign: -1, 0 or 1; NaN for NaN.",
    REAL,
    EXACT,
    traits=(*JUMPS, Trait.COUNTING),
    value_range=ranges.signs,
)
square = _unary(
    "square",
    np.square,
    "Multiply by itself.",
    NUMERIC,
    ONE_ULP,
    traits=(Trait.COUNTING,),
    value_range=ranges.squares,
)
reciprocal = _unary(
    "reciprocal",
    np.reciprocal,
    "Divide one by each element.",
    INEXACT,
    samples=unary_samples(0.5),
    decompose=in_both(special.reciprocal),
)
sqrt = _unary("sqrt", np.sqrt, "Take the square root.", INEXACT, samples=POSITIVE)
rsqrt = _unary(
    "rsqrt",
    lambda x: np.reciprocal(np.sqrt(x)),
    "Divide one by the square root.",
    samples=POSITIVE,
    flops=2,
    decompose=in_both(special.rsqrt),
)
cbrt = _unary("cbrt", np.cbrt, "Take the cube root.", flops=8, decompose=in_both(special.cbrt))
exp = _unary("exp", np.exp, "Raise e to each element.", INEXACT, flops=8)
exp2 = _unary("exp2", np.exp2, "Raise 2 to each element.", flops=8, decompose=in_both(special.exp2))
expm1 = _unary(
    "expm1",
    np.expm1,
    "Raise e to each element and subtract 1, accurate near 0.",
    flops=8,
    decompose=in_both(special.expm1),
)
log = _unary("log", np.log, "Take the natural logarithm.", INEXACT, samples=POSITIVE, flops=8)
log2 = _unary(
    "log2",
    np.log2,
    "Take the logarithm to base 2.",
    samples=POSITIVE,
    flops=8,
    decompose=in_both(special.log2),
)
log10 = _unary(
    "log10",
    np.log10,
    "Take the logarithm to base 10.",
    samples=POSITIVE,
    flops=8,
    decompose=in_both(special.log10),
)
log1p = _unary(
    "log1p",
    np.log1p,
    "Take the natural logarithm of 1 + x, accurate near 0.",
    samples=unary_samples(-0.5, 3.0),
    flops=8,
    decompose=in_both(special.log1p),
)
sin = _unary("sin", np.sin, "Take the sine.", INEXACT, flops=8)
cos = _unary("cos", np.cos, "Take the cosine.", INEXACT, flops=8)
tan = _unary(
    "tan",
    np.tan,
    "Take the tangent.",
    samples=unary_samples(-1.4, 1.4),
    flops=8,
    decompose=in_both(special.tan),
)
asin = _unary(
    "asin",
    np.arcsin,
    "Take the inverse sine.",
    samples=WITHIN_ONE,
    flops=8,
    decompose=in_both(special.asin),
)
acos = _unary(
    "acos",
    np.arccos,
    "Take the inverse cosine.",
    samples=WITHIN_ONE,
    flops=8,
    decompose=in_both(special.acos),
)
atan = _unary(
    "atan", np.arctan, "Take the inverse tangent.", flops=8, decompose=in_both(special.atan)
)
sinh = _unary(
    "sinh", np.sinh, "Take the hyperbolic sine.", flops=8, decompose=in_both(special.sinh)
)
cosh = _unary(
    "cosh", np.cosh, "Take the hyperbolic cosine.", flops=8, decompose=in_both(special.cosh)
)
tanh = _unary(
    "tanh", np.tanh, "Take the hyperbolic tangent.", flops=8, decompose=in_both(special.tanh)
)
asinh = _unary("asinh", np.arcsinh, "Undo sinh.", flops=8, decompose=in_both(special.asinh))
acosh = _unary(
    "acosh",
    np.arccosh,
    "Undo cosh.",
    samples=unary_samples(1.1, 4.0),
    flops=8,
    decompose=in_both(special.acosh),
)
atanh = _unary(
    "atanh", np.arctanh, "Undo tanh.", samples=WITHIN_ONE, flops=8, decompose=in_both(special.atanh)
)
erf = _unary(
    "erf",
    _in_float64(special.erf),
    "Compute the error function.",
    flops=16,
    decompose=Decomposition(special.erf),
)
erfc = _unary(
    "erfc",
    _in_float64(special.erfc),
    "Compute 1 - erf(x), accurate far from 0.",
    flops=32,
    decompose=Decomposition(special.erfc),
)
lgamma = _unary(
    "lgamma",
    _in_float64(special.lgamma),
    "Compute the logarithm of the absolute gamma function.",
    samples=unary_samples(0.1, 8.0),
    flops=64,
    decompose=Decomposition(special.lgamma),
)
digamma = _unary(
    "digamma",
    _in_float64(special.digamma),
    "Compute the derivative of lgamma; NaN at -1, -2, ...",
    samples=unary_samples(1.6, 8.0),
    flops=64,
    decompose=Decomposition(special.digamma),
)
ceil = _unary("ceil", np.ceil, "Round up.", tolerance=EXACT, traits=JUMPS)
floor = _unary("floor", np.floor, "Round down.", tolerance=EXACT, traits=JUMPS)
round_ = _unary("round", np.rint, "Round to nearest, halves to even.", FLOATS, EXACT, traits=JUMPS)
trunc = _unary(
    "trunc",
    np.trunc,
    "Round toward 0.",
    tolerance=EXACT,
    traits=JUMPS,
    decompose=in_both(special.trunc),
)
conj = _unary("conj", np.conj, "Take the complex conjugate.", COMPLEX, EXACT)

abs_ = _unary(
    "abs",
    np.abs,
    "Take the absolute value; for complex numbers, the modulus.",
    NUMERIC,
    rule=_abs_type,
    traits=(Trait.COUNTING,),
    value_range=ranges.magnitudes,
    symbolic=symbolic.magnitude,
)
real = _unary("real", np.real, "Take real parts.", COMPLEX, EXACT, rule=_real_type)
imag = _unary("imag", np.imag, "Take imaginary parts.", COMPLEX, EXACT, rule=_real_type)


def _complex_type(real: TensorType, imag: TensorType) -> TensorType:
    both = broadcast_types(real, imag)
    return both.with_dtype(f"complex{both.dtype.bits * 2}")


def _complex(real: Array, imag: Array) -> Array:
    # A product with 1j would turn an infinite imaginary part into a NaN real one.
    found = np.empty(np.broadcast_shapes(real.shape, imag.shape), np.result_type(real, 1j))
    found.real, found.imag = real, imag
    return found


complex_ = FAMILY.declare(
    "complex",
    _complex_type,
    doc="Make complex numbers from real and imaginary parts.",
    reference=_complex,
    dtypes=(float32, float64),
    traits=(Trait.ELEMENTWISE,),
    samples=binary_samples(),
    refuses=lambda: [bad("operands must have one dtype, found float32 and bool", "[]", "bool[]")],
    flops=0,
)


def _hypot(x: Value, y: Value) -> Value:
    long, short = maximum(abs_(x), abs_(y)), minimum(abs_(x), abs_(y))
    # The larger side is taken out so that no square overflows; at 0 it is the answer.
    slanted = multiply(long, sqrt(add(square(divide(short, long)), 1.0)))
    # A side that is infinite is the answer whatever the other one is, NaN included.
    infinite = logical_or(equal(abs_(x), np.inf), equal(abs_(y), np.inf))
    return where(infinite, np.inf, where(equal(long, 0.0), long, slanted))


def _logaddexp(x: Value, y: Value) -> Value:
    apart = log1p(exp(negative(abs_(subtract(x, y)))))
    # Infinities of one sign have no difference; equal operands need none.
    return add(maximum(x, y), where(equal(x, y), np.log(2.0), apart))


def _extreme_pairs() -> list[Sample]:
    pairs = given([np.inf, -np.inf, 0.0, np.nan]), given([[np.inf], [-np.inf], [0.0]])
    return [*binary_samples()(), sample(*pairs)]


def _composite(
    name: str,
    rule: Callable[..., TensorType],
    expand: Callable[..., Value],
    doc: str,
    dtypes: tuple[DType, ...],
    samples: Samples,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        expand=expand,
        dtypes=dtypes,
        traits=(Trait.ELEMENTWISE,),
        samples=samples,
    )


hypot = _composite(
    "hypot", binary_type, _hypot, "Take the length of the vector (x, y).", FLOATS, _extreme_pairs
)
logaddexp = _composite(
    "logaddexp", binary_type, _logaddexp, "Take the logarithm of e^x + e^y.", FLOATS, _extreme_pairs
)
angle = _composite(
    "angle",
    _real_type,
    lambda x: atan2(imag(x), real(x)),
    "Take the angle of complex numbers.",
    COMPLEX,
    unary_samples(),
)


def _clip_type(
    x: TensorType, low: TensorType | None = None, high: TensorType | None = None
) -> TensorType:
    if low is None and high is None:
        raise TypeRuleError("needs a low or a high bound, found neither.")
    return broadcast_types(x, low, high)


def _clip(x: Value, low: Value | None, high: Value | None) -> Value:
    raised = x if low is None else maximum(x, low)
    return raised if high is None else minimum(raised, high)


clip = FAMILY.declare(
    "clip",
    _clip_type,
    doc="Limit to low..high; high wins where low is above it.",
    expand=_clip,
    dtypes=REAL,
    traits=(Trait.ELEMENTWISE, Trait.COUNTING),
    value_range=ranges.limited,
    samples=lambda: [
        sample(draw(3, 4), given(0), given(1)),
        sample(draw(3, 4), None, given(1)),
        sample(draw(), given(1)),
        sample(draw(0, 3), draw(3, low=0.0, high=1.0), given(1)),
        sample(draw(2, 3), given(2), given(1)),
        sample(given([np.nan, np.inf, -np.inf]), given(-1.0), given(1.0), only=FLOATS),
    ],
    refuses=lambda: [
        bad("needs a low or a high bound, found neither", "[]"),
        bad("operands must have one dtype, found int8 and float32", "int8[]", "[]"),
    ],
)
