"""Comparisons, tests of values, logic on bools, operations on bits, choice by a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire.dtypes import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    NARROW,
    NUMERIC,
    REAL,
    STORED,
    DType,
    bool_,
    string,
)
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges, symbolic
from fusewire.ops.declare import CostClass, Family, Op, Trait
from fusewire.ops.inference import binary_type, broadcast_shapes, broadcast_types, unary_type
from fusewire.ops.sample import Samples, bad, binary_samples, draw, given, sample, unary_samples
from fusewire.ops.symbolic import Symbolic

FAMILY = Family("logic")


def _compared_type(x: TensorType, y: TensorType) -> TensorType:
    return broadcast_types(x, y).with_dtype(bool_)


def _compare(
    name: str,
    reference: Callable[..., Any],
    doc: str,
    dtypes: tuple[DType, ...] = (bool_, *REAL),
    *traits: Trait,
    symbolic: Symbolic,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        _compared_type,
        doc=doc,
        reference=reference,
        dtypes=dtypes,
        flops=1,
        traits=(Trait.ELEMENTWISE, Trait.DISCONTINUOUS, *traits),
        samples=lambda: [
            *binary_samples()(),
            sample(given([1, 2, 3]), given([1, 3, 2])),
            sample(
                given([np.nan, np.nan, 0.0, np.inf]),
                given([np.nan, 1.0, -0.0, np.inf]),
                only=FLOATS,
            ),
        ],
        refuses=lambda: [
            bad("do not broadcast", "[3]", "[2]"),
            bad("operands must have one dtype", "[3]", "float64[3]"),
        ],
        symbolic=symbolic,
    )


equal = _compare(
    "equal",
    np.equal,
    "Test whether operands are equal.",
    (*STORED, string),
    Trait.COMMUTATIVE,
    symbolic=symbolic.equal,
)
not_equal = _compare(
    "not_equal",
    np.not_equal,
    "Test whether operands differ.",
    (*STORED, string),
    Trait.COMMUTATIVE,
    symbolic=symbolic.not_equal,
)
less = _compare(
    "less",
    np.less,
    "Test whether the first operand is smaller.",
    symbolic=symbolic.less,
)
less_equal = _compare(
    "less_equal",
    np.less_equal,
    "Test whether the first operand is smaller or equal.",
    symbolic=symbolic.less_equal,
)
greater = _compare(
    "greater",
    np.greater,
    "Test whether the first operand is larger.",
    symbolic=symbolic.greater,
)
greater_equal = _compare(
    "greater_equal",
    np.greater_equal,
    "Test whether the first operand is larger or equal.",
    symbolic=symbolic.greater_equal,
)


def _tested_type(x: TensorType) -> TensorType:
    return x.with_dtype(bool_)


def _test(
    name: str, reference: Callable[..., Any], doc: str, dtypes: tuple[DType, ...]
) -> Op[Value]:
    extremes = sample(given([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]), only=FLOATS)
    return FAMILY.declare(
        name,
        _tested_type,
        doc=doc,
        reference=reference,
        dtypes=dtypes,
        flops=1,
        traits=(Trait.ELEMENTWISE, Trait.DISCONTINUOUS),
        samples=lambda: [*unary_samples()(), extremes],
    )


def _population_count(x: Array) -> Array:
    # NumPy counts the bits of the absolute value; the bits as they are stored are meant here.
    bits: Array = x.view(f"u{x.dtype.itemsize}")
    return np.asarray(np.bitwise_count(bits)).astype(x.dtype)


_SHIFTS = binary_samples(-100, 100, 0, 7)


def _declare(
    name: str,
    reference: Callable[..., Any],
    doc: str,
    dtypes: tuple[DType, ...] = (bool_,),
    rule: Callable[..., TensorType] = binary_type,
    samples: Samples | None = None,
    traits: tuple[Trait, ...] = (Trait.COMMUTATIVE,),
    **facts: Any,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        reference=reference,
        dtypes=dtypes,
        flops=1,
        traits=(Trait.ELEMENTWISE, *traits),
        samples=samples or binary_samples(),
        **facts,
    )


logical_and = _declare(
    "logical_and",
    np.logical_and,
    "Test whether both operands hold.",
    cost=CostClass.LIGHT,
    symbolic=symbolic.logical_and,
)
logical_or = _declare(
    "logical_or",
    np.logical_or,
    "Test whether either operand holds.",
    symbolic=symbolic.logical_or,
)
logical_xor = _declare(
    "logical_xor",
    np.logical_xor,
    "Test whether exactly one operand holds.",
    symbolic=symbolic.logical_xor,
)
logical_not = _declare(
    "logical_not",
    np.logical_not,
    "Test whether the operand does not hold.",
    rule=unary_type,
    symbolic=symbolic.logical_not,
    samples=unary_samples(),
    traits=(),
)


bitwise_and = _declare(
    "bitwise_and", np.bitwise_and, "Keep bits that are set in both operands.", INTEGERS
)
bitwise_or = _declare(
    "bitwise_or", np.bitwise_or, "Keep bits that are set in either operand.", INTEGERS
)
bitwise_xor = _declare(
    "bitwise_xor", np.bitwise_xor, "Keep bits that are set in exactly one operand.", INTEGERS
)
bitwise_not = _declare(
    "bitwise_not", np.invert, "Flip all bits.", INTEGERS, unary_type, unary_samples(), ()
)
shift_left = _declare(
    "shift_left",
    np.left_shift,
    "Shift bits up; by the width or more, or by less than 0, gives 0.",
    INTEGERS,
    samples=_SHIFTS,
    traits=(),
)
shift_right = _declare(
    "shift_right",
    np.right_shift,
    "Shift bits down, copying the sign; by the width or more leaves only signs.",
    INTEGERS,
    samples=_SHIFTS,
    traits=(),
)
population_count = _declare(
    "population_count",
    _population_count,
    "Count the bits that are 1.",
    INTEGERS,
    unary_type,
    unary_samples(-100, 100),
    (),
)

_WITH_NARROW = FLOATS + COMPLEX + tuple(d for d in NARROW if d.is_float)
isnan = _test("isnan", np.isnan, "Test whether elements are NaN.", _WITH_NARROW)
isinf = _test("isinf", np.isinf, "Test whether elements are infinite.", _WITH_NARROW)
isfinite = _test(
    "isfinite", np.isfinite, "Test whether elements are neither NaN nor infinite.", _WITH_NARROW
)
signbit = _test(
    "signbit", np.signbit, "Test whether the sign bit is set, also for 0 and NaN.", FLOATS
)


def _where_type(condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    kept = broadcast_types(x, y)
    return kept.with_shape(broadcast_shapes(condition.shape, kept.shape))


where = FAMILY.declare(
    "where",
    _where_type,
    doc="Take elements of x where the condition holds, and of y elsewhere.",
    reference=np.where,
    dtypes=(bool_,),
    traits=(Trait.ELEMENTWISE, Trait.COUNTING),
    flops=1,
    cost=CostClass.LIGHT,
    symbolic=symbolic.where,
    value_range=ranges.chosen,
    samples=lambda: [
        *(
            sample(draw(3, 1), draw(4, dtype_=d), draw(3, 4, dtype_=d))
            for d in (bool_, *NUMERIC, *NARROW, string)
        ),
        sample(draw(), draw(dtype_="float32"), draw(dtype_="float32")),
        sample(draw(0, 1), draw(3, dtype_="int32"), draw(dtype_="int32")),
    ],
    refuses=lambda: [
        bad("shapes [4] and [3] do not broadcast: aligned at the end", "[3, 1]", "[4]", "[3]"),
        bad("shapes [3] and [3, 4] do not broadcast: aligned at the end", "[3]", "[4]", "[3, 4]"),
    ],
)
