"""What all printers share: their result, and the text of indices and guards.

A backend's printer supplies the words of its language; the structure of an index, and which bounds
of a guard need a test at all, are decided here.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fusewire.kernel.form import Guard, KernelBuffer
from fusewire.kernel.index import Atom, Axis, Held, Index, Quotient, Remainder

Code = TypeVar("Code", bound=Hashable)


@dataclass(frozen=True)
class PrintedKernel(Generic[Code]):
    """A kernel in a backend's language, and one launch of it.

    Kernels whose ``code`` is equal are compiled once. ``buffers`` are its parameters, in order: a
    buffer that is not the region's is scratch memory of this kernel alone. A kernel with a 0 in its
    ``grid`` is never launched. ``params`` are numbers that come with a launch.
    """

    code: Code
    buffers: tuple[KernelBuffer, ...]
    grid: tuple[int, ...]
    params: tuple[int, ...] = ()


class IndexPrinter(abc.ABC):
    """Prints indices and guards as integer expressions of a language."""

    def index(self, index: Index) -> str:
        """Print an index."""
        terms = []
        for atom, factor in index.terms:
            text = self._atom(atom)
            terms.append(text if factor == 1 else f"{text} * {self.number(factor)}")
        if index.constant or not terms:
            terms.append(self.number(index.constant))
        return self.total(terms)

    def bounds(self, guard: Guard) -> list[str]:
        """Print the tests of a guard, except those that the range of an index makes needless."""
        tests = []
        for bound in guard:
            text, (low, high) = self.index(bound.index), bound.index.range
            if low < bound.low:
                tests.append(f"{text} >= {self.number(bound.low)}")
            if high >= bound.high:
                tests.append(f"{text} < {self.number(bound.high)}")
        return tests

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Axis):
            return self.axis(atom)
        if isinstance(atom, Held):
            return self.held(atom)
        return self.divided(atom, self.index(atom.of))

    @abc.abstractmethod
    def number(self, value: int) -> str:
        """Print an integer."""

    @abc.abstractmethod
    def total(self, terms: Sequence[str]) -> str:
        """Print the sum of terms, of which there is at least one."""

    @abc.abstractmethod
    def axis(self, axis: Axis) -> str:
        """Print the position on an axis."""

    @abc.abstractmethod
    def held(self, atom: Held) -> str:
        """Print an integer of the body, clamped to its extent."""

    @abc.abstractmethod
    def divided(self, atom: Quotient | Remainder, inner: str) -> str:
        """Print a quotient or remainder of ``inner``, rounded down also where that is negative."""


def strides(axes: Sequence[Axis]) -> Iterator[tuple[Axis, int]]:
    """Yield each axis with the number of points between neighbours on it, in row-major order."""
    step = 1
    for axis in axes:
        step *= max(axis.extent, 1)
    for axis in axes:
        step //= max(axis.extent, 1)
        yield axis, step


def row_major(axes: Sequence[Axis]) -> Index:
    """Give the number of a point of axes, the last of which runs fastest."""
    place = Index()
    for axis in axes:
        place = place * axis.extent + Index(((axis, 1),))
    return place
