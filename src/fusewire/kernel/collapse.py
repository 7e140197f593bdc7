"""Join neighbouring axes that all accesses traverse as one, to save loops.

Row-major places are what counts: an elementwise chain over [2, 3, 4] reads and writes place after
place, and needs one axis of 24. Two axes stay apart where joining them would leave a division in
some place, guard or number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fusewire.kernel.analysis import walk
from fusewire.kernel.form import (
    Bound,
    BufferLoad,
    BufferStore,
    Fold,
    Guard,
    Holds,
    Kernel,
    KernelBuffer,
    Loop,
    Place,
    Statement,
)
from fusewire.kernel.index import Axis, Index, at, flatten, has_division, substituted

Places = Mapping[Axis, Index]


def collapsed(kernel: Kernel) -> Kernel:
    """Join axes of a kernel and of the folds and loops in it, wherever that costs nothing."""
    while (pair := _pair(kernel)) is not None:
        first, second = pair
        joined = Axis(f"{first.name}_{second.name[1:]}", first.extent * second.extent)
        kernel = _joined(kernel, pair, joined, _places(pair, joined))
    return kernel


def _pair(kernel: Kernel) -> tuple[Axis, Axis] | None:
    """Find neighbours that can be joined."""
    for axes in _lines(kernel):
        for pair in itertools.pairwise(axes):
            extent = pair[0].extent * pair[1].extent
            if extent and _is_free(kernel, _places(pair, Axis("joined", extent))):
                return pair
    return None


def _places(pair: tuple[Axis, Axis], joined: Axis) -> Places:
    first, second = pair
    return {first: at(joined) // second.extent, second: at(joined) % second.extent}


def _lines(kernel: Kernel) -> Iterable[tuple[Axis, ...]]:
    """List axes that stand side by side."""
    yield kernel.axes
    for statement in walk(kernel.body):
        # A loop in order hands on from point to point; its axes stay as they are.
        if isinstance(statement, Fold) or (isinstance(statement, Loop) and not statement.carries):
            yield statement.axes


def _is_free(kernel: Kernel, places: Places) -> bool:
    """Tell whether no new division is needed if axes are joined."""
    buffers = {b.name: b for b in (*kernel.reads, *kernel.writes, *kernel.locals)}
    mine = set(places)
    for statement in walk(kernel.body):
        for index in _computed(statement, buffers):
            touched = {a for a, _ in index.terms if isinstance(a, Axis)} & mine
            if touched and has_division(index):
                return False
            if not touched and not has_division(index):
                continue
            if has_division(substituted(index, places)):
                return False
    return True


def _computed(statement: Statement, buffers: Mapping[str, KernelBuffer]) -> Iterable[Index]:
    """List the numbers that a statement computes of axes: places, bounds, values."""
    if isinstance(statement, BufferLoad | BufferStore):
        yield flatten(statement.index, buffers[statement.buffer].shape)
    if isinstance(statement, BufferLoad | BufferStore | Holds):
        yield from (bound.index for bound in statement.guard)
    if isinstance(statement, Place):
        yield statement.index


def _joined(kernel: Kernel, pair: tuple[Axis, Axis], joined: Axis, places: Places) -> Kernel:
    def axes(given: tuple[Axis, ...]) -> tuple[Axis, ...]:
        if pair[0] not in given:
            return given
        place = given.index(pair[0])
        return (*given[:place], joined, *given[place + 2 :])

    def indices(given: Sequence[Index]) -> tuple[Index, ...]:
        return tuple(substituted(index, places) for index in given)

    def guard(given: Guard) -> Guard:
        return tuple(Bound(substituted(b.index, places), b.low, b.high) for b in given)

    def body(given: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(map(statement, given))

    def statement(given: Statement) -> Statement:
        if isinstance(given, BufferLoad | BufferStore):
            return replace(given, index=indices(given.index), guard=guard(given.guard))
        if isinstance(given, Holds):
            return replace(given, guard=guard(given.guard))
        if isinstance(given, Place):
            return replace(given, index=substituted(given.index, places))
        if isinstance(given, Fold | Loop):
            return replace(given, axes=axes(given.axes), body=body(given.body))
        return given

    return replace(kernel, axes=axes(kernel.axes), body=body(kernel.body))
