"""Sums of products by tiles, so that each factor that is loaded is used several times.

An invocation may make a tile by itself, in registers. Rows and columns of it lie apart by the
number of tiles, so that neighbouring invocations read neighbouring elements. Or a workgroup makes a
larger tile, in which each invocation has one in registers: it brings a few steps of the depth of
both factors into its memory, meets, multiplies, and meets again. Rows and columns of a last tile
that lie beyond the end are computed at the end, and not stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.backends.webgpu.expressions import combine, narrowed
from fusewire.backends.webgpu.statements import Page
from fusewire.backends.webgpu.storage import literal
from fusewire.kernel.analysis import Contraction, names_of, needs, operands_of
from fusewire.kernel.form import Statement
from fusewire.kernel.index import Axis

# What every device that speaks WebGPU has.
_MEMORY_BYTES = 16384
# Registers that are wider than a word.
_WIDE = ("f64", "i64", "u64", "vec2<f32>")


def add_by_invocation(page: Page, contraction: Contraction, tile: tuple[int, int]) -> int:
    """Add the body of an invocation; count the invocations."""
    rows, columns = (
        math.prod(a.extent for a in axes) for axes in (contraction.rows, contraction.columns)
    )
    sides = {*contraction.rows, *contraction.columns}
    batches = tuple(axis for axis in page.kernel.axes if axis not in sides)
    batch = math.prod(a.extent for a in batches)
    high, wide = _side(rows, tile[0]), _side(columns, tile[1])
    down, across = -(-rows // high), -(-columns // wide)
    with page.block("if (at < params[0].x)"):
        # Neighbours make neighbouring elements of the output: their stores and loads are one.
        fast, slow = ("row", "column") if _ends_in_rows(page, contraction) else ("column", "row")
        first, then = (down, across) if fast == "row" else (across, down)
        page.line(f"let {fast} = i32(at % {first}u);")
        page.line(f"let {slow} = i32((at / {first}u) % {then}u);")
        page.unravel(f"(at / {across * down}u)", batches)
        left = [_place(page, contraction.rows, "row", n * down, rows) for n in range(high)]
        right = [
            _place(page, contraction.columns, "column", n * across, columns) for n in range(wide)
        ]
        sums = _sums(page, contraction, left, right)
        _finish(page, contraction, sums, (down, across), (rows, columns))
    return batch * down * across


def _ends_in_rows(page: Page, contraction: Contraction) -> bool:
    return bool(contraction.rows) and page.kernel.axes[-1] in contraction.rows


def _side(count: int, most: int) -> int:
    """Give the rows or columns of a tile: no more than there are."""
    return max(n for n in (1, 2, 4, 8, 16) if n <= max(min(count, most), 1))


def _place(page: Page, axes: Sequence[Axis], start: str, step: int, count: int) -> dict[Axis, str]:
    """Name the axes of one row or column of the tile."""
    if not axes:
        return {}
    flat = f"min({start} + {step}, {count - 1})" if step else start
    page.unravel(f"({flat})", axes)
    return {axis: page.indices.axes[axis] for axis in axes}


def _zeros(page: Page, contraction: Contraction, high: int, wide: int) -> list[list[str]]:
    """Declare the sums of a tile; give their names, by rows."""
    zero = literal(0, contraction.fold.dtypes[0], page.features)
    sums = [[page.fresh("s") for _ in range(wide)] for _ in range(high)]
    for name in (name for line in sums for name in line):
        page.line(f"var {name} = {zero};")
    return sums


def _sums(
    page: Page, contraction: Contraction, left: list[dict[Axis, str]], right: list[dict[Axis, str]]
) -> list[list[str]]:
    """Add the loop over the depth; give the names of the sums, by rows."""
    sums = _zeros(page, contraction, len(left), len(right))
    names = [_prologue(page, contraction, side, line) for side, line in enumerate((left, right))]
    if any(axis.extent == 0 for axis in contraction.depth):
        return sums
    with page.running(contraction.depth):
        factors = [
            _factors(page, contraction, side, line, names[side])
            for side, line in enumerate((left, right))
        ]
        _multiply(page, contraction, sums, factors)
    return sums


def _prologue(
    page: Page, contraction: Contraction, side: int, line: list[dict[Axis, str]]
) -> list[dict[str, str]]:
    """Add what a factor needs that is the same all along the depth; give the names in use."""
    part, factor = (contraction.left, contraction.right)[side], contraction.factors[side]
    body, names = needs(contraction.before, {*_free(part), factor}), []
    for place in line:
        page.indices.axes.update(place)
        page.body(body)
        names.append(dict(page.indices.names))
    return names


def _factors(
    page: Page,
    contraction: Contraction,
    side: int,
    line: list[dict[Axis, str]],
    names: list[dict[str, str]],
) -> list[str]:
    """Add what computes a factor for each row or column of the tile; give their names."""
    factors = []
    for place, known in zip(line, names, strict=True):
        page.indices.axes.update(place)
        page.indices.names.update(known)
        page.body((contraction.left, contraction.right)[side])
        factors.append(page.value(contraction.factors[side]))
    return factors


def _free(body: Sequence[Statement]) -> set[str]:
    """List the values that a body uses and does not make."""
    made = {name for s in body for name in names_of(s)}
    return {name for s in body for name in operands_of(s)} - made


def _multiply(
    page: Page, contraction: Contraction, sums: list[list[str]], factors: list[list[str]]
) -> None:
    """Add the products of factors, each row with each column, to the sums."""
    fold = contraction.fold
    of = fold.dtypes[0]
    times = combine("multiply", of, page.features)
    plus = combine("add", of, page.features)
    for line, left in zip(sums, factors[0], strict=True):
        for name, right in zip(line, factors[1], strict=True):
            made = times.replace("{0}", left).replace("{1}", right)
            page.line(f"{name} = {plus.replace('{0}', name).replace('{1}', f'({made})')};")


def _finish(
    page: Page,
    contraction: Contraction,
    sums: list[list[str]],
    tiles: tuple[int, int],
    ends: tuple[int, int],
    *,
    bounded: bool = False,
) -> None:
    """Add what follows the sums, once for each: in a loop, so that its text is there once.

    ``bounded``: also the first row and column of a tile may lie beyond the end.
    """
    fold, wide = contraction.fold, len(sums[0])
    of = fold.dtypes[0]
    flat = [name for line in sums for name in line]
    if len(flat) == 1 and not bounded:
        _one(page, contraction, flat[0], ("row", "column"))
        return
    register = page.register(of)
    page.line(f"var tile = array<{register}, {len(flat)}>({', '.join(flat)});")
    with page.block(f"for (var n = 0; n < {len(flat)}; n++)"):
        page.line(f"let tr = row + (n / {wide}) * {tiles[0]};")
        page.line(f"let tc = column + (n % {wide}) * {tiles[1]};")
        with page.block(f"if (tr < {ends[0]} && tc < {ends[1]})"):
            _one(page, contraction, "tile[n]", ("tr", "tc"))


def _one(page: Page, contraction: Contraction, value: str, place: tuple[str, str]) -> None:
    of = contraction.fold.dtypes[0]
    for axes, at in zip((contraction.rows, contraction.columns), place, strict=True):
        page.unravel(at, axes)
    name = page.fresh()
    page.line(f"let {name} = {narrowed(value, of)};")
    page.name(contraction.fold.names[0], of, name, contraction.fold.combine)
    page.body([*contraction.before, *contraction.after])


@dataclass(frozen=True)
class _Layout:
    """How a workgroup lies over rows and columns, and how large the whole is."""

    high: int
    wide: int
    down: int
    across: int
    deep: int
    rows: int
    columns: int
    depth: int

    @property
    def tall(self) -> int:
        """Rows of a workgroup."""
        return self.high * self.down

    @property
    def broad(self) -> int:
        """Columns of a workgroup."""
        return self.wide * self.across

    @property
    def groups(self) -> tuple[int, int]:
        """Workgroups over the rows and over the columns."""
        return -(-self.rows // self.tall), -(-self.columns // self.broad)


def _layout_of(
    contraction: Contraction, tile: tuple[int, int], workgroup: int, deep: int, word: int
) -> _Layout | None:
    """Lay a workgroup out; None where it has no square, no depth, or too little memory."""
    rows, columns, depth = (
        math.prod(a.extent for a in axes)
        for axes in (contraction.rows, contraction.columns, contraction.depth)
    )
    if not deep or not depth or workgroup & (workgroup - 1):
        return None
    across = 1 << workgroup.bit_length() // 2
    high, wide = _side(rows, tile[0]), _side(columns, tile[1])
    layout = _Layout(high, wide, workgroup // across, across, deep, rows, columns, depth)
    return layout if (layout.tall + layout.broad) * deep * word <= _MEMORY_BYTES else None


def add_by_workgroup(
    page: Page, contraction: Contraction, tile: tuple[int, int], workgroup: int, deep: int
) -> int | None:
    """Add the body of an invocation; count the workgroups. None, and nothing, where it cannot."""
    register = page.register(contraction.fold.dtypes[0])
    at = _layout_of(contraction, tile, workgroup, deep, 8 if register in _WIDE else 4)
    if at is None:
        return None
    sides = {*contraction.rows, *contraction.columns}
    batches = tuple(axis for axis in page.kernel.axes if axis not in sides)
    over, along = at.groups
    with page.block("if (group < params[0].x)"):
        page.line(f"let high = i32((group / {along}u) % {over}u) * {at.tall};")
        page.line(f"let left = i32(group % {along}u) * {at.broad};")
        page.unravel(f"(group / {over * along}u)", batches)
        page.line(f"let row = high + i32(lane / {at.across}u);")
        page.line(f"let column = left + i32(lane % {at.across}u);")
        sums = _zeros(page, contraction, at.high, at.wide)
        _over_depth(page, contraction, at, workgroup, sums)
        _finish(page, contraction, sums, (at.down, at.across), (at.rows, at.columns), bounded=True)
    return math.prod(axis.extent for axis in batches) * over * along


def _over_depth(
    page: Page, contraction: Contraction, at: _Layout, workgroup: int, sums: list[list[str]]
) -> None:
    """Add the loop over the depth: both factors are brought in, then multiplied."""
    with page.block(f"for (var start = 0; start < {at.depth}; start += {at.deep})"):
        element = page.fresh("e")
        near = _bring(
            page,
            contraction,
            0,
            workgroup,
            at.tall * at.deep,
            element,
            (f"high + {element} / {at.deep}", at.rows, f"start + {element} % {at.deep}", at.depth),
        )
        element = page.fresh("e")
        far = _bring(
            page,
            contraction,
            1,
            workgroup,
            at.deep * at.broad,
            element,
            (
                f"left + {element} % {at.broad}",
                at.columns,
                f"start + {element} / {at.broad}",
                at.depth,
            ),
        )
        page.line("workgroupBarrier();")
        with page.block(f"for (var k = 0; k < min({at.deep}, {at.depth} - start); k++)"):
            up, side = f"(row - high) * {at.deep} + k", f"k * {at.broad} + column - left"
            factors = [
                [_held(page, f"{near}[{up} + {n * at.down * at.deep}]") for n in range(at.high)],
                [_held(page, f"{far}[{side} + {n * at.across}]") for n in range(at.wide)],
            ]
            _multiply(page, contraction, sums, factors)
        page.line("workgroupBarrier();")


def _bring(
    page: Page,
    contraction: Contraction,
    side: int,
    workgroup: int,
    count: int,
    element: str,
    place: tuple[str, int, str, int],
) -> str:
    """Add what fills memory of the workgroup with a part of a factor; give its name."""
    body: Sequence[Statement] = (contraction.left, contraction.right)[side]
    axes: Sequence[Axis] = (contraction.rows, contraction.columns)[side]
    flat, end, step, last = place
    head = f"for (var {element} = i32(lane); {element} < {count}; {element} += {workgroup})"
    with page.block(head):
        page.unravel(f"min({flat}, {end - 1})", axes)
        page.unravel(f"min({step}, {last - 1})", contraction.depth)
        factor = contraction.factors[side]
        # A factor that is the same all along the depth is made before it.
        page.body([*needs(contraction.before, {*_free(body), factor}), *body])
        memory = page.shared(page.register(page.indices.dtypes[factor]), count, side)
        page.line(f"{memory}[{element}] = {page.value(factor)};")
    return memory


def _held(page: Page, code: str) -> str:
    name = page.fresh()
    page.line(f"let {name} = {code};")
    return name
