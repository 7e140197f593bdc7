"""The statements of a kernel as lines of Triton over tiles: every scalar is a block of scalars.

A ``Scope`` says what a line of code sees: where each axis runs in the tile, the tile's shape, and
which of its points exist. Values are blocks of the tile's rank that broadcast to its shape; their
``dims`` are those in which one may differ. None is a scalar: Triton 3.9's interpreter takes what a
comparison of scalars gives for a float. Folds and loops run along the free dim of a tile in blocks,
or one point after another. Nothing here knows how a kernel is spread over tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from fusewire.backends.triton.expressions import TABLE, expression, in_register, kind_of
from fusewire.backends.triton.storage import literal, storage_of
from fusewire.dtypes import DType, bool_, int32
from fusewire.kernel.analysis import walk
from fusewire.kernel.form import (
    BufferLoad,
    BufferStore,
    Combine,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    Literal,
    Loop,
    Place,
    Scalar,
    Statement,
    identity,
)
from fusewire.kernel.index import Axis, Held, Index, Quotient, Remainder, atoms_of, flatten
from fusewire.kernel.printed import IndexPrinter, strides

Dims = frozenset[int]
NONE: Dims = frozenset()
_WIDE: Dims = frozenset({1})


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


@final
@dataclass(frozen=True)
class _Indices(IndexPrinter):
    """Indices as blocks of int32."""

    scope: Scope

    def number(self, value: int) -> str:
        """Print an integer."""
        return str(value)

    def total(self, terms: Sequence[str]) -> str:
        """Print a sum."""
        return " + ".join(terms)

    def axis(self, axis: Axis) -> str:
        """Give the name of an axis."""
        return self.scope.spots[axis].text

    def held(self, atom: Held) -> str:
        """Print an integer of the body, clamped."""
        value = self.scope.values[atom.value]
        if value.dtype.kind == "bool":
            return f"{value.text}.to(tl.int32)"
        last = atom.extent - 1
        if value.dtype.range[1] > last:
            return f"tl.minimum(tl.maximum({value.text}, 0), {last}).to(tl.int32)"
        return f"tl.maximum({value.text}, 0).to(tl.int32)"

    def divided(self, atom: Quotient | Remainder, inner: str) -> str:
        """Divide what was made positive first: Triton rounds quotients toward 0."""
        low = atom.of.range[0]
        more = -(low // atom.by) if low < 0 else 0
        lifted = f"({inner} + {more * atom.by})" if more else f"({inner})"
        if isinstance(atom, Quotient):
            return f"({lifted} // {atom.by} - {more})" if more else f"({lifted} // {atom.by})"
        return f"({lifted} % {atom.by})"


def _dims_of(indices: Iterable[Index], scope: Scope) -> Dims:
    found = NONE
    for atom in atoms_of(indices):
        at = scope.spots[atom] if isinstance(atom, Axis) else scope.values[atom.value]
        found |= at.dims
    return found


def _tests(guard: Guard, scope: Scope) -> list[str]:
    return [f"({test})" for test in _Indices(scope).bounds(guard)]


class Body:
    """Prints statements."""

    def __init__(self, kernel: Kernel, lines: Lines) -> None:
        self._kernel = kernel
        self._lines = lines
        self._locals = {buffer.name for buffer in kernel.locals}
        written = {buffer.name for buffer in kernel.writes}
        loaded = {s.buffer for s in walk(kernel.body) if isinstance(s, BufferLoad)}
        # What a kernel writes and reads again: threads must see what others wrote.
        self._shared = self._locals | (written & loaded)

    def scalars(self, statements: Sequence[Statement], scope: Scope) -> Scope:
        """Print statements that are neither folds nor loops."""
        for statement in statements:
            if isinstance(statement, BufferStore):
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
            case BufferLoad():
                return self._load(statement, scope)
            case Literal(dtype=of, value=value):
                return self._named(literal(value, of, scope.one), of, NONE)
            case Place(dtype=of, index=index):
                return self._place(index, of, scope)
            case Holds(guard=guard):
                said = " & ".join(_tests(guard, scope)) or literal(1, bool_, scope.one)
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
        number = self._lines.say(_Indices(scope).index(index))
        said = f"({number} != 0)" if of is bool_ else f"{number}.to({storage_of(of).register})"
        return self._named(said, of, _dims_of([index], scope))

    # -- memory

    def _where(self, access: BufferLoad | BufferStore, scope: Scope) -> tuple[str, Dims, set[str]]:
        """Print the place of an access; also what masks the axes of it have."""
        shape = self._kernel.buffer(access.buffer).shape
        place = flatten(access.index, shape)
        text, dims = _Indices(scope).index(place), _dims_of([place], scope)
        axes = [a for a in atoms_of([place]) if isinstance(a, Axis)]
        if access.buffer in self._locals:
            text, dims = f"(point * {math.prod(shape)} + {text})", dims | {0}
            axes += [a for a in self._kernel.axes if a in scope.spots]
        masks = {scope.spots[a].mask for a in axes} - {None}
        return text, dims, {mask for mask in masks if mask is not None}

    def _load(self, load: BufferLoad, scope: Scope) -> Value:
        text, dims, masks = self._where(load, scope)
        guards = _tests(load.guard, scope)
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

    def _store(self, store: BufferStore, scope: Scope) -> None:
        text, _, _ = self._where(store, scope)
        masks = [*scope.masks, *_tests(store.guard, scope)]
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


def power_of_two(least: int) -> int:
    """Give the smallest power of two that is no smaller."""
    return 1 << max(least - 1, 0).bit_length()


class Nest:
    """Prints a body with the folds and loops in it."""

    def __init__(self, kernel: Kernel, lines: Lines) -> None:
        self._body = Body(kernel, lines)
        self._lines = lines

    def statements(self, body: Sequence[Statement], scope: Scope) -> Scope:
        """Print statements; what they name is in the scope that is given back."""
        for statement in body:
            if isinstance(statement, Fold):
                scope = self._fold(statement, scope)
            elif isinstance(statement, Loop):
                scope = self._loop(statement, scope)
            else:
                scope = self._body.scalars([statement], scope)
        return scope

    # -- folds

    def _fold(self, fold: Fold, scope: Scope) -> Scope:
        count = math.prod(axis.extent for axis in fold.axes)
        pair = fold.combine in ("argmax", "argmin")
        if count == 0:
            numbers = [0, 0] if pair else [identity(fold.combine, fold.dtypes[0])]
            found = [
                self._lines.say(literal(n, of, scope.one))
                for n, of in zip(numbers, fold.dtypes, strict=True)
            ]
        elif pair:
            found = self._pairs(fold, scope, count)
        elif scope.width and fold.combine != "multiply":
            found = self._wide_fold(fold, scope, count)
        else:
            found = self._slow_fold(fold, scope)
        values = dict(scope.values)
        for name, text, of in zip(fold.names, found, fold.dtypes, strict=True):
            values[name] = Value(text, of, scope.dims)
        return replace(scope, values=values)

    def _start(self, fold: Fold, shape: Sequence[int]) -> str:
        of = fold.dtypes[0]
        return self._lines.say(literal(identity(fold.combine, of), of, shape))

    def _slow_fold(self, fold: Fold, scope: Scope) -> list[str]:
        """Fold one point after another."""
        total, of = self._start(fold, scope.shape), fold.dtypes[0]
        inner = self._entered(fold.axes, scope)
        inner = self.statements(fold.body, replace(inner, width=0))
        value = inner.values[fold.values[0]].text
        self._lines.put(f"{total} = {self._body.combined(fold.combine, of, total, value)}")
        self._left(fold.axes)
        return [total]

    def _wide_fold(self, fold: Fold, scope: Scope, count: int) -> list[str]:
        """Fold in blocks of points, and the block in the end."""
        of = fold.dtypes[0]
        width = min(power_of_two(count), scope.width)
        shape = (scope.shape[0], width)
        total = self._start(fold, shape)
        inner, mask = self._along(fold.axes, scope, count, width)
        value = self.statements(fold.body, inner).values[fold.values[0]].text
        none = literal(identity(fold.combine, of), of)
        kept = value if mask is None else self._lines.say(f"tl.where({mask}, {value}, {none})")
        self._lines.put(f"{total} = {self._body.combined(fold.combine, of, total, kept)}")
        self._out(count, width)
        return [self._reduced(fold.combine, of, total)]

    def _reduced(self, combine: str, of: DType, total: str) -> str:
        """Combine along the free dim, which is then 1."""
        say, register = self._lines.say, storage_of(of).register
        along = "axis=1, keep_dims=True"
        if combine == "add":
            return say(f"tl.sum({total}, {along}).to({register})")
        name = "max" if combine in ("maximum", "logical_or") else "min"
        if of.kind == "bool":
            return say(f"tl.{name}({total}.to(tl.int32), {along}) != 0")
        if of.is_float:
            # NaN wins, and Triton's own reduction leaves it out.
            lost = say(f"tl.max(({total} != {total}).to(tl.int32), {along})")
            worst = f'float("{"-" if name == "max" else ""}inf")'
            held = say(f"tl.where({total} != {total}, {worst}, {total})")
            found = say(f"tl.{name}({held}, {along})")
            return say(f'tl.where({lost} != 0, float("nan"), {found}).to({register})')
        return say(f"tl.{name}({total}, {along}).to({register})")

    def _pairs(self, fold: Fold, scope: Scope, count: int) -> list[str]:
        """Find the best value, the earliest of its kind, and what came with it, step by step."""
        say, put, (of, with_) = self._lines.say, self._lines.put, fold.dtypes
        shape = scope.shape
        name: Combine = "maximum" if fold.combine == "argmax" else "minimum"
        best = say(literal(identity(name, of), of, shape))
        found = say(literal(0, with_, shape))
        seen = say(literal(0, int32, shape))
        inner = self._entered(fold.axes, scope)
        inner = self.statements(fold.body, replace(inner, width=0))
        value, second = (inner.values[n].text for n in fold.values)
        sign = ">" if fold.combine == "argmax" else "<"
        better = f"({value} {sign} {best})"
        if of.kind == "bool":
            better = f"({value}.to(tl.int32) {sign} {best}.to(tl.int32))"
        if of.is_float:
            better = f"(({best} == {best}) & ({better} | ({value} != {value})))"
        take = say(f"{better} | ({seen} == 0)")
        put(f"{best} = tl.where({take}, {value}, {best})")
        put(f"{found} = tl.where({take}, {second}, {found})")
        put(f"{seen} = {seen} + 1")
        self._left(fold.axes)
        return [best, found]

    # -- loops

    def _loop(self, loop: Loop, scope: Scope) -> Scope:
        count = math.prod(axis.extent for axis in loop.axes)
        if loop.ordered or loop.carries or not scope.width:
            return self._slow_loop(loop, scope)
        if count:
            width = min(power_of_two(count), scope.width)
            inner, _ = self._along(loop.axes, scope, count, width)
            self.statements(loop.body, inner)
            self._out(count, width)
        return scope

    def _slow_loop(self, loop: Loop, scope: Scope) -> Scope:
        values = dict(scope.values)
        for carry in loop.carries:
            start = scope.values[carry.start].text
            text = self._lines.say(f"tl.broadcast_to({start}, {list(scope.shape)})")
            values[carry.name] = Value(text, carry.dtype, scope.dims)
        scope = replace(scope, values=values)
        if math.prod(axis.extent for axis in loop.axes) == 0:
            return scope
        inner = self.statements(loop.body, self._entered(loop.axes, scope))
        nexts, shape = [inner.values[c.next].text for c in loop.carries], list(scope.shape)
        told = [self._lines.say(f"tl.broadcast_to({text}, {shape})") for text in nexts]
        for carry, text in zip(loop.carries, told, strict=True):
            self._lines.put(f"{values[carry.name].text} = {text}")
        self._left(loop.axes)
        return scope

    # -- axes

    def _entered(self, axes: Sequence[Axis], scope: Scope) -> Scope:
        """Open a loop over each axis."""
        spots = dict(scope.spots)
        for axis in axes:
            counter = self._lines.fresh()
            self._lines.enter(f"for {counter} in range({axis.extent}):")
            spots[axis] = Spot(self._lines.say(f"{counter} + {scope.zero}"), frozenset())
        return replace(scope, spots=spots)

    def _left(self, axes: Sequence[Axis]) -> None:
        for _ in axes:
            self._lines.leave()

    def _along(
        self, axes: Sequence[Axis], scope: Scope, count: int, width: int
    ) -> tuple[Scope, str | None]:
        """Lay axes along the free dim: at once, or in a loop over blocks."""
        say, start = self._lines.say, "0"
        if count > width:
            start = self._lines.fresh()
            self._lines.enter(f"for {start} in range(0, {count}, {width}):")
        run = say(f"{start} + tl.arange(0, {width})[None, :]")
        mask = say(f"{run} < {count}") if count % width else None
        spots = {**scope.spots, **spots_of(self._lines, axes, run, _WIDE, mask)}
        masks = scope.masks if mask is None else (*scope.masks, mask)
        shape = scope.shape[0], width
        return Scope(spots, shape, masks, scope.values, scope.dims | _WIDE), mask

    def _out(self, count: int, width: int) -> None:
        if count > width:
            self._lines.leave()


def spots_of(
    lines: Lines, axes: Sequence[Axis], run: str, dims: frozenset[int], mask: str | None
) -> dict[Axis, Spot]:
    """Name each axis of a run of points in row-major order."""
    spots = {}
    for place, (axis, step) in enumerate(strides(axes)):
        text = run if step == 1 else f"{run} // {step}"
        if place:
            text = f"{text} % {axis.extent}"
        spots[axis] = Spot(lines.say(text) if text != run else run, dims, mask)
    return spots
