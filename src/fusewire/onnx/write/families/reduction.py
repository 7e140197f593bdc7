"""Reductions over axes, positions of extremes, and running reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from fusewire.dtypes import DType, bool_, int32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.writing import attrs_of, has_kernel, number, operand, spelled
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref, Write
from fusewire.ops.control import scan
from fusewire.ops.elementwise import add, exp, log1p, maximum, minimum, subtract
from fusewire.ops.inference import axes_of, axis_of
from fusewire.ops.logic import equal, where
from fusewire.ops.movement import broadcast_to, transpose
from fusewire.ops.subgraph import subgraph

LOWEST, HIGHEST = False, True


def extreme(of: DType, largest: bool) -> Any:
    """Give the largest or the smallest value of a dtype."""
    if of.is_float:
        return math.inf if largest else -math.inf
    return of.range[1 if largest else 0]


def _axes(node: Node) -> tuple[int, ...]:
    given = attrs_of(node)["axes"]
    return axes_of(given, operand(node, 0).tensor.rank)


def _combined(node: Node) -> list[Dim]:
    """List the sizes of the axes that are combined."""
    return [operand(node, 0).tensor.shape[axis] for axis in _axes(node)]


def reduced(
    op: str, empty: Any = 0, over_nothing: Callable[[Emitter, Ref], Ref] | None = None
) -> Callable[[Emitter, Node, Ref], Ref]:
    """Write a reduction; ``empty`` is what no elements give, where engines disagree.

    ``over_nothing`` is what is left of it when it reduces over no axis.
    """

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        axes = _axes(node)
        if not axes:
            return e("Identity", x) if over_nothing is None else over_nothing(e, x)
        if 0 in _combined(node):
            nothing = empty(x.dtype) if callable(empty) else empty
            made = e.shape(node.outputs[0].tensor.shape)
            return e("Expand", number(e, nothing, x), made)
        keep = int(attrs_of(node)["keepdims"])
        if op in EXACT and x.dtype.is_integer and not has_kernel(e.target, op, x):
            found = EXACT[op](e, node, x)
            return found if keep else e("Squeeze", found, e.integers(*axes))
        return e(op, x, _spelled_axes(e, node), keepdims=keep)

    return write


def _spelled_axes(e: Emitter, node: Node) -> Ref | None:
    """List the axes; all of them go without saying, but for engines."""
    given = attrs_of(node)["axes"]
    if e.target.is_cautious:
        return e.integers(*_axes(node))
    return None if given is None else e.integers(*given)


def _place_by_place(op: str) -> Callable[[Emitter, Node, Ref], Ref]:
    """Reduce by finding where the extreme is along one axis after the other, and taking it."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        for axis in _axes(node):
            x = e("GatherElements", x, e(op, x, dtype=int64, axis=axis, keepdims=1), axis=axis)
        return x

    return write


def _sum(e: Emitter, node: Node, x: Ref) -> Ref:
    """Add up integers exactly: where a sum in float64 is exact, and else step by step."""
    axes, terms = _axes(node), size(_combined(node))
    few = isinstance(terms, int) and terms << x.dtype.bits <= 1 << 53
    if x.dtype.bits <= 16 or few:
        wide = [e.cast(x, int64), e.integers(*axes)]
        return e.cast(e.raw("ReduceSum", wide, [int64], {"keepdims": 1})[0], x.dtype)
    return _last_of_running(e, "CumSum", 0, node, x)


def _last_of_running(e: Emitter, op: str, start: int, node: Node, x: Ref) -> Ref:
    """Take the last of a running reduction, which goes step by step in the dtype itself."""
    rank = operand(node, 0).tensor.rank
    for axis in _axes(node):
        pads = [int(i == axis) for i in range(2 * rank)]
        # One element more, so that there is a last one where the run finds none.
        filled = e("Pad", x, e.integers(*pads), number(e, start, x))
        every = e(op, filled, e.constant(np.int64(axis)))
        x = e("Gather", every, e.integers(-1), axis=axis)
    return x


def _product(e: Emitter, node: Node, x: Ref) -> Ref:
    """Multiply integers exactly: few of them one by one, more by a running product."""
    sizes = _combined(node)
    if any(not isinstance(n, int) or n > UNROLLED for n in sizes):
        return _last_of_running(e, "CumProd", 1, node, x)
    for axis, count in zip(_axes(node), sizes, strict=True):
        assert isinstance(count, int)
        ones = e.integers(*[1] * count)
        parts = e.many("Split", x, ones, made=[x.dtype] * count, axis=axis)
        x = reduce(lambda total, part: e("Mul", total, part), parts)
    return x


# Reductions of integers where the kernel is missing, or computes in float64.
EXACT = {
    "ReduceSum": _sum,
    "ReduceProd": _product,
    "ReduceMax": _place_by_place("ArgMax"),
    "ReduceMin": _place_by_place("ArgMin"),
}
UNROLLED = 8


def held(op: str, empty: bool) -> Write:
    """Write any or all; over axes that may have no elements by counting, as engines stop there."""
    known = reduced(op, empty)

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        axes = _axes(node)
        if all(isinstance(dim, int) for dim in _combined(node)):
            return known(e, node, x)
        counted = e.cast(e("Not", x) if empty else x, int32)
        keep = int(attrs_of(node)["keepdims"])
        attrs = {"keepdims": keep}
        (total,) = e.raw("ReduceSum", [counted, e.integers(*axes)], [int32], attrs)
        found = e.cast(total, bool_)
        return e("Not", found) if empty else found

    return write


def mean(e: Emitter, node: Node, x: Ref) -> Ref:
    """Average; over axes that may have no elements it is written out, as engines give 0 then."""
    if not all(isinstance(dim, int) for dim in _combined(node)):
        e.caution("Engines do not agree about the mean of nothing.")
    return reduced("ReduceMean", math.nan)(e, node, x)


def position(op: str) -> Write:
    """Write argmax or argmin."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        value, attrs = operand(node, 0).tensor, attrs_of(node)
        # Not from the end: of an empty tensor, an engine then leaves the axis as it is.
        axis = spelled(e, attrs["axis"], value.rank)
        if value.size == 0:
            zero = e.constant(np.int64(0))
            return e("Expand", zero, e.shape(node.outputs[0].tensor.shape))
        return e(
            op,
            x,
            dtype=int64,
            axis=axis,
            keepdims=int(attrs["keepdims"]),
            select_last_index=int(attrs["last"]),
        )

    return write


def cumulative(op: str) -> Write:
    """Write a running reduction that ONNX has."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        attrs = attrs_of(node)
        flags: dict[str, Any] = {key: int(attrs[key]) for key in ("exclusive", "reverse")}
        return e(op, x, e.constant(np.int64(attrs["axis"])), **flags)

    return write


def running(step: Callable[[Value, Value], Value], start: Callable[[DType], Any]) -> Write:
    """Write a running reduction as a scan of ours, whose state is the result so far."""

    def expand(x: Value, axis: int, exclusive: bool, reverse: bool) -> list[Value]:
        rank = x.tensor.rank
        others = [i for i in range(rank) if i != axis]
        rows = transpose(x, perm=(axis, *others))
        row = rows.tensor.with_shape(rows.tensor.shape[1:])

        def cell(state: Value, new: Value) -> list[Value]:
            joined = step(state, new)
            return [joined, state if exclusive else joined]

        body = subgraph(cell, row, row, name="running")
        of = x.tensor.dtype
        first = broadcast_to(constant(np.array(start(of), of.numpy)), shape=row.shape)
        _, found = scan(first, rows, body=body, carries=1, scans=1, reverse=reverse)
        back = tuple(others.index(i) + 1 if i != axis else 0 for i in range(rank))
        return [transpose(found, perm=back)]

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        type_, attrs = operand(node, 0).tensor, {**attrs_of(node)}
        axis = axis_of(attrs.pop("axis"), type_.rank)
        graph = subgraph(lambda v: expand(v, axis, **attrs), type_)
        return e.run(graph, [x], inline=True)[0][0]

    return write


def _logaddexp(x: Value, y: Value) -> Value:
    """Add in the logarithm; where one is -inf or both are inf, their difference has no value."""
    high, low = maximum(x, y), minimum(x, y)
    apart = where(equal(high, low), 0.0, subtract(low, high))
    grown = add(high, log1p(exp(apart)))
    return where(equal(high, -math.inf), high, grown)


def _absolute(e: Emitter, x: Ref) -> Ref:
    return e("Abs", x)


WRITERS = {
    "reduce_sum": reduced("ReduceSum"),
    "reduce_prod": reduced("ReduceProd", 1),
    "reduce_max": reduced("ReduceMax", lambda of: extreme(of, LOWEST)),
    "reduce_min": reduced("ReduceMin", lambda of: extreme(of, HIGHEST)),
    "reduce_any": held("ReduceMax", False),
    "reduce_all": held("ReduceMin", True),
    "reduce_mean": mean,
    "logsumexp": reduced("ReduceLogSumExp", -math.inf),
    "norm_l1": reduced("ReduceL1", 0, _absolute),
    "norm_l2": reduced("ReduceL2", 0, _absolute),
    "sum_square": reduced("ReduceSumSquare", 0, lambda e, x: e("Mul", x, x)),
    "log_sum": reduced("ReduceLogSum", -math.inf, lambda e, x: e("Log", x)),
    "argmax": position("ArgMax"),
    "argmin": position("ArgMin"),
    "cumsum": cumulative("CumSum"),
    "cumprod": cumulative("CumProd"),
    "cummax": running(maximum, lambda of: extreme(of, LOWEST)),
    "cummin": running(minimum, lambda of: extreme(of, HIGHEST)),
    "cumlogsumexp": running(_logaddexp, lambda of: -math.inf),
}
