"""Indices of elements: simplified integer expressions over loop axes.

An ``Index`` is a sum of atoms times ints, plus an int. An atom is an axis, an integer that the
body computed (``Held``), or a quotient or remainder of an index by a positive int, rounded down as
Python does. Operators simplify by what is known of ranges, so that a reshape that splits or joins
whole axes leaves no division behind. Nothing here knows about buffers or statements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias


@dataclass(frozen=True)
class Axis:
    """A loop: its index runs from 0 to extent - 1. Names are unique within a kernel."""

    name: str
    extent: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, max(self.extent - 1, 0)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Held:
    """An integer value of the body as an index: it means the value clamped to [0, extent)."""

    value: str
    extent: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, max(self.extent - 1, 0)

    def __str__(self) -> str:
        return f"clamp({self.value}, {self.extent})"


@dataclass(frozen=True)
class Quotient:
    """An index divided by a positive int, rounded down."""

    of: Index
    by: int

    @cached_property
    def range(self) -> tuple[int, int]:
        low, high = self.of.range
        return low // self.by, high // self.by

    def __str__(self) -> str:
        return f"{_grouped(self.of)} // {self.by}"


@dataclass(frozen=True)
class Remainder:
    """What is left of an index divided by a positive int: from 0 to by - 1."""

    of: Index
    by: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, self.by - 1

    def __str__(self) -> str:
        return f"{_grouped(self.of)} % {self.by}"


Atom: TypeAlias = Axis | Held | Quotient | Remainder


@dataclass(frozen=True)
class Index:
    """A sum of atoms times ints, plus an int. Make it by operators, or by ``at``."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def __str__(self) -> str:
        parts = []
        alone = len(self.terms) == 1 and not self.constant and self.terms[0][1] == 1
        for atom, factor in self.terms:
            bare = alone or isinstance(atom, Axis | Held)
            name = str(atom) if bare else f"({atom})"
            parts.append(name if factor == 1 else f"{factor}*{name}")
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.terms, self.constant))

    @cached_property
    def range(self) -> tuple[int, int]:
        """The least and the largest value that it may take."""
        low = high = self.constant
        for atom, factor in self.terms:
            ends = [end * factor for end in atom.range]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        sums = dict(self.terms)
        for atom, factor in other.terms:
            sums[atom] = sums.get(atom, 0) + factor
        return _joined(sums, self.constant + other.constant)

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __mul__(self, by: int) -> Index:
        if by == 0:
            return Index()
        return Index(tuple((atom, n * by) for atom, n in self.terms), self.constant * by)

    def __floordiv__(self, by: int) -> Index:
        whole, rest = self._split(by)
        return whole + _quotient(rest, by)

    def __mod__(self, by: int) -> Index:
        _, rest = self._split(by)
        return _remainder(rest, by)

    def _split(self, by: int) -> tuple[Index, Index]:
        """Give (a, b) with self = by * a + b, as much of it in a as is certain."""
        whole = tuple((atom, n // by) for atom, n in self.terms if n % by == 0)
        rest = tuple((atom, n) for atom, n in self.terms if n % by)
        return Index(whole, self.constant // by), Index(rest, self.constant % by)


def _grouped(index: Index) -> str:
    """Print an index as an operand: in brackets, but for a lone axis."""
    alone = len(index.terms) == 1 and not index.constant and index.terms[0][1] == 1
    atom = index.terms[0][0] if alone else None
    return str(atom) if isinstance(atom, Axis | Held) else f"({index})"


def at(*parts: Atom | int) -> Index:
    """Make an index: the sum of atoms and ints."""
    found = Index()
    for part in parts:
        if isinstance(part, int):
            found = found + part
        elif not (isinstance(part, Axis) and part.extent == 1):
            found = found + Index(((part, 1),))
    return found


def _joined(sums: Mapping[Atom, int], constant: int) -> Index:
    """Drop what cancels, and put quotients and remainders that belong together into one."""
    sums = {atom: factor for atom, factor in sums.items() if factor}
    for atom, factor in sums.items():
        if not isinstance(atom, Remainder):
            continue
        for other, times in sums.items():
            whole = _whole(atom, other) if times == factor * atom.by else None
            if whole is not None:
                rest = {a: n for a, n in sums.items() if a not in (atom, other)}
                return _joined(rest, constant) + whole * factor
    return Index(tuple(sums.items()), constant)


def _whole(rest: Remainder, other: Atom) -> Index | None:
    """Give ``other * rest.by + rest`` as one index, where that is simpler."""
    if isinstance(other, Quotient) and other.by == rest.by:
        apart = other.of - rest.of
        same = all(n % rest.by == 0 for n in (apart.constant, *(n for _, n in apart.terms)))
        return other.of if same else None
    if isinstance(other, Remainder):
        apart = other.of - rest.of // rest.by
        if not has_division(apart):
            return (apart * rest.by + rest.of) % (rest.by * other.by)
    return None


def _quotient(of: Index, by: int) -> Index:
    low, high = of.range
    if low // by == high // by:
        return Index((), low // by)
    for step, coarse, fine in _scales(of, by):
        if fine.range[0] >= 0 and fine.range[1] < step:
            return coarse // (by // step)
    if len(of.terms) == 1 and of.constant == 0 and of.terms[0][1] == 1:
        (atom, _) = of.terms[0]
        if isinstance(atom, Quotient):
            return atom.of // (atom.by * by)
    return at(Quotient(of, by))


def _remainder(of: Index, by: int) -> Index:
    low, high = of.range
    if low // by == high // by:
        return of - low // by * by
    for step, coarse, fine in _scales(of, by):
        if fine.range[0] >= 0 and fine.range[1] < step:
            return (coarse % (by // step)) * step + fine
    if len(of.terms) == 1 and of.constant == 0 and of.terms[0][1] == 1:
        (atom, _) = of.terms[0]
        if isinstance(atom, Remainder) and atom.by % by == 0:
            return atom.of % by
    return at(Remainder(of, by))


def _scales(of: Index, by: int) -> Iterator[tuple[int, Index, Index]]:
    """Yield (step, a, b) with of = step * a + b for steps that divide ``by``, the largest first."""
    steps = {math.gcd(factor, by) for _, factor in of.terms} - {1}
    for step in sorted(steps, reverse=True):
        yield step, *of._split(step)


def flatten(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """Give the row-major place of an element."""
    place = Index()
    for part, dim in zip(index, shape, strict=True):
        place = place * dim + part
    return place


def unflatten(place: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """Give the element of a shape that lies at a row-major place inside of it."""
    found: list[Index] = []
    for axis, dim in enumerate(shape):
        if dim == 1:
            found.append(Index())
            continue
        step = math.prod(shape[axis + 1 :])
        part = place // step if step else Index()
        # The first axis that has a size needs no remainder: the place is inside.
        outer = all(d == 1 for d in shape[:axis])
        found.append(part if outer or dim == 0 else part % dim)
    return tuple(found)


def atoms_of(indices: Iterable[Index]) -> Iterator[Axis | Held]:
    """Yield the axes and held values that indices are made of, repeats included."""
    for index in indices:
        for atom, _ in index.terms:
            if isinstance(atom, Quotient | Remainder):
                yield from atoms_of([atom.of])
            else:
                yield atom


def substituted(index: Index, places: Mapping[Axis, Index]) -> Index:
    """Put other indices in the place of axes."""
    found = Index((), index.constant)
    for atom, factor in index.terms:
        if isinstance(atom, Axis):
            part = places.get(atom, Index(((atom, 1),)))
        elif isinstance(atom, Held):
            part = Index(((atom, 1),))
        else:
            inner = substituted(atom.of, places)
            part = inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
        found = found + part * factor
    return found


def has_division(index: Index) -> bool:
    """Tell whether a quotient or remainder has to be computed for an index."""
    return any(isinstance(atom, Quotient | Remainder) for atom, _ in index.terms)
