"""Print a kernel as WGSL, and distribute its points over invocations.

``points``: an invocation a point, or a few where several elements lie in a word. ``rows``: a
workgroup a point, whose invocations share folds and loops. ``tiles``: an invocation a tile of a
sum of products, so that what it loads is used several times; or a workgroup a larger one, which
it brings into its memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.backends.webgpu import tiles
from fusewire.backends.webgpu.functions import needed
from fusewire.backends.webgpu.statements import HEAD, Page
from fusewire.kernel.analysis import contraction_of, shape_of, walk
from fusewire.kernel.form import BufferStore, Fold, Kernel, Loop, Statement
from fusewire.kernel.index import flatten
from fusewire.kernel.printed import PrintedKernel, row_major

# Rows shorter than this are cheaper for one invocation than for many that have to meet.
_SHORT_ROW = 32
# Sums of products with fewer points than this leave a device idle unless rows are shared.
_FEW_POINTS = 64


@dataclass(frozen=True)
class Configuration:
    """The device and settings that kernels are printed for.

    ``rows`` is how many invocations share a row, ``tile`` the sums of products that one invocation
    makes, ``points`` how many points it computes one after another, and ``depth`` how much of the
    factors a workgroup brings into its memory at a time, 0 where each invocation loads its own.
    ``variant`` numbers the configurations of a kernel that a package brings.
    """

    features: frozenset[str]
    max_workgroups: int
    workgroup: int
    rows: int
    tile: tuple[int, int]
    points: int = 1
    depth: int = 0
    variant: int = 0


def print_kernel(kernel: Kernel, configuration: Configuration) -> PrintedKernel[str]:
    """Print a kernel; RefusedError where the device lacks what it computes."""
    shape = shape_of(kernel)
    page = Page(kernel, configuration.features, in_params=shape == "map")
    width = configuration.workgroup
    if shape not in ("map", "serial") and is_shared(kernel, configuration.rows):
        rows = configuration.rows
        count = math.prod(axis.extent for axis in kernel.axes)
        _rows(page, rows)
        return _module(page, configuration, count * rows, rows, "group")
    contraction = contraction_of(kernel)
    if contraction is None:
        count = _points(page, configuration.points)
        return _module(page, configuration, count, width, "point")
    tile, depth = configuration.tile, configuration.depth
    groups = tiles.add_by_workgroup(page, contraction, tile, width, depth)
    if groups is not None:
        return _module(page, configuration, groups * width, width, "group")
    count = tiles.add_by_invocation(page, contraction, tile)
    return _module(page, configuration, count, width, "point")


def is_shared(kernel: Kernel, rows: int) -> bool:
    """Tell whether a workgroup of so many is better for a point than an invocation."""
    if kernel.locals or rows == 1:
        return bool(kernel.locals)
    lengths = [math.prod(a.extent for a in s.axes) for s in _nests(kernel)]
    points = math.prod(axis.extent for axis in kernel.axes)
    if not any(isinstance(s, Loop) for s in kernel.body) and points >= _FEW_POINTS:
        # Each point stores one element: neighbours read as one already, or reuse what they load.
        return contraction_of(kernel) is None and max(lengths) >= 8 * _SHORT_ROW
    return max(lengths) >= _SHORT_ROW


def _nests(kernel: Kernel) -> list[Fold | Loop]:
    return [s for s in kernel.body if isinstance(s, Fold | Loop)]


def _points(page: Page, each: int) -> int:
    """Add a body for every point, several of them to an invocation; count the invocations."""
    kernel = page.kernel
    count = math.prod(axis.extent for axis in kernel.axes)
    lanes = _lanes(page)
    if lanes == 1 and each > 1:
        # Those of an invocation lie apart, so that neighbours read neighbouring elements.
        end = f"u32({page.indices.number(count)})"
        head = f"for (var point = at; at < params[0].x && point < {end}; point += params[0].x)"
        with page.block(head):
            page.unravel("point", kernel.axes)
            page.body(kernel.body)
        return -(-count // each)
    if lanes == 1:
        with page.block("if (at < params[0].x)"):
            page.unravel("at", kernel.axes)
            page.body(kernel.body)
        return count
    written = [place for place, b in enumerate(page.buffers) if b.name in page.packed]
    for place in written:
        page.line(f"var wm{place} = 0u;")
    with page.block(f"for (var part = 0u; part < {lanes}u; part++)"):
        page.line(f"let point = at * {lanes}u + part;")
        with page.block("if (point < params[0].x)"):
            page.unravel("point", kernel.axes)
            page.body(kernel.body)
    with page.block(f"if (at * {lanes}u < params[0].x)"):
        for place in written:
            page.line(f"m{place}[at] = wm{place};")
    return -(-count // lanes)


def _lanes(page: Page) -> int:
    """Tell how many points an invocation makes, so that the words it stores are whole."""
    kernel = page.kernel
    small = {b.name: page.of(b).lanes for b in kernel.writes if page.of(b).lanes > 1}
    stores = [s for s in walk(kernel.body) if isinstance(s, BufferStore) and s.buffer in small]
    point = row_major(kernel.axes)
    whole = all(
        s in kernel.body
        and not s.guard
        and s.combine is None
        and flatten(s.index, kernel.buffer(s.buffer).shape) == point
        for s in stores
    )
    read = {b.name for b in kernel.reads} & set(small)
    if not small or read or not whole or len({*small.values()}) > 1:
        return 1
    page.packed |= set(small)
    return next(iter(small.values()))


def _rows(page: Page, width: int) -> None:
    """Add a body whose folds and loops the invocations of a workgroup share."""
    with page.block("if (group < params[0].x)"):
        page.unravel("group", page.kernel.axes)
        for statement in page.kernel.body:
            _stage(page, statement, width)


def _stage(page: Page, statement: Statement, width: int) -> None:
    if isinstance(statement, Fold):
        _shared_fold(page, statement, width)
    elif isinstance(statement, Loop):
        _spread(page, statement, width)
        if page.kernel.locals:
            page.line("workgroupBarrier();")
    elif isinstance(statement, BufferStore):
        with page.block("if (lane == 0u)"):
            page.store(statement)
    else:
        page.scalar(statement)


def _spread(page: Page, nest: Fold | Loop, width: int, names: Sequence[str] = ()) -> None:
    """Add a fold's or loop's body for every so-manieth point."""
    axes = nest.axes
    if any(axis.extent == 0 for axis in axes):
        return
    flat = page.fresh("k")
    count = page.indices.number(math.prod(axis.extent for axis in axes))
    with page.block(f"for (var {flat} = i32(lane); {flat} < {count}; {flat} += {width})"):
        page.unravel(flat, axes)
        page.body(nest.body)
        if isinstance(nest, Fold):
            page.gather(nest, names, page.fold_values(nest))


def _shared_fold(page: Page, fold: Fold, width: int) -> None:
    """Each invocation folds a part; then halves of the workgroup meet until one is left."""
    names = page.start_fold(fold)
    _spread(page, fold, width, names)
    types = [page.register(of) for of in fold.dtypes] + ["i32"]
    meeting = [page.shared(of, width, place) for place, of in enumerate(types[: len(names)])]
    for name, memory in zip(names, meeting, strict=True):
        page.line(f"{memory}[lane] = {name};")
    page.line("workgroupBarrier();")
    half = width // 2
    while half:
        with page.block(f"if (lane < {half}u)"):
            others = [page.fresh() for _ in names]
            for other, memory in zip(others, meeting, strict=True):
                page.line(f"let {other} = {memory}[lane + {half}u];")
            page.gather(fold, names, others)
            for name, memory in zip(names, meeting, strict=True):
                page.line(f"{memory}[lane] = {name};")
        page.line("workgroupBarrier();")
        half //= 2
    for name, memory in zip(names, meeting, strict=True):
        page.line(f"{name} = {memory}[0];")
    page.line("workgroupBarrier();")
    page.finish_fold(fold, names)


def _module(
    page: Page, configuration: Configuration, invocations: int, width: int, by: str
) -> PrintedKernel[str]:
    main = [
        f"@compute @workgroup_size({width})",
        "fn main(@builtin(workgroup_id) id: vec3<u32>,",
        "        @builtin(local_invocation_index) lane: u32,",
        "        @builtin(num_workgroups) groups: vec3<u32>) {",
        "  let group = id.x + id.y * groups.x;",
        *([f"  let at = group * {width}u + lane;"] if by == "point" else []),
        *page.lines,
        "}",
    ]
    text = "\n".join(main)
    words = (HEAD + len(page.indices.words) + 3) // 4 * 4
    count = invocations if by == "point" else invocations // width
    if page.packed:
        count = math.prod(axis.extent for axis in page.kernel.axes)
    head = [count, 0, 0, 0, *page.indices.words]
    source = "\n".join([*page.declared(), *needed(text), text, ""])
    params = (*head, *([0] * (words - len(head))))
    grid = grid_of(invocations, width, configuration.max_workgroups)
    return PrintedKernel(source, tuple(page.used()), grid, params)


def grid_of(invocations: int, workgroup: int, most: int) -> tuple[int, int]:
    """Spread workgroups over two dimensions, each of which holds ``most`` at most."""
    count = -(-invocations // workgroup)
    rows = -(-count // most)
    return -(-count // rows), rows
