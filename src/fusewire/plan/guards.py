"""Check the integers that engines do not check: indices and lengths, before an engine sees them.

A guard is data of a plan. Every call of a program with guards comes through ``Checks``, so this
module imports little, and merges the guards on one array: the smallest and the largest element
tell whether all guards hold, and only if not is each asked on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias, final

import numpy as np
from numpy import ndarray

from fusewire.contract.backend import Held
from fusewire.dtypes import dtype
from fusewire.events import EVENTS
from fusewire.host_memory import LARGE
from fusewire.ir.dims import Dim, Symbol, evaluate
from fusewire.ir.graph import Array
from fusewire.ops.intervals import Rule, Samples, check_elements, is_within
from fusewire.plan.transfer import own_copy, own_truth, to_host

# One step from an array to the part of it that a node uses: its name and what it is given.
ViewStep: TypeAlias = tuple[Any, ...]
Sizes: TypeAlias = Mapping[Symbol, int]
_ALLOWED = {
    "ordered": "in order",
    "finite": "finite",
    "sampled": "of a size whose samples fit in memory",
}


@dataclass(frozen=True, eq=False)
class Guard:
    """The integers at ``place`` in the list of values, seen through ``view``, lie in intervals.

    By another ``rule`` they are in order, finite, or boxes whose ``samples`` fit. ``shape`` is that
    of the operand that they become: of an operand without elements, nothing is asked. ``sizes``
    says where each symbol is found: in the shape of the value at a place. ``label`` and ``operand``
    name node and operand, and ``source`` the input of the program.
    """

    place: int
    view: tuple[ViewStep, ...]
    shape: tuple[Dim, ...]
    intervals: tuple[tuple[Dim, Dim], ...]
    ignored: int | None
    sizes: tuple[tuple[Symbol, int, int], ...]
    label: str
    operand: str
    source: str | None = None
    rule: Rule = "within"
    samples: Samples | None = None

    def sentence(self) -> str:
        """Say what is checked, for explanations."""
        ends = ", ".join(f"{low} to {high}" for low, high in self.intervals)
        source = "computed" if self.source is None else f"from the input {self.source}"
        allowed = f"from {ends}" if self.rule == "within" else _ALLOWED[self.rule]
        return f"{self.label}: {self.operand} ({source}) must be {allowed}."

    def is_asked(self, sizes: Sizes) -> bool:
        """Tell whether the operand has elements."""
        return all(evaluate(dim, sizes) for dim in self.shape)

    def ends(self, sizes: Sizes) -> list[tuple[int, int]]:
        """Compute the intervals."""
        return [(evaluate(low, sizes), evaluate(high, sizes)) for low, high in self.intervals]

    def is_changed(self, sizes: Sizes) -> bool:
        """Tell whether a cast in the view may change a number that lies in the intervals."""
        rooms = [dtype(step[1]).range for step in self.view if step[0] == "cast"]
        return any(
            low < room[0] or high > room[1] for room in rooms for low, high in self.ends(sizes)
        )

    def check(self, value: Held, sizes: Sizes, most_bytes: int | None = None) -> None:
        """Raise CheckError if an element is outside; BudgetError if samples take more bytes."""
        if self.is_asked(sizes):
            array = seen(to_host(value), self.view, sizes)
            if self.samples is not None:
                self.samples.check(array, self.label, self.operand, most_bytes)
                return
            names = self.label, self.operand, self.source
            check_elements(array, self.ends(sizes), self.ignored, *names, self.rule)


# A place, and the ends of the only interval there.
_Whole: TypeAlias = tuple[int, int, int]
# Tests of whole arrays, and the guards that these do not cover.
_Tests: TypeAlias = tuple[list[_Whole], list[Guard]]


@final
class Checks:
    """The guards of one moment of a run: at its start, or before a step."""

    def __init__(
        self,
        guards: Sequence[Guard],
        constants: Sequence[Array] = (),
        most_bytes: int | None = None,
    ) -> None:
        """``constants`` follow the values that a check is given, where guards are on them.

        ``most_bytes`` is the limit for what values make an engine allocate.
        """
        self._guards = guards
        self._most_bytes = most_bytes
        self._constants = constants
        found = {symbol: (place, axis) for guard in guards for symbol, place, axis in guard.sizes}
        self._symbols = tuple(found)
        self._sources = tuple(found.values())
        self._tests: dict[tuple[int, ...], _Tests] = {}

    def check(self, values: Sequence[Held]) -> None:
        """Raise CheckError if a value is outside of what a guard allows."""
        start = perf_counter() if EVENTS.lists else None
        key = tuple([values[place].shape[axis] for place, axis in self._sources])
        tests = self._tests.get(key) or self._prepare(values, key)
        for place, low, high in tests[0]:
            if not is_within(to_host(values[place]), low, high):
                self._check_each(values, key)
                break
        if tests[1]:
            sizes = self._bound(key)
            for guard in tests[1]:
                guard.check(values[guard.place], sizes, self._most_bytes)
        if start is not None:
            EVENTS.note("check", "indices and lengths", start, perf_counter())

    def _bound(self, key: tuple[int, ...]) -> Sizes:
        return dict(zip(self._symbols, key, strict=True))

    def _prepare(self, values: Sequence[Held], key: tuple[int, ...]) -> _Tests:
        """Merge the guards on each array for these sizes; those on constants are checked here.

        If the whole array lies within, so does what any guard sees of it, unless a cast changes it.
        """
        sizes, count = self._bound(key), len(values)
        merged: dict[int, tuple[int, int]] = {}
        others: list[Guard] = []
        for guard in self._guards:
            if guard.place >= count:
                guard.check(self._constants[guard.place - count], sizes, self._most_bytes)
            elif len(guard.intervals) != 1 or guard.is_changed(sizes):
                others.append(guard)
            elif guard.is_asked(sizes):
                ((low, high),) = guard.ends(sizes)
                least, most = merged.get(guard.place, (low, high))
                merged[guard.place] = max(least, low), min(most, high)
        tests = [(place, low, high) for place, (low, high) in merged.items()], others
        return self._keep(key, tests)

    def _check_each(self, values: Sequence[Held], key: tuple[int, ...]) -> None:
        """Ask the guards one by one, in the order of their nodes.

        If all hold, the array has more than the nodes use, and will have it again.
        """
        sizes, count = self._bound(key), len(values)
        asked = [guard for guard in self._guards if guard.place < count]
        for guard in asked:
            guard.check(values[guard.place], sizes, self._most_bytes)
        self._keep(key, ([], asked))

    def _keep(self, key: tuple[int, ...], tests: _Tests) -> _Tests:
        if len(self._tests) >= _KEPT:
            # Not one by one: another thread may be doing the same.
            self._tests.clear()
        self._tests[key] = tests
        return tests


@final
class EntryChecks:
    """The guards on what a caller gives, who may change it during the run.

    Another thread or another process may share its memory, and an engine reads it after the check,
    or twice. So every value that some guard of the plan is about, or that a kernel relies on to
    stay as it is, is copied once, and the copy is checked and run; bytes of such booleans become 0
    and 1. There is no exception: that an array is read-only or owns its data does not tell
    who else holds its memory, and a copy takes less than to find out. Values that a run computes
    are its own.
    """

    def __init__(
        self,
        guards: Sequence[Guard],
        constants: Sequence[Array],
        places: Iterable[int],
        truths: Sequence[int] = (),
        most_bytes: int | None = None,
    ) -> None:
        """``places`` are those of the values to copy; those of ``truths`` are booleans."""
        self._checks = Checks(guards, constants, most_bytes)
        self._places = tuple(sorted({*places} - {*truths}))
        self._truths = tuple(truths)

    def admitted(self, values: Sequence[Held]) -> list[Held]:
        """Return the values of a run; raises CheckError if one is outside of what a guard allows.

        What must be checked or stay as it is is a copy, on the device of the value.
        """
        own = [*values]
        for place in self._places:
            value = own[place]
            if type(value) is ndarray and value.nbytes < LARGE:
                own[place] = value.copy()
            else:
                own[place] = own_copy(value)
        for place in self._truths:
            own[place] = own_truth(own[place])
        self._checks.check(own)
        return own


# The most sizes for which merged guards are kept.
_KEPT = 256


def seen(array: Array, view: Sequence[ViewStep], sizes: Sizes) -> Array:
    """Return the part of an array that a node uses."""
    for name, *arguments in view:
        if name == "take":
            place, axis = arguments
            array = array[(slice(None),) * axis + (place,)]
        elif name == "slice":
            array = array[tuple(_part(bounds, sizes) for bounds in zip(*arguments, strict=True))]
        elif name == "reshape":
            array = array.reshape([evaluate(dim, sizes) for dim in arguments[0]])
        elif name == "broadcast":
            array = np.broadcast_to(array, [evaluate(dim, sizes) for dim in arguments[0]])
        elif name == "transpose":
            array = array.transpose(arguments[0])
        else:
            assert name == "cast", name
            array = array.astype(dtype(arguments[0]).numpy)
    return array


def _part(bounds: tuple[Dim, Dim, int], sizes: Sizes) -> slice:
    start, limit = (evaluate(dim, sizes) for dim in bounds[:2])
    if start < 0:
        # Only backwards, and before the first element: nothing.
        return slice(0, 0)
    return slice(start, None if limit < 0 else limit, bounds[2])
