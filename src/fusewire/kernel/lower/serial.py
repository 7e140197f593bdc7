"""Ops with kernels of their own: running sums, scatter, sorting.

A running sum is a loop in order that carries the sum. Scatter first copies what is written over;
then each lane of updates is written in order, so that later ones win and nothing needs an atomic.
Sorting counts for every element how many come before it: that is its place.
"""

from __future__ import annotations

import math

from fusewire.dtypes import DType, float32, int32, int64
from fusewire.ir.graph import Node, Value
from fusewire.kernel.form import Bound, BufferStore, Carry, Combine, Loop, identity
from fusewire.kernel.index import Axis, Index, at
from fusewire.kernel.lower.body import Body, Indices, Located
from fusewire.kernel.lower.lowering import Lowering, Whole
from fusewire.kernel.lower.shapes import axis_of, replaced, shape_of

# Sorting compares every element of a row with every other.
LONGEST_SORT = 4096
SORTS = ("sort", "argsort")
_RUNNING: dict[str, Combine] = {
    "cumsum": "add",
    "cumprod": "multiply",
    "cummax": "maximum",
    "cummin": "minimum",
}
_WRITES: dict[str, Combine | None] = {
    "set": None,
    "add": "add",
    "multiply": "multiply",
    "max": "maximum",
    "min": "minimum",
}


def _axes(shape: tuple[int, ...]) -> tuple[Axis, ...]:
    return tuple(Axis(f"i{place}", extent) for place, extent in enumerate(shape))


def _running(lowering: Lowering, node: Node) -> None:
    (x,), (y,) = node.operands, node.outputs
    shape = shape_of(x)
    axis = axis_of(node, len(shape))
    axes = _axes(shape)
    rest = tuple(a for a in axes if a is not axes[axis])
    body = lowering.body(rest)
    work = float32 if x.tensor.dtype.bits == 16 and x.tensor.dtype.is_float else x.tensor.dtype
    start = body.literal(_start(node.op, work), work)
    scope = body.enter([axes[axis]])
    sum_ = body.carry(work)
    index: Indices = tuple(at(a) for a in axes)
    if node.attrs["reverse"]:
        index = replaced(index, axis, index[axis] * -1 + (shape[axis] - 1))
    following = _combined(body, node.op, sum_, body.widened(body.element(x, index)))
    given = sum_ if node.attrs["exclusive"] else following
    target = lowering.target(y)
    scope.statements.append(
        BufferStore(target.buffer.name, target.at(index), body.cast(given, y.tensor.dtype))
    )
    carries = (Carry(sum_, work, start, following),)
    body.root.statements.append(Loop((axes[axis],), body.leave(), True, carries))
    lowering.add(node.op, rest, body, [target.buffer])
    lowering.keep(y, target)


def _start(op: str, of: DType) -> float | int | bool:
    if op == "cumlogsumexp":
        return float("-inf")
    return identity(_RUNNING[op], of)


def _combined(body: Body, op: str, left: str, right: str) -> str:
    if op != "cumlogsumexp":
        return body.compute(_RUNNING[op], left, right)
    apart = body.compute("negative", body.compute("abs", body.compute("subtract", left, right)))
    more = body.compute("log1p", body.compute("exp", apart))
    # Equal infinities have no difference.
    same = body.compute("equal", left, right)
    twice = body.literal(math.log(2.0), body.dtype(left))
    return body.compute(
        "add", body.compute("maximum", left, right), body.compute("where", same, twice, more)
    )


def _copied(lowering: Lowering, x: Value, y: Value) -> Located:
    """Store x where y is to be."""
    target = lowering.target(y)
    lowering.store_in([x], [target])
    lowering.keep(y, target)
    return target


def _scatter_elements(lowering: Lowering, node: Node) -> None:
    x, indices, updates = node.operands
    target = _copied(lowering, x, node.outputs[0])
    axes = _axes(shape_of(indices))
    axis = axis_of(node, len(axes))
    lanes = tuple(a for a in axes if a is not axes[axis])
    body = lowering.body(lanes)
    scope = body.enter([axes[axis]])
    index: Indices = tuple(at(a) for a in axes)
    place = body.held(body.element(indices, index), shape_of(x)[axis], wraps=True)
    written = body.element(updates, index)
    combine = _WRITES[str(node.attrs["reduction"])]
    where = target.at(replaced(index, axis, place))
    scope.statements.append(BufferStore(target.buffer.name, where, written, (), combine))
    body.root.statements.append(Loop((axes[axis],), body.leave(), ordered=True))
    lowering.add(node.op, lanes, body, [target.buffer])


def _scatter_nd(lowering: Lowering, node: Node) -> None:
    x, indices, updates = node.operands
    target = _copied(lowering, x, node.outputs[0])
    *outer, depth = shape_of(indices)
    axes = _axes(shape_of(updates))
    named, lanes = axes[: len(outer)], axes[len(outer) :]
    body = lowering.body(lanes)
    scope = body.enter(named)
    at_outer: Indices = tuple(at(a) for a in named)
    places: list[Index] = []
    for axis in range(depth):
        found = body.element(indices, (*at_outer, at(axis)))
        places.append(body.held(found, shape_of(x)[axis], wraps=True))
    written = body.element(updates, tuple(at(a) for a in axes))
    combine = _WRITES[str(node.attrs["reduction"])]
    where = target.at((*places, *(at(a) for a in lanes)))
    scope.statements.append(BufferStore(target.buffer.name, where, written, (), combine))
    body.root.statements.append(Loop(named, body.leave(), ordered=True))
    lowering.add(node.op, lanes, body, [target.buffer])


def too_long(node: Node) -> str | None:
    """Refuse a row that is too long to compare all of it with all of it."""
    (x,) = node.operands
    length = shape_of(x)[axis_of(node, x.tensor.rank)]
    if length <= LONGEST_SORT:
        return None
    return (
        f"{node.op} compares every element of a row with every other here, and rows of {length:,} "
        f"are longer than {LONGEST_SORT:,}."
    )


def _sort(lowering: Lowering, node: Node) -> None:
    (x,), (y,) = node.operands, node.outputs
    axes = _axes(shape_of(x))
    axis = axis_of(node, len(axes))
    body = lowering.body(axes)
    index: Indices = tuple(at(a) for a in axes)
    mine = body.element(x, index)
    descending = bool(node.attrs["descending"])

    def before(inner: Indices) -> list[str]:
        other = body.element(x, replaced(index, axis, *inner))
        first, same = ordered(body, other, mine, descending)
        earlier = body.holds((Bound(index[axis] - inner[0], 1, axes[axis].extent),))
        tie = body.compute("logical_and", same, earlier)
        return [body.cast(body.compute("logical_or", first, tie), int32)]

    (rank,) = body.fold("add", [axes[axis].extent], index, before)
    place = replaced(index, axis, body.held(rank, axes[axis].extent))
    moved = mine if node.op == "sort" else body.place(index[axis], int64)
    target = lowering.target(y)
    body.root.statements.append(BufferStore(target.buffer.name, target.at(place), moved))
    lowering.add(node.op, axes, body, [target.buffer])
    lowering.keep(y, target)


def ordered(body: Body, left: str, right: str, descending: bool) -> tuple[str, str]:
    """Tell whether left comes before right, and whether they are equal; NaN is the largest."""
    of = body.dtype(left)
    if of.is_narrow:
        left, right = body.cast(left, float32), body.cast(right, float32)
    first = body.compute("greater" if descending else "less", left, right)
    same = body.compute("equal", left, right)
    if not body.dtype(left).is_float:
        return first, same
    no_left, no_right = body.compute("isnan", left), body.compute("isnan", right)
    low, high = (no_right, no_left) if descending else (no_left, no_right)
    beyond = body.compute("logical_and", body.compute("logical_not", low), high)
    both = body.compute("logical_and", low, high)
    return body.compute("logical_or", first, beyond), body.compute("logical_or", same, both)


WHOLES: dict[str, Whole] = {
    **dict.fromkeys((*_RUNNING, "cumlogsumexp"), _running),
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    **dict.fromkeys(SORTS, _sort),
}
