"""Reductions over axes, running reductions, places of extremes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusewire import dtypes
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import by_axis, cast, chosen, length, scalar
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.onnx.read.families.movement import listed, without_axes
from fusewire.ops import cumulative, elementwise, logic, reduction
from fusewire.ops.declare import Op


@dataclass(frozen=True)
class _Reduction:
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

    def __call__(self, call: OnnxCall) -> Converted:
        x, axes = call[0], listed(call, "axes", 1, self.moved)
        of, keepdims = x.tensor.dtype, call.flag("keepdims", 1)
        wide = cast(x, dtypes.float64) if self.as_floats and of.is_integer else x
        count = 0 if axes is None else length(axes, "the list of axes")
        known = call.ints(axes) if count else () if call.flag("noop_with_empty_axes") else None
        if axes is not None and count and known is None:
            return cast(self._one_by_one(call, wide, axes, keepdims), of)
        if self.whole is reduction.reduce_mean and of.is_integer:
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
    terms = reduction.count(cast(x, wide), axes)
    terms = terms if isinstance(terms, Value) else int(terms)
    return cast(elementwise.truncate_divide(total, terms), x.tensor.dtype)


def _position(op: Op[Any]) -> Read:
    return lambda call: op(
        call[0],
        axis=call.attr("axis", 0),
        keepdims=call.flag("keepdims", 1),
        last=call.flag("select_last_index"),
    )


def _running(op: Op[Value]) -> Read:
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


TABLE: Mapping[str, Read] = {
    "ReduceSum": _Reduction(reduction.reduce_sum, reduction.reduce_sum, moved=13),
    "ReduceProd": _Reduction(reduction.reduce_prod, reduction.reduce_prod),
    "ReduceMax": _Reduction(reduction.reduce_max, reduction.reduce_max),
    "ReduceMin": _Reduction(reduction.reduce_min, reduction.reduce_min),
    "ReduceMean": _Reduction(reduction.reduce_mean, reduction.reduce_mean, as_floats=True),
    "ReduceL1": _Reduction(reduction.norm_l1, reduction.reduce_sum, elementwise.abs_),
    "ReduceL2": _Reduction(
        reduction.norm_l2, reduction.reduce_sum, elementwise.square, elementwise.sqrt, True
    ),
    "ReduceSumSquare": _Reduction(reduction.sum_square, reduction.reduce_sum, elementwise.square),
    "ReduceLogSum": _Reduction(
        reduction.log_sum, reduction.reduce_sum, None, elementwise.log, True
    ),
    "ReduceLogSumExp": _Reduction(reduction.logsumexp, reduction.logsumexp, as_floats=True),
    "ArgMax": _position(reduction.argmax),
    "ArgMin": _position(reduction.argmin),
    "CumSum": _running(cumulative.cumsum),
    "CumProd": _running(cumulative.cumprod),
}
