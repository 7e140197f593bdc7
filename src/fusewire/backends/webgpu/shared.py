"""Sums of products by tiles in workgroup memory: what one invocation loads, its whole group uses.

A workgroup makes a tile of rows and columns, in which each invocation has a tile in registers. It
brings a few steps of the depth of both factors into its memory, meets, multiplies, and meets again.
What lies beyond the end is computed at the end, and not stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.backends.webgpu import tiles
from fusewire.backends.webgpu.page import Page
from fusewire.kernel.analysis import Contraction, needs
from fusewire.kernel.form import Statement
from fusewire.kernel.index import Axis

# What every device that speaks WebGPU has.
MEMORY_BYTES = 16384
# Registers that are wider than a word.
_WIDE = ("f64", "i64", "u64", "vec2<f32>")


@dataclass(frozen=True)
class Layout:
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


def layout_of(
    found: Contraction, tile: tuple[int, int], workgroup: int, deep: int, word: int
) -> Layout | None:
    """Lay a workgroup out; None where it has no square, no depth, or too little memory."""
    rows, columns, depth = (
        math.prod(a.extent for a in axes) for axes in (found.rows, found.columns, found.depth)
    )
    if not deep or not depth or workgroup & (workgroup - 1):
        return None
    across = 1 << workgroup.bit_length() // 2
    high, wide = tiles.side(rows, tile[0]), tiles.side(columns, tile[1])
    made = Layout(high, wide, workgroup // across, across, deep, rows, columns, depth)
    return made if (made.tall + made.broad) * deep * word <= MEMORY_BYTES else None


def add(
    page: Page, found: Contraction, tile: tuple[int, int], workgroup: int, deep: int
) -> int | None:
    """Add the body of an invocation; count the workgroups. None, and nothing, where it cannot."""
    register = page.register(found.fold.dtypes[0])
    at = layout_of(found, tile, workgroup, deep, 8 if register in _WIDE else 4)
    if at is None:
        return None
    sides = {*found.rows, *found.columns}
    batches = tuple(axis for axis in page.kernel.axes if axis not in sides)
    over, along = at.groups
    with page.block("if (group < params[0].x)"):
        page.line(f"let high = i32((group / {along}u) % {over}u) * {at.tall};")
        page.line(f"let left = i32(group % {along}u) * {at.broad};")
        page.unravel(f"(group / {over * along}u)", batches)
        page.line(f"let row = high + i32(lane / {at.across}u);")
        page.line(f"let column = left + i32(lane % {at.across}u);")
        sums = tiles.zeros(page, found, at.high, at.wide)
        _over_depth(page, found, at, workgroup, sums)
        tiles.finish(page, found, sums, (at.down, at.across), (at.rows, at.columns), bounded=True)
    return math.prod(axis.extent for axis in batches) * over * along


def _over_depth(
    page: Page, found: Contraction, at: Layout, workgroup: int, sums: list[list[str]]
) -> None:
    """Add the loop over the depth: both factors are brought in, then multiplied."""
    with page.block(f"for (var start = 0; start < {at.depth}; start += {at.deep})"):
        element = page.fresh("e")
        near = _bring(
            page,
            found,
            0,
            workgroup,
            at.tall * at.deep,
            element,
            (f"high + {element} / {at.deep}", at.rows, f"start + {element} % {at.deep}", at.depth),
        )
        element = page.fresh("e")
        far = _bring(
            page,
            found,
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
            tiles.multiply(page, found, sums, factors)
        page.line("workgroupBarrier();")


def _bring(
    page: Page,
    found: Contraction,
    side: int,
    workgroup: int,
    count: int,
    element: str,
    place: tuple[str, int, str, int],
) -> str:
    """Add what fills memory of the workgroup with a part of a factor; give its name."""
    body: Sequence[Statement] = (found.left, found.right)[side]
    axes: Sequence[Axis] = (found.rows, found.columns)[side]
    flat, end, step, last = place
    head = f"for (var {element} = i32(lane); {element} < {count}; {element} += {workgroup})"
    with page.block(head):
        page.unravel(f"min({flat}, {end - 1})", axes)
        page.unravel(f"min({step}, {last - 1})", found.depth)
        factor = found.factors[side]
        # A factor that is the same all along the depth is made before it.
        page.body([*needs(found.before, {*tiles.free(body), factor}), *body])
        memory = page.shared(page.register(page.places.dtypes[factor]), count, side)
        page.line(f"{memory}[{element}] = {page.value(factor)};")
    return memory


def _held(page: Page, code: str) -> str:
    name = page.fresh()
    page.line(f"let {name} = {code};")
    return name
