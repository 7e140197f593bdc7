"""Print the statements of a kernel's body over tiles: every scalar is a block of scalars.

A ``Scope`` says what a line of code sees: where each axis runs in the tile, the tile's shape, and
which of its points exist. Values are blocks of the tile's rank that broadcast to its shape; their
``dims`` are those in which one may differ. None is a scalar: Triton 3.9's interpreter takes what a
comparison of scalars gives for a float. Nothing here knows how a kernel is cut into tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusewire.backends.triton.expressions import TABLE, expression, in_register, kind_of
from fusewire.backends.triton.storage import literal, storage_of
from fusewire.dtypes import DType, bool_, int32
from fusewire.kernel.analysis import walk
from fusewire.kernel.form import (
    Combine,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    Literal,
    Load,
    Loop,
    Place,
    Scalar,
    Statement,
    Store,
)
from fusewire.kernel.index import Atom, Axis, Held, Index, Quotient, atoms_of, flatten

Dims = frozenset[int]
NONE: Dims = frozenset()


@dataclass(frozen=True)
class Value:
    """A name in the printed code, or an expression that needs no brackets."""

    text: str
    dtype: DType
    dims: Dims


@dataclass(frozen=True)
class Spot:
    """An axis in the printed code; ``mask`` tells which of its points exist, None for all."""

    text: str
    dims: Dims
    mask: str | None = None


@dataclass(frozen=True)
class Scope:
    """What a line sees. ``width`` is how many points the free dim of the tile may take, or 0."""

    spots: Mapping[Axis, Spot]
    shape: tuple[int, ...]
    masks: tuple[str, ...]
    values: Mapping[str, Value]
    dims: Dims
    width: int = 0

    @property
    def one(self) -> list[int]:
        """The shape of a block of one."""
        return [1] * len(self.shape)

    @property
    def zero(self) -> str:
        """An index of 0, as a block of one."""
        return literal(0, int32, self.one)


class Lines:
    """Code of one function, as it grows."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.indent = "    "
        self._count = 0

    def put(self, line: str) -> None:
        """Write a line."""
        self.text.append(self.indent + line)

    def fresh(self) -> str:
        """Make up a name."""
        self._count += 1
        return f"r{self._count}"

    def say(self, said: str) -> str:
        """Give an expression a name."""
        name = self.fresh()
        self.put(f"{name} = {said}")
        return name

    def enter(self, line: str) -> None:
        """Open a block."""
        self.put(line)
        self.indent += "    "

    def leave(self) -> None:
        """Close it."""
        self.indent = self.indent[4:]


def index_text(index: Index, scope: Scope) -> str:
    """Print an index; Triton rounds quotients toward 0, so operands are made positive."""
    parts = []
    for atom, factor in index.terms:
        text = _atom_text(atom, scope)
        parts.append(text if factor == 1 else f"{text} * {factor}")
    if index.constant or not parts:
        parts.append(str(index.constant))
    return " + ".join(parts)


def _atom_text(atom: Atom, scope: Scope) -> str:
    if isinstance(atom, Axis):
        return scope.spots[atom].text
    if isinstance(atom, Held):
        return _held_text(atom, scope)
    inner, low = index_text(atom.of, scope), atom.of.range[0]
    more = -(low // atom.by) if low < 0 else 0
    lifted = f"({inner} + {more * atom.by})" if more else f"({inner})"
    if isinstance(atom, Quotient):
        return f"({lifted} // {atom.by} - {more})" if more else f"({lifted} // {atom.by})"
    return f"({lifted} % {atom.by})"


def _held_text(atom: Held, scope: Scope) -> str:
    held = scope.values[atom.value]
    if held.dtype.kind == "bool":
        return f"{held.text}.to(tl.int32)"
    last = atom.extent - 1
    if held.dtype.range[1] > last:
        return f"tl.minimum(tl.maximum({held.text}, 0), {last}).to(tl.int32)"
    return f"tl.maximum({held.text}, 0).to(tl.int32)"


def _dims_of(indices: Iterable[Index], scope: Scope) -> Dims:
    found = NONE
    for atom in atoms_of(indices):
        at = scope.spots[atom] if isinstance(atom, Axis) else scope.values[atom.value]
        found |= at.dims
    return found


def guard_text(guard: Guard, scope: Scope) -> list[str]:
    """Print bounds, but for what no index can pass."""
    said = []
    for bound in guard:
        text, (low, high) = index_text(bound.index, scope), bound.index.range
        if low < bound.low:
            said.append(f"({text} >= {bound.low})")
        if high >= bound.high:
            said.append(f"({text} < {bound.high})")
    return said


class Body:
    """Prints statements."""

    def __init__(self, kernel: Kernel, lines: Lines) -> None:
        self._kernel = kernel
        self._lines = lines
        self._locals = {buffer.name for buffer in kernel.locals}
        written = {buffer.name for buffer in kernel.writes}
        loaded = {s.buffer for s in walk(kernel.body) if isinstance(s, Load)}
        # What a kernel writes and reads again: threads must see what others wrote.
        self._shared = self._locals | (written & loaded)

    def scalars(self, statements: Sequence[Statement], scope: Scope) -> Scope:
        """Print statements that are neither folds nor loops."""
        for statement in statements:
            if isinstance(statement, Store):
                self._store(statement, scope)
            else:
                assert not isinstance(statement, Fold | Loop)
                value = self._scalar(statement, scope)
                scope = replace(scope, values={**scope.values, statement.name: value})
        return scope

    def _named(self, said: str, dtype: DType, dims: Dims) -> Value:
        return Value(self._lines.say(said), dtype, dims)

    def _scalar(self, statement: Scalar, scope: Scope) -> Value:
        match statement:
            case Load():
                return self._load(statement, scope)
            case Literal(dtype=of, value=value):
                return self._named(literal(value, of, scope.one), of, NONE)
            case Place(dtype=of, index=index):
                return self._place(index, of, scope)
            case Holds(guard=guard):
                said = " & ".join(guard_text(guard, scope)) or literal(1, bool_, scope.one)
                return self._named(said, bool_, _dims_of((b.index for b in guard), scope))
            case Compute():
                operands = [scope.values[name] for name in statement.operands]
                dims = frozenset[int]().union(*(x.dims for x in operands))
                names = [x.text for x in operands]
                said = expression(self._lines.say, statement, operands[0].dtype, names)
                return self._named(said, statement.dtype, dims)

    def _place(self, index: Index, of: DType, scope: Scope) -> Value:
        if not index.terms:
            return self._named(literal(index.constant, of, scope.one), of, NONE)
        number = self._lines.say(index_text(index, scope))
        said = f"({number} != 0)" if of is bool_ else f"{number}.to({storage_of(of).register})"
        return self._named(said, of, _dims_of([index], scope))

    # -- memory

    def _where(self, access: Load | Store, scope: Scope) -> tuple[str, Dims, set[str]]:
        """Print the place of an access; also what masks the axes of it have."""
        shape = self._kernel.buffer(access.buffer).shape
        place = flatten(access.index, shape)
        text, dims = index_text(place, scope), _dims_of([place], scope)
        axes = [a for a in atoms_of([place]) if isinstance(a, Axis)]
        if access.buffer in self._locals:
            size = 1
            for dim in shape:
                size *= dim
            text, dims = f"(point * {size} + {text})", dims | {0}
            axes += [a for a in self._kernel.axes if a in scope.spots]
        masks = {scope.spots[a].mask for a in axes} - {None}
        return text, dims, {mask for mask in masks if mask is not None}

    def _load(self, load: Load, scope: Scope) -> Value:
        text, dims, masks = self._where(load, scope)
        guards = guard_text(load.guard, scope)
        wider = _dims_of((b.index for b in load.guard), scope) - dims if guards else NONE
        if wider:
            text, dims = f"{text} + {literal(0, int32, scope.shape)}", scope.dims
        elif not dims:
            text = f"{text} + {scope.zero}"
        mask = " & ".join([*sorted(masks), *guards])
        given = f"{load.buffer} + ({text})"
        said = f"tl.load({given}, mask={mask}, other=0)" if mask else f"tl.load({given})"
        return Value(self._converted(storage_of(load.dtype).read, said), load.dtype, dims)

    def _converted(self, way: str, said: str) -> str:
        """Name what is read or written, in the type that it has on the other side."""
        named = self._lines.say(said)
        return named if way == "{0}" else self._lines.say(way.format(named))

    def _store(self, store: Store, scope: Scope) -> None:
        text, _, _ = self._where(store, scope)
        masks = [*scope.masks, *guard_text(store.guard, scope)]
        place = self._lines.say(f"{text} + {literal(0, int32, scope.shape)}")
        mask = f", mask={' & '.join(masks)}" if masks else ""
        value = scope.values[store.value]
        of = self._kernel.buffer(store.buffer).dtype
        shared = store.buffer in self._shared or store.combine is not None
        if store.combine is not None:
            old = f"tl.load({store.buffer} + {place}{mask})"
            held = self._converted(storage_of(of).read, old)
            said = self.combined(store.combine, of, held, value.text)
            value = Value(self._lines.say(said), of, scope.dims)
        said = storage_of(of).write.format(value.text)
        if shared:
            self._lines.put("tl.debug_barrier()")
        self._lines.put(f"tl.store({store.buffer} + {place}, {said}{mask})")
        if shared:
            self._lines.put("tl.debug_barrier()")

    def combined(self, combine: Combine, of: DType, left: str, right: str) -> str:
        """Print two values combined into one."""
        said = TABLE[combine][kind_of(of)].format(left, right)
        return said if of is bool_ else in_register(said, of, exact=True)
