"""Samples: the cases on which an op is shown to be right, written as data.

A ``Draw`` says how to make one operand; without a dtype it is made in the dtype under test. A
``BadSample`` is a use that the op must refuse, and the reason it must give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from fusewire.dtypes import DType, DTypeLike, dtype, float32, string
from fusewire.ir.graph import Array, Attr, HostValue
from fusewire.ir.types import Type


@dataclass(frozen=True)
class Draw:
    """One operand: random within [low, high], or given values; ``None`` dtype: the one tested."""

    shape: tuple[int, ...]
    dtype: DType | None = None
    low: float = -2.0
    high: float = 2.0
    values: Any = None
    distinct: bool = False
    sequence: bool = False

    def make(self, tested: DType, rng: np.random.Generator) -> HostValue:
        """Make the operand; sequences as lists of equal parts along the first axis."""
        of = self.dtype or tested
        array = self._elements(of, rng).reshape(self.shape)
        return list(array) if self.sequence else array

    def _elements(self, of: DType, rng: np.random.Generator) -> Array:
        count = int(np.prod(self.shape, dtype=np.int64))
        if self.values is not None:
            held = np.array(self.values, object if of is string else None)
            if of is string:
                held = np.array([str(item) for item in held.flat], object).reshape(held.shape)
            return np.broadcast_to(held, self.shape).astype(of.numpy)
        if of is string:
            return np.array([f"s{n}" for n in rng.integers(0, 9, count)], object)
        if of.kind == "bool":
            return rng.integers(0, 2, count).astype(np.bool_)
        low, high = self.low, self.high
        if of.kind == "complex":
            parts = rng.uniform(low, high, count) + 1j * rng.uniform(low, high, count)
            return parts.astype(of.numpy)
        smallest, largest = of.range
        low, high = max(low, smallest), min(high, largest)
        if self.distinct:
            return rng.permutation(np.linspace(low, high, count)).astype(of.numpy)
        if of.is_integer:
            first, last = int(np.ceil(low)), int(np.floor(high))
            return rng.integers(first, max(first, last), count, endpoint=True).astype(of.numpy)
        return rng.uniform(low, high, count).astype(of.numpy)


def draw(
    *shape: int,
    dtype_: DTypeLike | None = None,
    low: float = -2.0,
    high: float = 2.0,
    values: Any = None,
    distinct: bool = False,
    sequence: bool = False,
) -> Draw:
    """Describe an operand in one line."""
    of = None if dtype_ is None else dtype(dtype_)
    return Draw(shape, of, low, high, values, distinct, sequence)


def given(values: Any, dtype_: DTypeLike | None = None) -> Draw:
    """Describe an operand by its elements; without a dtype, in the one tested."""
    held = np.array(values, object if dtype_ == "string" else None)
    return Draw(held.shape, None if dtype_ is None else dtype(dtype_), values=values)


@dataclass(frozen=True)
class Sample:
    """One use of an op. ``only`` limits the dtypes it is meant for."""

    operands: tuple[Draw | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[DType, ...] | None = None

    def make(self, tested: DType, seed: int = 0) -> list[HostValue]:
        """Make the operands, the same for the same seed."""
        rng = np.random.default_rng(seed)
        return [None if d is None else d.make(tested, rng) for d in self.operands]

    def covers(self) -> set[str]:
        """Tell which of the required cases this is: empty, scalar, broadcast."""
        shapes = [d.shape for d in self.operands if d is not None]
        found = set()
        if any(0 in shape for shape in shapes):
            found.add("empty")
        if shapes and shapes[0] == ():
            found.add("scalar")
        if len(set(shapes)) > 1:
            found.add("broadcast")
        return found


def sample(*operands: Draw | None, only: Sequence[DType] | None = None, **attrs: Attr) -> Sample:
    """Describe a use of an op in one line."""
    return Sample(operands, attrs, None if only is None else tuple(only))


@dataclass(frozen=True)
class BadSample:
    """A use that the type rule must refuse, with words of the reason.

    Operands are printed types. Without a dtype, ``[2, n]``, they are float32 if the op takes it,
    and otherwise of the first dtype that it takes.
    """

    reason: str
    operands: tuple[str | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def types(self, dtypes: Sequence[DType]) -> list[Type | None]:
        """Give the types of the operands for an op that takes these dtypes."""
        # Only the conformance suite reads types from text.
        from fusewire.ir.parse import parse_type

        default = (float32 if float32 in dtypes else dtypes[0]).name
        return [
            None if text is None else parse_type(default + text if text[0] == "[" else text)
            for text in self.operands
        ]


Refuses: TypeAlias = Callable[[], Sequence[BadSample]]


def bad(reason: str, *operands: str | None, **attrs: Attr) -> BadSample:
    """Describe a use that an op must refuse in one line."""
    return BadSample(reason, operands, attrs)


# What an op needs to be shown on.
Samples = Callable[[], Sequence[Sample]]


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
