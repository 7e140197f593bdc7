"""Elementwise arithmetic: one and two operands, broadcast as NumPy does.

Integers wrap around. Where NumPy leaves integers undefined or raises, the ``doc`` says the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import COMPLEX, FLOATS, NUMERIC, REAL, SIGNED, DType
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import special
from fusewire.ops.declare import EXACT, Family, Op, Tolerance, Trait, ulps
from fusewire.ops.inference import broadcast_types
from fusewire.ops.sample import Sample, draw, given, sample

FAMILY = Family("elementwise")

INEXACT = FLOATS + COMPLEX
ONE_ULP = ulps(1)
FOUR_ULPS = ulps(4)
JUMPS = (Trait.DISCONTINUOUS,)
SWAPS = (Trait.COMMUTATIVE,)
Samples = Callable[[], Sequence[Sample]]

_EXTREMES = sample(
    given([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5]), only=FLOATS
)


def unary_type(x: TensorType) -> TensorType:
    """Keep the type."""
    return x


def binary_type(x: TensorType, y: TensorType) -> TensorType:
    """Broadcast two operands of one dtype."""
    return broadcast_types(x, y)


def unary_samples(low: float = -2.0, high: float = 2.0) -> Samples:
    """Samples of an op with one operand, drawn from where it is defined."""
    return lambda: [
        sample(draw(3, 5, low=low, high=high)),
        sample(draw(low=low, high=high)),
        sample(draw(0, 4, low=low, high=high)),
        sample(draw(2, 1, 7, 3, low=low, high=high)),
    ]


def binary_samples(
    low: float = -2.0, high: float = 2.0, right_low: float = -2.0, right_high: float = 2.0
) -> Samples:
    """Samples of an op with two operands, each drawn from where it is defined."""

    def make() -> list[Sample]:
        shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
            ((4, 3), (4, 3)),
            ((), ()),
            ((0, 3), (3,)),
            ((2, 1, 5), (3, 1)),
        ]
        return [
            sample(draw(*a, low=low, high=high), draw(*b, low=right_low, high=right_high))
            for a, b in shapes
        ]

    return make


def unary(
    family: Family,
    name: str,
    reference: Callable[..., Any],
    doc: str,
    dtypes: tuple[DType, ...] = FLOATS,
    tolerance: Tolerance = FOUR_ULPS,
    samples: Samples | None = None,
    flops: int = 1,
    traits: tuple[Trait, ...] = (),
) -> Op[Value]:
    """Declare a primitive that keeps the type of its one operand."""
    drawn = samples or unary_samples()
    return family.declare(
        name, unary_type, doc=doc, reference=reference, dtypes=dtypes,
        traits=(Trait.ELEMENTWISE, *traits), tolerance=tolerance, flops=flops,
        samples=lambda: [*drawn(), _EXTREMES],
    )  # fmt: skip


def _unary(name: str, reference: Callable[..., Any], doc: str, *row: Any, **more: Any) -> Op[Value]:
    return unary(FAMILY, name, reference, doc, *row, **more)


def _binary(
    name: str,
    reference: Callable[..., Any],
    doc: str,
    dtypes: tuple[DType, ...] = REAL,
    tolerance: Tolerance = EXACT,
    traits: tuple[Trait, ...] = (),
    samples: Samples | None = None,
    flops: int = 1,
) -> Op[Value]:
    return FAMILY.declare(
        name, binary_type, doc=doc, reference=reference, dtypes=dtypes,
        traits=(Trait.ELEMENTWISE, *traits), tolerance=tolerance, flops=flops,
        samples=samples or binary_samples(),
    )  # fmt: skip


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


add = _binary("add", np.add, "Add.", NUMERIC, ONE_ULP, SWAPS)
subtract = _binary("subtract", np.subtract, "Subtract the second operand.", NUMERIC, ONE_ULP)
multiply = _binary("multiply", np.multiply, "Multiply.", NUMERIC, ONE_ULP,
                   (Trait.COMMUTATIVE, Trait.LINEAR))  # fmt: skip
divide = _binary("divide", np.divide, "Divide by the second operand.", INEXACT, FOUR_ULPS,
                 samples=binary_samples(right_low=0.5))  # fmt: skip
maximum = _binary("maximum", np.maximum, "Take the larger; NaN if either is.", traits=SWAPS)
minimum = _binary("minimum", np.minimum, "Take the smaller; NaN if either is.", traits=SWAPS)
power = _binary(
    "power", _power,
    "Raise to a power; of integers, a negative one gives the reciprocal rounded toward 0.",
    tolerance=ulps(8), samples=binary_samples(0.5, 3.0), flops=16,
)  # fmt: skip

negative = _unary("negative", np.negative, "Change the sign.", INEXACT + SIGNED, EXACT)
sign = _unary("sign", np.sign, "Give -1, 0 or 1; NaN of NaN.", REAL, EXACT, traits=JUMPS)
square = _unary("square", np.square, "Multiply by itself.", NUMERIC, ONE_ULP)
reciprocal = _unary("reciprocal", np.reciprocal, "Divide one by each element.", INEXACT,
                    samples=unary_samples(0.5))  # fmt: skip
sqrt = _unary("sqrt", np.sqrt, "Take the square root.", INEXACT, samples=unary_samples(0.0, 4.0))
rsqrt = _unary("rsqrt", lambda x: np.reciprocal(np.sqrt(x)), "Divide one by the square root.",
               samples=unary_samples(0.1, 4.0), flops=2)  # fmt: skip
exp = _unary("exp", np.exp, "Raise e to each element.", INEXACT, flops=8)
log = _unary("log", np.log, "Take the natural logarithm.", INEXACT,
             samples=unary_samples(0.1, 4.0), flops=8)  # fmt: skip
tanh = _unary("tanh", np.tanh, "Take the hyperbolic tangent.", flops=8)
erf = _unary("erf", special.erf, "Compute the error function.", flops=16)
floor = _unary("floor", np.floor, "Round down.", tolerance=EXACT, traits=JUMPS)


def _abs_type(x: TensorType) -> TensorType:
    return x.with_dtype(f"float{x.dtype.bits // 2}") if x.dtype.is_complex else x


abs_ = FAMILY.declare(
    "abs", _abs_type, doc="Drop the sign; the absolute value of complex numbers is real.",
    reference=np.abs, dtypes=NUMERIC, traits=(Trait.ELEMENTWISE,), tolerance=FOUR_ULPS,
    samples=unary_samples(), flops=1,
)  # fmt: skip
