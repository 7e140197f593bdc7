"""Reductions over axes, positions of extremes, and running reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusewire.dtypes import DType, bool_, int64
from fusewire.errors import FormatError
from fusewire.formats.onnx.emitter import Body, Emitter, Port, Ref, Write
from fusewire.formats.onnx.families.pieces import choose, compare, number, operand
from fusewire.ir.dims import lower_bound
from fusewire.ir.graph import Node
from fusewire.ir.types import TensorType
from fusewire.ops.inference import axes_of, axis_of

LOWEST, HIGHEST = False, True


def extreme(of: DType, largest: bool) -> Any:
    """Give the largest or the smallest value of a dtype."""
    if of.is_float:
        return math.inf if largest else -math.inf
    return of.range[1 if largest else 0]


def reduced(op: str, empty: Any = 0, over_nothing: Write | None = None) -> Write:
    """Write a reduction; ``empty`` is what no elements give, where engines disagree.

    ``over_nothing`` is what is left of it when it reduces over no axis.
    """

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        value = operand(node, 0)
        given: Any = node.attrs["axes"]
        axes = axes_of(given, value.tensor.rank)
        if not axes:
            return e("Identity", x) if over_nothing is None else over_nothing(e, node, x)
        if any(value.tensor.shape[axis] == 0 for axis in axes):
            nothing = empty(x.dtype) if callable(empty) else empty
            made = e.shape(node.outputs[0].tensor.shape)
            return e("Expand", number(e, nothing, x), made)
        keep = int(bool(node.attrs["keepdims"]))
        return e(op, x, e.integers(*axes), keepdims=keep)

    return write


def position(op: str) -> Write:
    """Write argmax or argmin."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        value, axis = operand(node, 0).tensor, node.attrs["axis"]
        assert isinstance(axis, int)
        if value.size == 0:
            zero = e.constant(np.int64(0))
            return e("Expand", zero, e.shape(node.outputs[0].tensor.shape))
        return e(
            op, x, dtype=int64, axis=axis, keepdims=int(bool(node.attrs["keepdims"])),
            select_last_index=int(bool(node.attrs["last"])),
        )  # fmt: skip

    return write


def cumulative(op: str) -> Write:
    """Write a running reduction that ONNX has."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        axis = node.attrs["axis"]
        assert isinstance(axis, int)
        flags = {key: int(bool(node.attrs[key])) for key in ("exclusive", "reverse")}
        return e(op, x, e.constant(np.int64(axis)), **flags)

    return write


def running(op: str, largest: bool) -> Write:
    """Write a running extreme as a Scan whose state is the extreme so far."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        value = operand(node, 0).tensor
        axis = axis_of(node.attrs["axis"], value.rank)  # type: ignore[arg-type]  # an int
        if (lower_bound(value.shape[axis]) or 0) < 1 and isinstance(value.shape[axis], int):
            return e("Identity", x)
        rest = value.with_shape(value.shape[:axis] + value.shape[axis + 1 :])
        work = e.target.work("Max", x.dtype)
        inner = Emitter(e.model, e)
        state, row = (Ref(e.model.fresh(stem), work) for stem in ("state", "row"))
        best = inner(op, state, row)
        added = inner.give(state if node.attrs["exclusive"] else best)
        body = Body(
            "running",
            [Port(r.name, rest.with_dtype(work), False) for r in (state, row)],
            [Port(r.name, rest.with_dtype(work), False) for r in (inner.give(best), added)],
            inner.steps,
        )
        first = e("Expand", e.constant(np.array(extreme(x.dtype, largest), work.numpy)),
                  e.shape(rest.shape))  # fmt: skip
        flag = int(bool(node.attrs["reverse"]))
        _, found = e.raw(
            "Scan", [first, e.cast(x, work)], [work, work],
            {"body": body, "num_scan_inputs": 1, "scan_input_axes": [axis],
             "scan_output_axes": [axis], "scan_input_directions": [flag],
             "scan_output_directions": [flag]},
        )  # fmt: skip
        return e.cast(found, x.dtype)

    return write


def _absolute(e: Emitter, node: Node, x: Ref) -> Ref:
    return e("Abs", x)


def _logsumexp(e: Emitter, node: Node, x: Ref) -> Ref:
    raise FormatError("Engines differ in the logarithm of a sum over no axes.")


WRITERS = {
    "reduce_sum": reduced("ReduceSum"),
    "reduce_prod": reduced("ReduceProd", 1),
    "reduce_max": reduced("ReduceMax", lambda of: extreme(of, LOWEST)),
    "reduce_min": reduced("ReduceMin", lambda of: extreme(of, HIGHEST)),
    "reduce_any": reduced("ReduceMax", False),
    "reduce_all": reduced("ReduceMin", True),
    "reduce_mean": reduced("ReduceMean", math.nan),
    "logsumexp": reduced("ReduceLogSumExp", -math.inf),
    "norm_l1": reduced("ReduceL1", 0, _absolute),
    "norm_l2": reduced("ReduceL2", 0, _absolute),
    "sum_square": reduced("ReduceSumSquare", 0, lambda e, node, x: e("Mul", x, x)),
    "log_sum": reduced("ReduceLogSum", -math.inf, lambda e, node, x: e("Log", x)),
    "argmax": position("ArgMax"),
    "argmin": position("ArgMin"),
    "cumsum": cumulative("CumSum"),
    "cumprod": cumulative("CumProd"),
    "cummax": running("Max", LOWEST),
    "cummin": running("Min", HIGHEST),
}
