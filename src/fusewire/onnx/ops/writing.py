"""Helpers for writing that several families share: single nodes, comparisons, choices, numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import DType, bool_, int32, int64
from fusewire.errors import FormatError
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import tensor_of
from fusewire.onnx.write.emitter import Emitter, is_nothing
from fusewire.onnx.write.model import OnnxAttr, OnnxBody, Port, Ref, Write
from fusewire.onnx.write.target import OnnxTarget
from fusewire.ops.inference import axis_of


def plain(op: str) -> Write:
    """Write a node as one ONNX node of the same operands."""

    def write(e: Emitter, node: Node, *xs: Ref | None) -> Ref:
        return e(op, *xs)

    return write


def holding(op: str, **names: str) -> Write:
    """Write a node as one ONNX node, whose attributes (left) are named as ours (right)."""

    def write(e: Emitter, node: Node, *xs: Ref | None) -> list[Ref]:
        attrs: dict[str, OnnxAttr | None] = {}
        for theirs, ours in names.items():
            given: Any = attrs_of(node)[ours]
            attrs[theirs] = int(given) if isinstance(given, bool) else given
        return e.raw(op, xs, [tensor_of(t).dtype for t in node.types], attrs)

    return write


def compare(e: Emitter, op: str, x: Ref, y: Ref) -> Ref:
    """Compare; gives bools."""
    return e(op, x, y, dtype=bool_)


def choose(e: Emitter, condition: Ref, x: Ref, y: Ref) -> Ref:
    """Take x where the condition holds; bools by logic, as engines lack a choice of them."""
    if x.dtype is bool_:
        kept, other = e("And", condition, x), e("And", e("Not", condition), y)
        return e("Or", kept, other)
    return e("Where", condition, x, y, of=x.dtype)


def has_kernel(target: OnnxTarget, op: str, x: Ref) -> bool:
    """Tell whether an op takes a dtype, as it is or widened."""
    try:
        target.work(op, x.dtype)
    except FormatError:
        return False
    return True


def larger(e: Emitter, x: Ref, y: Ref) -> Ref:
    """Take the larger; of integers that a target cannot be trusted with, by comparing."""
    if has_kernel(e.target, "Max", x):
        return e("Max", x, y)
    return choose(e, compare(e, "Less", x, y), y, x)


def smaller(e: Emitter, x: Ref, y: Ref) -> Ref:
    """Take the smaller, likewise."""
    if has_kernel(e.target, "Min", x):
        return e("Min", x, y)
    return choose(e, compare(e, "Less", x, y), x, y)


def number(e: Emitter, value: Any, like: Ref) -> Ref:
    """Give a scalar of a value's dtype."""
    return e.constant(np.array(value).astype(like.dtype.numpy))


def widened(e: Emitter, x: Ref, to: DType) -> Ref:
    """Bring 16-bit floats to a wider dtype, in which a chain of nodes rounds once."""
    return e.cast(x, to) if x.dtype.is_float and x.dtype.bits == 16 else x


def indices(e: Emitter, x: Ref, op: str | None = None, place: int = 1) -> Ref:
    """Bring indices to int64, which every op takes, unless this one takes int32 as well."""
    if op is None or e.target.is_cautious or x.dtype is not int32:
        return e.cast(x, int64)
    return x if e.target.takes(op, int32, place) else e.cast(x, int64)


def attrs_of(node: Node) -> Any:
    """Give the attributes, whose types the op's rule has checked."""
    return node.attrs


def operand(node: Node, place: int) -> Value:
    """Give an operand that must be there."""
    value = node.inputs[place]
    assert value is not None
    return value


def spelled(e: Emitter, axis: int, rank: int) -> int:
    """Count an axis from the front, as engines agree to; others get it as it is spelled."""
    return axis_of(axis, rank) if e.target.is_cautious else axis


def static_sizes(value: Value) -> tuple[int, ...] | None:
    """Give the shape where all of it is known."""
    shape = value.tensor.shape
    known = tuple(dim for dim in shape if isinstance(dim, int))
    return known if len(known) == len(shape) else None


def either(
    e: Emitter,
    node: Node,
    condition: Ref,
    then: Callable[[Emitter], Sequence[Ref]],
    otherwise: Callable[[Emitter], Sequence[Ref]],
) -> list[Ref]:
    """Write a node in one of two ways, which the run chooses."""
    branches: dict[str, OnnxAttr | None] = {}
    for name, write in (("then_branch", then), ("else_branch", otherwise)):
        inner = Emitter(e.model, e, is_trial=e.is_trial)
        found = [inner.give(x) for x in write(inner)]
        ends = zip(found, node.outputs, strict=True)
        ports = [Port(ref.name, value.type, False) for ref, value in ends]
        branches[name] = OnnxBody(node.op, [], ports, inner.steps)
    return e.raw("If", [condition], [tensor_of(t).dtype for t in node.types], branches)


def require_filled(e: Emitter, node: Node, places: Sequence[int] = (0,)) -> None:
    """Refuse what is known to have no elements: engines differ in what they do then."""
    sizes = [operand(node, place).tensor.size for place in places]
    if 0 in (*sizes, node.outputs[0].tensor.size) and not is_nothing(node):
        e.caution(f"Engines do not agree about {node.op} of nothing.")
