"""Print kernels as a Triton module: one function per kernel, and its launch.

``map`` and ``serial`` kernels give a program a block of points; ``rows`` a block of points and
blocks of what they fold and loop over; a ``contraction`` a tile of rows and columns for ``tl.dot``.
Sizes are numbers in the text, so a text is all there is to know about a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fusewire.backends.triton.statements import (
    Body,
    Lines,
    Nest,
    Scope,
    Spot,
    Value,
    power_of_two,
    spots_of,
)
from fusewire.backends.triton.storage import literal, storage_of
from fusewire.dtypes import int32
from fusewire.kernel.analysis import Contraction, contraction_of, walk
from fusewire.kernel.form import Compute, Fold, Kernel, KernelBuffer, Loop
from fusewire.kernel.index import Axis
from fusewire.kernel.printed import PrintedKernel

HEAD = '"""Kernels of Fusewire."""\n\nimport triton\nimport triton.language as tl\n'
# tl.dot wants 16 of each at least; with fewer than half of that, most of a tile would be empty.
_SMALLEST, _FEW = 16, 8
_POINT, _COLUMN = frozenset({0}), frozenset({1})


@dataclass(frozen=True)
class Configuration:
    """Settings of kernels: points of a map, elements of a tile of rows, tiles of a product.

    ``warps`` work on a program, whose loops are in so many ``stages`` at once, 0 for Triton's own.
    ``variant`` numbers the configurations of a kernel that a package brings.
    """

    block: int = 512
    tile: int = 2048
    rows: int = 32
    columns: int = 32
    depth: int = 32
    warps: int = 4
    stages: int = 0
    variant: int = 0


@dataclass(frozen=True)
class Function:
    """A function of a module; those that differ in name alone are one.

    ``text`` is all that follows its name. ``pointers`` are the types that its first parameters
    point to; then come ``steps`` numbers.
    """

    name: str = field(compare=False)
    text: str
    pointers: tuple[str, ...]
    steps: int
    warps: int
    stages: int


def print_kernel(kernel: Kernel, configuration: Configuration) -> PrintedKernel[Function]:
    """Print one kernel; a kernel of no points has no programs."""
    lines = Lines()
    contraction = dot_of(kernel)
    if contraction is None:
        points, programs = _pointwise(kernel, lines, configuration)
    else:
        points, programs = _product(kernel, contraction, lines, configuration)
    buffers = {b.name: b for b in (*kernel.reads, *kernel.writes)}
    for buffer in kernel.locals:
        # A local belongs to a point: all points have theirs side by side in memory of the device.
        name, shape = f"{kernel.name}.{buffer.name}", (points, *buffer.shape)
        buffers[buffer.name] = KernelBuffer(name, buffer.dtype, shape)
    steps = [axis.name for axis in kernel.steps]
    text = "\n".join([f"({', '.join([*buffers, *steps])}):", *lines.text])
    pointers = tuple(storage_of(b.dtype).pointer for b in buffers.values())
    warps, stages = configuration.warps, configuration.stages
    function = Function(kernel.name, text, pointers, len(steps), warps, stages)
    return PrintedKernel(function, tuple(buffers.values()), (programs,))


def _pointwise(kernel: Kernel, lines: Lines, configuration: Configuration) -> tuple[int, int]:
    """Print a kernel over blocks of points; give the numbers of points and programs."""
    count = math.prod(axis.extent for axis in kernel.axes)
    widest = widest_of(kernel)
    width = min(power_of_two(widest), 1024) if widest > 1 else 0
    room = max(configuration.tile // width, 1) if width else configuration.block
    block = min(power_of_two(max(count, 1)), room)
    spread = "[:, None]" if width else ""
    lines.put(f"point = tl.program_id(0) * {block} + tl.arange(0, {block}){spread}")
    mask = lines.say(f"point < {count}") if count % block else None
    shape = (block, 1) if width else (block,)
    spots = spots_of(lines, kernel.axes, "point", _POINT, mask)
    masks = () if mask is None else (mask,)
    scope = Scope(spots, shape, masks, {}, _POINT, width)
    scope = replace(scope, spots={**spots, **_steps(kernel, lines, scope.zero)})
    Nest(kernel, lines).statements(kernel.body, scope)
    return max(count, 1), -(-count // block)


def widest_of(kernel: Kernel) -> int:
    """Count the points of the largest fold or loop that may run in blocks."""
    nests = [s for s in walk(kernel.body) if isinstance(s, Fold | Loop)]
    wide = [s for s in nests if not (isinstance(s, Loop) and (s.ordered or s.carries))]
    return max((math.prod(a.extent for a in s.axes) for s in wide), default=0)


def _steps(kernel: Kernel, lines: Lines, zero: str) -> dict[Axis, Spot]:
    return {axis: Spot(lines.say(f"{axis.name} + {zero}"), frozenset()) for axis in kernel.steps}


def dot_of(kernel: Kernel) -> Contraction | None:
    """Give the sum of products of a kernel, if ``tl.dot`` has its dtype and it is large enough."""
    contraction = contraction_of(kernel)
    if contraction is None or kernel.locals:
        return None
    (of,) = contraction.fold.dtypes
    product = contraction.fold.body[-1]
    assert isinstance(product, Compute)
    single = of.is_float and of.bits <= 32 and product.dtype.is_float
    sizes = [
        math.prod(a.extent for a in axes)
        for axes in (contraction.rows, contraction.columns, contraction.depth)
    ]
    return contraction if single and min(sizes) >= _FEW else None


def _product(
    kernel: Kernel, contraction: Contraction, lines: Lines, configuration: Configuration
) -> tuple[int, int]:
    """Print a kernel over tiles of rows and columns; give the numbers of points and programs."""
    body = Body(kernel, lines)
    rows, columns, depth, batch = (
        math.prod(axis.extent for axis in axes)
        for axes in (contraction.rows, contraction.columns, contraction.depth, contraction.batch)
    )
    high, wide, deep = (
        max(_SMALLEST, min(power_of_two(count), most))
        for count, most in (
            (rows, configuration.rows),
            (columns, configuration.columns),
            (depth, configuration.depth),
        )
    )
    down, across = -(-rows // high), -(-columns // wide)
    lines.put("program = tl.program_id(0)")
    lines.put(f"row = program // {across} % {down} * {high} + tl.arange(0, {high})[:, None]")
    lines.put(f"column = program % {across} * {wide} + tl.arange(0, {wide})[None, :]")
    zero = literal(0, int32, (1, 1))
    lines.put(f"batch = program // {across * down} + {zero}")
    near = lines.say(f"row < {rows}") if rows % high else None
    far = lines.say(f"column < {columns}") if columns % wide else None
    spots = {
        **_steps(kernel, lines, zero),
        **spots_of(lines, contraction.batch, "batch", frozenset(), None),
        **spots_of(lines, contraction.rows, "row", _POINT, near),
        **spots_of(lines, contraction.columns, "column", _COLUMN, far),
    }
    masks = tuple(mask for mask in (near, far) if mask is not None)
    scope = Scope(spots, (high, wide), masks, {}, _POINT | _COLUMN)
    scope = body.scalars(contraction.before, scope)
    total = _dot(body, lines, contraction, scope, deep)
    (name,), (of,) = contraction.fold.names, contraction.fold.dtypes
    values = {**scope.values, name: Value(total, of, scope.dims)}
    body.scalars(contraction.after, replace(scope, values=values))
    return rows * columns * batch, batch * down * across


def _dot(body: Body, lines: Lines, contraction: Contraction, scope: Scope, deep: int) -> str:
    """Print the loop over the depth, so many steps at a time; give the name of the sums."""
    high, wide = scope.shape
    depth = math.prod(axis.extent for axis in contraction.depth)
    total = lines.say(f"tl.full([{high}, {wide}], 0.0, tl.float32)")
    start = lines.fresh()
    lines.enter(f"for {start} in range(0, {depth}, {deep}):")
    left = _factor(body, lines, contraction, scope, start, (high, deep), 0)
    right = _factor(body, lines, contraction, scope, start, (deep, wide), 1)
    lines.put(f'{total} = tl.dot({left}, {right}, {total}, input_precision="ieee")')
    lines.leave()
    return total


def _factor(
    body: Body,
    lines: Lines,
    contraction: Contraction,
    scope: Scope,
    start: str,
    shape: tuple[int, int],
    side: int,
) -> str:
    """Print a tile of a factor: rows by depth, or depth by columns."""
    deep, place = shape[1 - side], "[None, :]" if side == 0 else "[:, None]"
    count = math.prod(axis.extent for axis in contraction.depth)
    run = lines.say(f"{start} + tl.arange(0, {deep}){place}")
    mask = lines.say(f"{run} < {count}") if count % deep else None
    along = _COLUMN if side == 0 else _POINT
    spots = {**scope.spots, **spots_of(lines, contraction.depth, run, along, mask)}
    inner = replace(scope, spots=spots, shape=shape)
    statements = (contraction.left, contraction.right)[side]
    value = body.scalars(statements, inner).values[contraction.factors[side]].text
    # What is beyond the end was loaded as 0, but need not be so after a prologue.
    kept = value if mask is None else f"tl.where({mask}, {value}, 0.0)"
    return lines.say(f"tl.broadcast_to({kept}, {list(shape)})")


def print_module(functions: Sequence[Function]) -> str:
    """Print functions into one module."""
    texts = [f"@triton.jit\ndef {function.name}{function.text}" for function in functions]
    return "\n\n\n".join([HEAD.rstrip(), *texts]) + "\n"
