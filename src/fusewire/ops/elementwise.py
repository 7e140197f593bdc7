"""Elementwise arithmetic: one and two operands, broadcast as NumPy does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import COMPLEX, FLOATS, NUMERIC, REAL, SIGNED, DType
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import EXACT, Family, Op, Tolerance, Trait, ulps
from fusewire.ops.inference import broadcast_types
from fusewire.ops.sample import Sample, draw, given, sample

FAMILY = Family("elementwise")


FOUR_ULPS = ulps(4)


def _unary_type(x: TensorType) -> TensorType:
    return x


def _binary_type(x: TensorType, y: TensorType) -> TensorType:
    return broadcast_types(x, y)


def unary_samples(low: float = -2.0, high: float = 2.0) -> Callable[[], Sequence[Sample]]:
    """Samples of an op with one operand, drawn from where it is defined."""
    return lambda: [
        sample(draw(3, 5, low=low, high=high)),
        sample(draw(low=low, high=high)),
        sample(draw(0, 4, low=low, high=high)),
        sample(draw(2, 1, 7, 3, low=low, high=high)),
    ]


def binary_samples(
    low: float = -2.0, high: float = 2.0, right_low: float = -2.0, right_high: float = 2.0
) -> Callable[[], Sequence[Sample]]:
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


def _unary(
    name: str,
    reference: Callable[..., Any],
    doc: str,
    dtypes: tuple[DType, ...] = FLOATS,
    tolerance: Tolerance = FOUR_ULPS,
    samples: Callable[[], Sequence[Sample]] | None = None,
    flops: int = 1,
    traits: tuple[Trait, ...] = (),
) -> Op[Value]:
    return FAMILY.declare(
        name,
        _unary_type,
        doc=doc,
        reference=reference,
        dtypes=dtypes,
        traits=(Trait.ELEMENTWISE, *traits),
        tolerance=tolerance,
        samples=samples or unary_samples(),
        flops=flops,
    )


exp = _unary("exp", np.exp, "Raise e to each element.", FLOATS + COMPLEX, flops=8)
log = _unary(
    "log", np.log, "Take the natural logarithm.", FLOATS + COMPLEX,
    samples=unary_samples(0.1, 4.0), flops=8,
)  # fmt: skip
negative = _unary("negative", np.negative, "Change the sign.", FLOATS + COMPLEX + SIGNED, EXACT)
add = FAMILY.declare(
    "add",
    _binary_type,
    doc="Add.",
    reference=np.add,
    dtypes=NUMERIC,
    traits=(Trait.ELEMENTWISE, Trait.COMMUTATIVE),
    tolerance=ulps(1),
    samples=binary_samples(),
    flops=1,
)
subtract = FAMILY.declare(
    "subtract",
    _binary_type,
    doc="Subtract the second operand.",
    reference=np.subtract,
    dtypes=NUMERIC,
    traits=(Trait.ELEMENTWISE,),
    tolerance=ulps(1),
    samples=binary_samples(),
    flops=1,
)


def _log1p_exp(x: Value) -> Value:
    return log(add(exp(x), 1.0))


softplus = FAMILY.declare(
    "softplus",
    _unary_type,
    doc="Smooth form of relu: log(1 + e^x).",
    expand=_log1p_exp,
    dtypes=FLOATS,
    samples=lambda: [*unary_samples()(), sample(given([80.0, -80.0, 0.0]))],
)
_ = (Array, REAL)
