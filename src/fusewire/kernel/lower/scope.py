"""What a body is written in and over: scopes of statements, places of values, guards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fusewire.ir.graph import Array, Value
from fusewire.kernel.form import Bound, Buffer, Guard, Statement
from fusewire.kernel.index import Axis, Index, flatten, unflatten
from fusewire.kernel.verify import range_under

Indices = tuple[Index, ...]


@dataclass(frozen=True)
class Located:
    """Where a value is: a buffer, or the part of it at an index, perhaps in another shape.

    With ``rows`` it is a part of what is there in that shape.
    """

    buffer: Buffer
    part: Indices = ()
    shape: tuple[int, ...] | None = None
    rows: Indices = ()

    def at(self, index: Indices) -> Indices:
        """Give the index in the buffer of an element of the value."""
        index = (*self.rows, *index)
        if self.shape is not None:
            inner = self.buffer.shape[len(self.part) :]
            index = unflatten(flatten(index, self.shape), inner)
        return (*self.part, *index)


class Memory(Protocol):
    """Where values are that a kernel does not compute."""

    def find(self, value: Value) -> Located | None:
        """Tell where a value is that is stored before the kernel runs."""
        ...

    def table(self, array: Array) -> Buffer:
        """Give a buffer with these elements."""
        ...


@dataclass(eq=False)
class Scope:
    """Statements under some loops; ``known`` has what they compute, by what it is."""

    outer: Scope | None
    axes: tuple[Axis, ...]
    statements: list[Statement] = field(default_factory=list)
    known: dict[Any, Any] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        return 0 if self.outer is None else self.outer.depth + 1


def never(bound: Bound) -> bool:
    """Tell whether a bound holds nowhere."""
    low, high = bound.index.range
    return high < bound.low or low >= bound.high


def within(bound: Bound, guard: Guard) -> bool:
    """Tell whether a bound holds wherever a guard does."""
    low, high = range_under(bound.index, guard)
    return low >= bound.low and high < bound.high


def simplified(guard: Iterable[Bound]) -> Guard:
    """Drop bounds that always hold, and repeats."""
    return tuple(dict.fromkeys(bound for bound in guard if not within(bound, ())))
