"""The ops whose own kernels lose NaN, mended: what runs unless the option ``nan`` says "engine".

A kernel that compares forgets a NaN unless it comes first (1.31.1). Each op here runs its own
kernel where the sum of what it compares is no NaN, which costs one pass over that; and otherwise a
form that is right for NaN, however slow. The sum is NaN of opposite infinities too: that form is
right for them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

import numpy as np

from fusewire.dtypes import bool_, float32, int64, uint8
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType
from fusewire.onnx.ops.sorting import places_in_order
from fusewire.onnx.ops.write_table import WRITERS
from fusewire.onnx.ops.writing import attrs_of, choose, compare, either, number, operand, widened
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref, Write
from fusewire.ops.inference import axis_of
from fusewire.ops.table import get_op

# Gives the answer where some operands have NaN, or opposite infinities.
_Exact = Callable[..., Sequence[Ref]]


def _flags(e: Emitter, x: Ref) -> Ref:
    """Mark NaN by 1 in the dtype of x, and what is none by 0."""
    return e.cast(e("IsNaN", x, dtype=bool_), x.dtype)


def _chosen(e: Emitter, flags: Ref, x: Ref, y: Ref) -> Ref:
    return choose(e, compare(e, "Greater", flags, number(e, 0.5, flags)), x, y)


def _largest(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Find where there is any NaN by the largest of the flags."""
    op = "reduce_max" if node.op == "reduce_min" else node.op
    flags = _one(WRITERS[op](e, node, _flags(e, x)))
    return [_chosen(e, flags, number(e, np.nan, x), _one(WRITERS[node.op](e, node, x)))]


def _pooled(e: Emitter, node: Node, x: Ref, pooled: Ref) -> list[Ref]:
    """Find where a window has any NaN by the largest of flags: those are not laid out anew."""
    flags = e.cast(e("IsNaN", x, dtype=bool_), uint8)
    if node.op == "max_pool":
        given, made = (TensorType(uint8, v.tensor.shape) for v in (*node.operands, *node.outputs))
        of_flags = Node(node.op, [Value(given)], node.attrs, [made])
        flags = _one(WRITERS[node.op](e, of_flags, flags))
    else:
        axes = range(2, operand(node, 0).tensor.rank)
        flags = e("ReduceMax", flags, e.integers(*axes), keepdims=1)
    return [choose(e, e.cast(flags, bool_), number(e, np.nan, x), pooled)]


def _largest_and_place(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Take the first NaN of a window as the first of the largest flags."""
    (flags, first), (found, place) = (_both(e, node, v) for v in (_flags(e, x), x))
    return [
        _chosen(e, flags, number(e, np.nan, x), found),
        _chosen(e, flags, first, place),
    ]


def _both(e: Emitter, node: Node, x: Ref) -> tuple[Ref, Ref]:
    found = WRITERS[node.op](e, node, x)
    assert not isinstance(found, Ref)
    values, places = found
    return values, places


def _position(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Take the first or last NaN as the first or last of the largest flags."""
    flags, attrs = _flags(e, x), attrs_of(node)
    axis = axis_of(attrs["axis"], operand(node, 0).tensor.rank)
    found = e("ReduceMax", flags, e.integers(axis), keepdims=int(attrs["keepdims"]))
    place = _one(WRITERS["argmax"](e, node, flags))
    return [_chosen(e, found, place, _one(WRITERS[node.op](e, node, x)))]


def _top(e: Emitter, node: Node, x: Ref, k: Ref | None = None) -> list[Ref]:
    """Take the first few of all in order."""
    attrs, type_ = attrs_of(node), operand(node, 0).tensor
    axis = axis_of(attrs["axis"], type_.rank)
    order = places_in_order(e, x, e.size(type_.shape[axis]), axis, bool(attrs["largest"]))
    last = e.size(attrs["k"]) if k is None else e("Reshape", e.cast(k, int64), e.integers(1))
    places = e("Slice", order, e.integers(0), last, e.integers(axis))
    return [e("GatherElements", x, places, axis=axis), places]


def _unique(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Keep one of each rank: integers that are ordered as the elements are."""
    axis, shape = attrs_of(node)["axis"], operand(node, 0).tensor.shape
    flat = e("Reshape", x, e.integers(-1))
    order = places_in_order(e, flat, e("Shape", flat, dtype=int64), 0, False)
    row = e("Gather", flat, order, axis=0)
    zero, one, end = e.integers(0), e.integers(1), e.integers(np.iinfo(np.int64).max)
    before, after = e("Slice", row, zero, e.integers(-1)), e("Slice", row, one, end)
    # Of two neighbours in order, the second is NaN if the first is.
    is_new = e("Less", before, after, dtype=bool_)
    starts = e("Xor", *(e("IsNaN", part, dtype=bool_) for part in (before, after)))
    steps = e.cast(e("Or", is_new, starts), int64)
    ranks = e("CumSum", e("Concat", zero, steps, axis=0), e.constant(np.int64(0)))
    ranks = e("ScatterElements", order, order, ranks, axis=0)
    flags = {"sorted": int(attrs_of(node)["sorted"]), "axis": axis}
    known = ranks if axis is None else e("Reshape", ranks, e.shape(shape))
    _, first, inverse, counts = e.many("Unique", known, made=[int64] * 4, **flags)
    kept = e("Gather", flat if axis is None else x, first, axis=axis or 0)
    return [kept, first, inverse, counts]


def _scattered(e: Emitter, node: Node, x: Ref, places: Ref, updates: Ref) -> list[Ref]:
    """Write flags in the same places, and keep the largest."""
    flags = [_flags(e, v) for v in (x, updates)]
    highest = Node(node.op, node.inputs, {**node.attrs, "reduction": "max"}, node.types)
    found = _one(WRITERS[node.op](e, highest, flags[0], places, flags[1]))
    own = _one(WRITERS[node.op](e, node, x, places, updates))
    return [_chosen(e, found, number(e, np.nan, x), own)]


def _clipped(e: Emitter, node: Node, x: Ref, low: Ref | None, high: Ref | None) -> list[Ref]:
    """Compare with one bound after the other, either of which may be NaN."""
    x = x if low is None else e("Max", x, low)
    return [x if high is None else e("Min", x, high)]


def _sampled(e: Emitter, node: Node, x: Ref, grid: Ref) -> list[Ref]:
    """Sample NaN where a coordinate is NaN, or is infinite and reflected."""
    lost = e("Sub", grid, grid) if _is_from_infinity(node) else grid
    flags = e("ReduceMax", _flags(e, lost), e.integers(-1), keepdims=0)
    own = _one(WRITERS[node.op](e, node, x, grid))
    return [_chosen(e, e("Unsqueeze", flags, e.integers(1)), number(e, np.nan, x), own)]


def _expanded(e: Emitter, node: Node, *operands: Ref | None) -> list[Ref]:
    """Compute what the node is composed of."""
    expansion = get_op(node.op).expansion(node)
    return e.run(expansion, [x for x in operands if x], inline=True)[0]


def _one(found: Ref | Sequence[Ref]) -> Ref:
    return found if isinstance(found, Ref) else found[0]


# How each op is computed where an operand may have NaN.
_EXACT: Mapping[str, _Exact] = {
    **dict.fromkeys(("reduce_max", "reduce_min"), _largest),
    **dict.fromkeys(("max_pool", "global_max_pool"), _pooled),
    **dict.fromkeys(("argmax", "argmin"), _position),
    **dict.fromkeys(("top_k", "dynamic_top_k"), _top),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scattered),
    **dict.fromkeys(("attention", "deformable_conv", "gru", "lstm", "rnn"), _expanded),
    "grid_sample": _sampled,
    "max_pool_with_indices": _largest_and_place,
    "unique": _unique,
    "clip": _clipped,
}


def _is_from_infinity(node: Node) -> bool:
    """Tell whether a sum that is infinite may be that of what is lost only further inside."""
    return node.op in ("gru", "lstm", "rnn") or node.attrs.get("padding") == "reflection"


def loses(node: Node) -> bool:
    """Tell whether the engine's own kernel for a node forgets a NaN."""
    if node.op not in _EXACT or not operand(node, 0).tensor.dtype.is_float:
        return False
    if node.op == "clip":
        bounds = node.inputs[1:]
        return any(v is not None and v.constant is None for v in bounds)
    return node.attrs.get("reduction") in (None, "max", "min")


def _mended(op: str, e: Emitter, node: Node, *operands: Ref | None) -> Ref | Sequence[Ref]:
    """Write a node as the choice between its own kernel and what is exact."""
    write, exact = WRITERS[op], _EXACT[op]
    if e.is_trial or not loses(node) or 0 in (v.tensor.size for v in node.operands):
        return write(e, node, *operands)
    if op == "clip":
        return exact(e, node, *_three(operands))
    pairs = zip(node.inputs, operands, strict=False)
    totals = [_total(e, x) for value, x in pairs if x and value and _may_break(value)]
    if not totals:
        return write(e, node, *operands)
    whole = reduce(lambda total, x: e("Add", total, x), totals)
    if _is_from_infinity(node):
        whole = e("Sub", whole, whole)
    broken = e("IsNaN", whole, dtype=bool_)
    if exact is _pooled:
        # In a branch, the engine would lay the pool out anew by steps with names that it gives
        # outside, too, and not load the model (1.31.1).
        (x,) = operands
        assert x is not None
        pooled = _one(write(e, node, x))
        mended = partial(_pooled, node=node, x=x, pooled=pooled)
        return either(e, node, broken, mended, lambda _: [pooled])

    def own(inner: Emitter) -> Sequence[Ref]:
        found = write(inner, node, *operands)
        return [found] if isinstance(found, Ref) else found

    def mend(inner: Emitter) -> Sequence[Ref]:
        return exact(inner, node, *operands)

    return either(e, node, broken, mend, own)


def _may_break(value: Value) -> bool:
    """Tell whether a value may have NaN: constants of finite numbers have none."""
    if not value.tensor.dtype.is_float:
        return False
    return value.constant is None or not bool(np.isfinite(value.constant.array).all())


def _three(operands: Sequence[Ref | None]) -> Sequence[Ref | None]:
    return (*operands, None, None)[:3]


def _total(e: Emitter, x: Ref) -> Ref:
    """Add up all elements: NaN if any is."""
    return e("ReduceSum", widened(e, x, float32), keepdims=0)


MENDED: Mapping[str, Write] = {op: partial(_mended, op) for op in _EXACT}
