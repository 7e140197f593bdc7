"""Folds as lines of WGSL: what they gather in, how they combine, what they give.

A pair (argmax, argmin) also has the place of the best so far, because invocations that share a
fold meet its points in another order; -1 is no point yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusewire.backends.webgpu.scalars import combine, compute, cut, literal
from fusewire.dtypes import bool_
from fusewire.kernel.form import Compute, Fold, identity
from fusewire.kernel.index import Index

if TYPE_CHECKING:
    from fusewire.backends.webgpu.page import Page


def start(page: Page, fold: Fold) -> list[str]:
    """Declare what a fold gathers in; pairs have the place of the best, from 0 on, too."""
    names = [page.fresh("s") for _ in fold.names]
    if len(names) == 2:
        page.line(f"var {names[0]} = {page.register(fold.dtypes[0])}();")
        page.line(f"var {names[1]} = {page.register(fold.dtypes[1])}();")
        names.append(page.fresh("s"))
        page.line(f"var {names[2]} = -1;")
    else:
        first = literal(identity(fold.combine, fold.dtypes[0]), fold.dtypes[0], page.features)
        page.line(f"var {names[0]} = {first};")
    return names


def gather(page: Page, fold: Fold, names: Sequence[str], values: Sequence[str]) -> None:
    """Combine values into what a fold gathers in; ``values`` of a pair have its place last."""
    if len(names) == 1:
        code = combine(fold.combine, fold.dtypes[0], page.features)
        page.line(f"{names[0]} = {code.replace('{0}', names[0]).replace('{1}', values[0])};")
        return
    with page.block(f"if ({_is_better(page, fold, names, values)})"):
        for name, value in zip(names, values, strict=True):
            page.line(f"{name} = {value};")


def _is_better(page: Page, fold: Fold, old: Sequence[str], new: Sequence[str]) -> str:
    """Print whether a pair comes before the one that is best so far; NaN before all."""
    of = fold.dtypes[0]

    def compared(op: str, left: str, right: str) -> str:
        code = compute(Compute("", bool_, op, ()), (of, of), page.features)
        return f"({code.replace('{0}', left).replace('{1}', right)})"

    sides = (new[0], old[0]) if fold.combine == "argmin" else (old[0], new[0])
    better, same = compared("less", *sides), compared("equal", new[0], old[0])
    if of.is_float:
        left, right = (f"is_nan_{page.register(of)}({x[0]})" for x in (new, old))
        better = f"(!{right} && ({left} || {better}))"
        same = f"({same} || ({left} && {right}))"
    earlier = f"({same} && {new[2]} < {old[2]})"
    return f"{new[2]} >= 0 && ({old[2]} < 0 || {better} || {earlier})"


def finish(page: Page, fold: Fold, names: Sequence[str]) -> None:
    """Name what a fold gives."""
    for scalar, of, name in zip(fold.names, fold.dtypes, names, strict=False):
        if of.is_integer and of.bits < 32:
            page.line(f"{name} = {cut(name, of)};")
        page.name(scalar, of, name, fold.combine)


def values(page: Page, fold: Fold) -> list[str]:
    """Give the values of a fold's body; those of a pair with the place of their point."""
    found = [page.value(name) for name in fold.values]
    if len(found) == 1:
        return found
    index = Index()
    for axis in fold.axes:
        index = index * axis.extent + Index(((axis, 1),))
    return [*found, page.places.index(index)]
