"""Analyses for printers: the shape of a kernel, and the axes on which its parts depend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal as OneOf

from fusewire.kernel.form import (
    BufferLoad,
    BufferStore,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    Loop,
    Place,
    Statement,
)
from fusewire.kernel.index import Axis, Held, Index, atoms_of

Shape = OneOf["map", "rows", "contraction", "serial"]


@dataclass(frozen=True)
class Contraction:
    """A sum of products: ``before``, then the fold, then ``after`` with its result.

    The fold's body is ``left`` and ``right``, which compute one factor each, and a product. Of the
    kernel's axes, the left factor alone depends on ``rows``, the right one alone on ``columns``,
    both on ``batch``. ``depth`` are the axes of the fold.
    """

    before: tuple[Statement, ...]
    fold: Fold
    after: tuple[Statement, ...]
    left: tuple[Statement, ...]
    right: tuple[Statement, ...]
    factors: tuple[str, str]
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]

    @property
    def depth(self) -> tuple[Axis, ...]:
        return self.fold.axes


def shape_of(kernel: Kernel) -> Shape:
    """Tell how a kernel is best run.

    ``map``: every point by itself. ``rows``: its stages fold and loop over a row, which a group of
    invocations shares. ``contraction``: tiles of sums of products. ``serial``: loops in order.
    """
    if any(isinstance(s, Loop) and (s.ordered or s.carries) for s in walk(kernel.body)):
        return "serial"
    if contraction_of(kernel) is not None:
        return "contraction"
    nests = any(isinstance(s, Fold | Loop) for s in kernel.body)
    return "rows" if nests else "map"


def walk(body: Iterable[Statement]) -> Iterator[Statement]:
    """Yield statements and those inside them, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, Fold | Loop):
            yield from walk(statement.body)


def names_of(statement: Statement) -> tuple[str, ...]:
    """List the values that a statement names in its own scope."""
    if isinstance(statement, Fold):
        return statement.names
    if isinstance(statement, Loop):
        return tuple(carry.name for carry in statement.carries)
    return () if isinstance(statement, BufferStore) else (statement.name,)


def indices_of(statement: Statement) -> Iterator[Index]:
    """Yield the indices that a statement itself computes."""
    if isinstance(statement, BufferLoad | BufferStore):
        yield from statement.index
    if isinstance(statement, BufferLoad | BufferStore | Holds):
        guard: Guard = statement.guard
        yield from (bound.index for bound in guard)
    if isinstance(statement, Place):
        yield statement.index


def operands_of(statement: Statement) -> Iterator[str]:
    """Yield the values that a statement itself uses; what is inside it not included."""
    if isinstance(statement, Compute):
        yield from statement.operands
    if isinstance(statement, BufferStore):
        yield statement.value
    if isinstance(statement, Loop):
        yield from (carry.start for carry in statement.carries)
    yield from (a.value for a in atoms_of(indices_of(statement)) if isinstance(a, Held))


def axes_of(body: Sequence[Statement]) -> Mapping[str, frozenset[Axis]]:
    """Tell for every value of a body the axes around it that it depends on."""
    found: dict[str, frozenset[Axis]] = {}
    _depend(body, found)
    return found


def _depend(body: Sequence[Statement], found: dict[str, frozenset[Axis]]) -> frozenset[Axis]:
    """Find what each value depends on, and all that the body does."""
    total: frozenset[Axis] = frozenset()
    for statement in body:
        own = frozenset(a for a in atoms_of(indices_of(statement)) if isinstance(a, Axis))
        for name in operands_of(statement):
            own |= found.get(name, frozenset())
        if isinstance(statement, Fold | Loop):
            inner = _depend(statement.body, found)
            own |= inner - frozenset(statement.axes)
        found.update((name, own) for name in names_of(statement))
        total |= own
    return total


def contraction_of(kernel: Kernel) -> Contraction | None:
    """Find the one sum of products that a kernel is about; None where it is about other things."""
    folds = [s for s in kernel.body if isinstance(s, Fold)]
    if len(folds) != 1 or any(isinstance(s, Loop) for s in kernel.body):
        return None
    (fold,) = folds
    last = fold.body[-1] if fold.body else None
    product = isinstance(last, Compute) and last.op == "multiply" and fold.combine == "add"
    if not product or not isinstance(last, Compute) or fold.values != (last.name,):
        return None
    if any(isinstance(s, Fold | Loop) for s in fold.body):
        return None
    left, right = (needs(fold.body[:-1], (name,)) for name in last.operands)
    found = axes_of((*kernel.body,))
    near, far = (found[name] for name in last.operands)
    place = kernel.body.index(fold)
    return Contraction(
        kernel.body[:place],
        fold,
        kernel.body[place + 1 :],
        left,
        right,
        (last.operands[0], last.operands[1]),
        tuple(a for a in kernel.axes if a in near and a in far),
        tuple(a for a in kernel.axes if a in near and a not in far),
        tuple(a for a in kernel.axes if a in far and a not in near),
    )


def needs(body: Iterable[Statement], names: Iterable[str]) -> tuple[Statement, ...]:
    """Keep what these values of a body need, in its order; stores are left out."""
    wanted, kept = {*names}, []
    for statement in reversed([*body]):
        if wanted & {*names_of(statement)}:
            kept.append(statement)
            wanted |= {*operands_of(statement)}
    return tuple(reversed(kept))
