"""Reductions over axes, positions of extremes, and running reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import DType, bool_, int32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.movement import listed, without_axes
from fusewire.onnx.ops.reading import by_axis, cast, chosen, length, scalar
from fusewire.onnx.ops.writing import attrs_of, has_kernel, number, operand, spelled
from fusewire.ops import cumulative, elementwise, logic, reduction, statistics
from fusewire.ops.control import scan
from fusewire.ops.declare import Op
from fusewire.ops.elementwise import add, exp, log1p, maximum, minimum, subtract
from fusewire.ops.inference import axes_of, axis_of
from fusewire.ops.logic import equal, where
from fusewire.ops.movement import broadcast_to, transpose
from fusewire.ops.subgraph import subgraph

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

LOWEST, HIGHEST = False, True
UNROLLED = 8


def _axes(node: Node) -> tuple[int, ...]:
    given = attrs_of(node)["axes"]
    return axes_of(given, operand(node, 0).tensor.rank)


def _combined(node: Node) -> list[Dim]:
    """List the sizes of the axes that are combined."""
    return [operand(node, 0).tensor.shape[axis] for axis in _axes(node)]


class _Reduction(NamedTuple):
    """An op over all axes at once; and axis by axis: before, ``step`` each, after.

    ``moved`` is the opset in which axes became an operand. Integers are reduced as they are,
    unless ``as_floats``.
    """

    whole: Op[Value]
    step: Op[Value]
    before: Op[Value] | None = None
    after: Op[Value] | None = None
    as_floats: bool = False
    moved: int = 18

    def read(self, call: OnnxCall) -> Converted:
        """Reduce over the axes that a node names, or all."""
        x, axes = call[0], listed(call, "axes", 1, self.moved)
        of, keepdims = x.tensor.dtype, call.flag("keepdims", 1)
        wide = cast(x, dtypes.float64) if self.as_floats and of.is_integer else x
        count = 0 if axes is None else length(axes, "the list of axes")
        known = call.ints(axes) if count else () if call.flag("noop_with_empty_axes") else None
        if axes is not None and count and known is None:
            return cast(self._one_by_one(call, wide, axes, keepdims), of)
        if self.whole is statistics.reduce_mean and of.is_integer:
            return _whole_mean(x, known, keepdims)
        return cast(self.whole(wide, axes=known, keepdims=keepdims), of)

    def _one_by_one(self, call: OnnxCall, x: Value, axes: Value, keepdims: bool) -> Value:
        """Reduce over axes that the run tells: over each of all axes, if it is among them."""
        rank = x.tensor.rank
        found = x if self.before is None else self.before(x)
        for place in range(rank):
            among = logic.logical_or(logic.equal(axes, place), logic.equal(axes, place - rank))
            flag = reduction.reduce_any(among)

            def over(v: Value, place: int = place) -> Value:
                return self.step(v, axes=(place,), keepdims=True)

            found = chosen(call, flag, [found], over)
        found = found if self.after is None else self.after(found)
        return found if keepdims else without_axes(call, found, axes)


def _whole_mean(x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    """Average integers, rounded toward 0; added up in 64 bits, which hold more."""
    wide = dtypes.int64 if x.tensor.dtype.kind == "int" else dtypes.uint64
    total = reduction.reduce_sum(cast(x, wide), axes=axes, keepdims=keepdims)
    terms = statistics.count(cast(x, wide), axes)
    terms = terms if isinstance(terms, Value) else int(terms)
    return cast(elementwise.truncate_divide(total, terms), x.tensor.dtype)


def _extreme(of: DType, largest: bool) -> Any:
    """Give the largest or the smallest value of a dtype."""
    if of.is_float:
        return math.inf if largest else -math.inf
    return of.range[1 if largest else 0]


def _write_reduction(
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


def _write_any_or_all(op: str, empty: bool) -> Write:
    """Write any or all; over axes that may have no elements by counting, as engines stop there."""
    known = _write_reduction(op, empty)

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


def _write_mean(e: Emitter, node: Node, x: Ref) -> Ref:
    """Average; over axes that may have no elements it is written out, as engines give 0 then."""
    if not all(isinstance(dim, int) for dim in _combined(node)):
        e.caution("Engines do not agree about the mean of nothing.")
    return _write_reduction("ReduceMean", math.nan)(e, node, x)


def _absolute(e: Emitter, x: Ref) -> Ref:
    return e("Abs", x)


def _read_position(op: Op[Any]) -> Read:
    return lambda call: op(
        call[0],
        axis=call.attr("axis", 0),
        keepdims=call.flag("keepdims", 1),
        last=call.flag("select_last_index"),
    )


def _write_position(op: str) -> Write:
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


def _read_running(op: Op[Value]) -> Read:
    def convert(call: OnnxCall) -> Converted:
        flags = {name: call.flag(name) for name in ("exclusive", "reverse")}
        if call[1].tensor.size != 1:
            call.refuse(f"the axis must be one number, found {call[1].type}.")
        known = call.ints(call[1])
        if known is not None:
            return op(call[0], axis=known[0], **flags)
        axis = scalar(call[1]) or call[1]
        return by_axis(call, axis, call[0], lambda x, at: op(x, axis=at, **flags))

    return convert


def _write_cumulative(op: str) -> Write:
    """Write a running reduction that ONNX has."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        attrs = attrs_of(node)
        flags: dict[str, Any] = {key: int(attrs[key]) for key in ("exclusive", "reverse")}
        return e(op, x, e.constant(np.int64(attrs["axis"])), **flags)

    return write


def _write_by_scan(step: Callable[[Value, Value], Value], start: Callable[[DType], Any]) -> Write:
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


_REDUCTIONS = {
    "ReduceSum": _Reduction(reduction.reduce_sum, reduction.reduce_sum, moved=13),
    "ReduceProd": _Reduction(reduction.reduce_prod, reduction.reduce_prod),
    "ReduceMax": _Reduction(reduction.reduce_max, reduction.reduce_max),
    "ReduceMin": _Reduction(reduction.reduce_min, reduction.reduce_min),
    "ReduceMean": _Reduction(statistics.reduce_mean, statistics.reduce_mean, as_floats=True),
    "ReduceL1": _Reduction(reduction.norm_l1, reduction.reduce_sum, elementwise.abs_),
    "ReduceL2": _Reduction(
        reduction.norm_l2, reduction.reduce_sum, elementwise.square, elementwise.sqrt, True
    ),
    "ReduceSumSquare": _Reduction(reduction.sum_square, reduction.reduce_sum, elementwise.square),
    "ReduceLogSum": _Reduction(
        reduction.log_sum, reduction.reduce_sum, None, elementwise.log, True
    ),
    "ReduceLogSumExp": _Reduction(reduction.logsumexp, reduction.logsumexp, as_floats=True),
}
READERS: Mapping[str, Read] = {
    **{name: how.read for name, how in _REDUCTIONS.items()},
    "ArgMax": _read_position(reduction.argmax),
    "ArgMin": _read_position(reduction.argmin),
    "CumSum": _read_running(cumulative.cumsum),
    "CumProd": _read_running(cumulative.cumprod),
}


WRITERS: Mapping[str, Write] = {
    "reduce_sum": _write_reduction("ReduceSum"),
    "reduce_prod": _write_reduction("ReduceProd", 1),
    "reduce_max": _write_reduction("ReduceMax", lambda of: _extreme(of, LOWEST)),
    "reduce_min": _write_reduction("ReduceMin", lambda of: _extreme(of, HIGHEST)),
    "reduce_any": _write_any_or_all("ReduceMax", False),
    "reduce_all": _write_any_or_all("ReduceMin", True),
    "reduce_mean": _write_mean,
    "logsumexp": _write_reduction("ReduceLogSumExp", -math.inf),
    "norm_l1": _write_reduction("ReduceL1", 0, _absolute),
    "norm_l2": _write_reduction("ReduceL2", 0, _absolute),
    "sum_square": _write_reduction("ReduceSumSquare", 0, lambda e, x: e("Mul", x, x)),
    "log_sum": _write_reduction("ReduceLogSum", -math.inf, lambda e, x: e("Log", x)),
    "argmax": _write_position("ArgMax"),
    "argmin": _write_position("ArgMin"),
    "cumsum": _write_cumulative("CumSum"),
    "cumprod": _write_cumulative("CumProd"),
    "cummax": _write_by_scan(maximum, lambda of: _extreme(of, LOWEST)),
    "cummin": _write_by_scan(minimum, lambda of: _extreme(of, HIGHEST)),
    "cumlogsumexp": _write_by_scan(_logaddexp, lambda of: -math.inf),
}
