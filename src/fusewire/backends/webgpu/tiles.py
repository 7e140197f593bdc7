"""Sums of products by tiles in registers: each factor that is loaded is used several times.

Rows and columns of a tile lie apart by the number of tiles, so that neighbouring invocations read
neighbouring elements. Those of a last tile that lie beyond the end are computed at the end, and
not stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewire.backends.webgpu.page import Page
from fusewire.backends.webgpu.scalars import combine, cut, literal
from fusewire.kernel.analysis import Contraction, names_of, needs, operands_of
from fusewire.kernel.form import Compute, Statement
from fusewire.kernel.index import Axis


def add(page: Page, found: Contraction, tile: tuple[int, int]) -> int:
    """Add the body of an invocation; count the invocations."""
    rows, columns = (math.prod(a.extent for a in axes) for axes in (found.rows, found.columns))
    sides = {*found.rows, *found.columns}
    batches = tuple(axis for axis in page.kernel.axes if axis not in sides)
    batch = math.prod(a.extent for a in batches)
    high, wide = side(rows, tile[0]), side(columns, tile[1])
    down, across = -(-rows // high), -(-columns // wide)
    with page.block("if (at < params[0].x)"):
        # Neighbours make neighbouring elements of the output: their stores and loads are one.
        fast, slow = ("row", "column") if _ends_in_rows(page, found) else ("column", "row")
        first, then = (down, across) if fast == "row" else (across, down)
        page.line(f"let {fast} = i32(at % {first}u);")
        page.line(f"let {slow} = i32((at / {first}u) % {then}u);")
        page.unravel(f"(at / {across * down}u)", batches)
        left = [_place(page, found.rows, "row", n * down, rows) for n in range(high)]
        right = [_place(page, found.columns, "column", n * across, columns) for n in range(wide)]
        sums = _sums(page, found, left, right)
        finish(page, found, sums, (down, across), (rows, columns))
    return batch * down * across


def _ends_in_rows(page: Page, found: Contraction) -> bool:
    return bool(found.rows) and page.kernel.axes[-1] in found.rows


def side(count: int, most: int) -> int:
    """Give the rows or columns of a tile: no more than there are."""
    return max(n for n in (1, 2, 4, 8, 16) if n <= max(min(count, most), 1))


def _place(page: Page, axes: Sequence[Axis], start: str, step: int, count: int) -> dict[Axis, str]:
    """Name the axes of one row or column of the tile."""
    if not axes:
        return {}
    flat = f"min({start} + {step}, {count - 1})" if step else start
    page.unravel(f"({flat})", axes)
    return {axis: page.places.axes[axis] for axis in axes}


def zeros(page: Page, found: Contraction, high: int, wide: int) -> list[list[str]]:
    """Declare the sums of a tile; give their names, by rows."""
    zero = literal(0, found.fold.dtypes[0], page.features)
    sums = [[page.fresh("s") for _ in range(wide)] for _ in range(high)]
    for name in (name for line in sums for name in line):
        page.line(f"var {name} = {zero};")
    return sums


def _sums(
    page: Page, found: Contraction, left: list[dict[Axis, str]], right: list[dict[Axis, str]]
) -> list[list[str]]:
    """Add the loop over the depth; give the names of the sums, by rows."""
    fold, axes = found.fold, page.places.axes
    sums = zeros(page, found, len(left), len(right))
    # A factor that is the same all along the depth is made before it.
    outer = [
        needs(found.before, {*free(part), factor})
        for part, factor in zip((found.left, found.right), found.factors, strict=True)
    ]
    sides = []
    for body, places in zip(outer, (left, right), strict=True):
        named = []
        for place in places:
            axes.update(place)
            page.body(body)
            named.append(dict(page.places.names))
        sides.append(named)
    product = fold.body[-1]
    assert isinstance(product, Compute)
    if any(axis.extent == 0 for axis in fold.axes):
        return sums
    with page.running(fold.axes):
        factors = []
        parts = zip((found.left, found.right), (left, right), sides, found.factors, strict=True)
        for side, places, names, factor in parts:
            line = []
            for place, known in zip(places, names, strict=True):
                axes.update(place)
                page.places.names.update(known)
                page.body(side)
                line.append(page.value(factor))
            factors.append(line)
        multiply(page, found, sums, factors)
    return sums


def free(body: Sequence[Statement]) -> set[str]:
    """List the values that a body uses and does not make."""
    made = {name for s in body for name in names_of(s)}
    return {name for s in body for name in operands_of(s)} - made


def multiply(
    page: Page, found: Contraction, sums: list[list[str]], factors: list[list[str]]
) -> None:
    """Add the products of factors, each row with each column, to the sums."""
    fold = found.fold
    of = fold.dtypes[0]
    times = combine("multiply", of, page.features)
    plus = combine("add", of, page.features)
    for line, left in zip(sums, factors[0], strict=True):
        for name, right in zip(line, factors[1], strict=True):
            made = times.replace("{0}", left).replace("{1}", right)
            page.line(f"{name} = {plus.replace('{0}', name).replace('{1}', f'({made})')};")


def finish(
    page: Page,
    found: Contraction,
    sums: list[list[str]],
    tiles: tuple[int, int],
    ends: tuple[int, int],
    *,
    bounded: bool = False,
) -> None:
    """Add what follows the sums, once for each: in a loop, so that its text is there once.

    ``bounded``: also the first row and column of a tile may lie beyond the end.
    """
    fold, wide = found.fold, len(sums[0])
    of = fold.dtypes[0]
    flat = [name for line in sums for name in line]
    if len(flat) == 1 and not bounded:
        _one(page, found, flat[0], ("row", "column"))
        return
    register = page.register(of)
    page.line(f"var tile = array<{register}, {len(flat)}>({', '.join(flat)});")
    with page.block(f"for (var n = 0; n < {len(flat)}; n++)"):
        page.line(f"let tr = row + (n / {wide}) * {tiles[0]};")
        page.line(f"let tc = column + (n % {wide}) * {tiles[1]};")
        with page.block(f"if (tr < {ends[0]} && tc < {ends[1]})"):
            _one(page, found, "tile[n]", ("tr", "tc"))


def _one(page: Page, found: Contraction, value: str, place: tuple[str, str]) -> None:
    of = found.fold.dtypes[0]
    for axes, at in zip((found.rows, found.columns), place, strict=True):
        page.unravel(at, axes)
    name = page.fresh()
    page.line(f"let {name} = {cut(value, of)};")
    page.name(found.fold.names[0], of, name, found.fold.combine)
    page.body([*found.before, *found.after])
