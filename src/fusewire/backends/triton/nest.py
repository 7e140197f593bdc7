"""Print folds and loops: along the free dim of a tile in blocks, or one point after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fusewire.backends.triton.storage import literal, storage_of
from fusewire.backends.triton.tile import Body, Lines, Scope, Spot, Value
from fusewire.dtypes import DType, int32
from fusewire.kernel.form import Combine, Fold, Kernel, Loop, Statement, identity
from fusewire.kernel.index import Axis

_WIDE = frozenset({1})


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
    found, step = {}, math.prod(axis.extent for axis in axes)
    for place, axis in enumerate(axes):
        step //= max(axis.extent, 1)
        text = run if step == 1 else f"{run} // {step}"
        if place:
            text = f"{text} % {axis.extent}"
        found[axis] = Spot(lines.say(text) if text != run else run, dims, mask)
    return found
