"""Reshapes, transposes and broadcasts: those that do nothing, undo or follow one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.errors import TypeRuleError
from fusewire.facts.known import Facts
from fusewire.ir.builder import inline
from fusewire.ir.graph import Node, Value
from fusewire.ops.declare import Op, Trait
from fusewire.ops.elementwise import add, exp
from fusewire.ops.movement import broadcast_to, expand_dims, reshape, transpose
from fusewire.ops.table import get_op
from fusewire.rewrite.pattern import maker
from fusewire.rewrite.rule import Outcome, RuleTable, on

TABLE = RuleTable("movement")
# Families whose elementwise ops broadcast their operands, as NumPy does.
_BROADCASTING = ("elementwise", "logic", "conversion", "activation")
_SPELLINGS = ("expand_dims", "squeeze", "full")


def perm_of(node: Node) -> tuple[int, ...]:
    """Read the perm of a transpose."""
    perm = node.attrs["perm"]
    assert isinstance(perm, tuple)
    return perm  # type: ignore[return-value] # ints by the op's type rule


@TABLE.rule(
    "nothing-moves",
    "reshape",
    "transpose",
    "broadcast_to",
    "slice",
    "pad",
    "tile",
    "repeat",
    "flip",
    "roll",
    "concat",
    "squeeze",
    "expand_dims",
    because="Every element stays where it is.",
    example=on(lambda x: transpose(reshape(x, shape=x.tensor.shape), perm=(0, 1)), "T[n, 3]"),
)
def _drop_identity(node: Node, facts: Facts) -> Outcome:
    x, attrs = node.operands[0], node.attrs
    if x.type != node.outputs[0].type:
        return None
    rank = x.tensor.rank
    stays: dict[str, bool] = {
        "transpose": attrs.get("perm") == tuple(range(rank)),
        "slice": attrs.get("starts") == (0,) * rank and attrs.get("strides") == (1,) * rank,
        "pad": attrs.get("padding") == ((0, 0),) * rank,
        "tile": attrs.get("repeats") == (1,) * rank,
        "repeat": attrs.get("count") == 1,
        "flip": all(x.tensor.shape[axis] == 1 for axis in _flipped_axes(node)),
        "roll": not any(attrs.get("shifts", (1,))),  # type: ignore[arg-type] # a tuple of ints
        "concat": len(node.operands) == 1,
    }
    return x if stays.get(node.op, True) else None


def _flipped_axes(node: Node) -> Sequence[int]:
    axes = node.attrs.get("axes")
    if isinstance(axes, tuple):
        return [axis for axis in axes if isinstance(axis, int)]
    return range(node.operands[0].tensor.rank)


@TABLE.rule(
    "one-spelling",
    *_SPELLINGS,
    because="A reshape or a broadcast by another name: one name makes them meet.",
    example=on(lambda x: expand_dims(x, axes=(0, -1)), "T[n, 3]"),
)
def _respell(node: Node, facts: Facts) -> Outcome:
    return inline(get_op(node.op).expansion(node), node.operands)


@TABLE.rule(
    "reshape-twice",
    "reshape",
    because="Only the last shape counts.",
    example=on(lambda x: reshape(reshape(x, shape=(6, 2)), shape=(4, 3)), "T[3, 4]"),
)
def _merge_reshapes(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "reshape")
    return reshape(inner.inputs[0], shape=node.attrs["shape"]) if inner else None


@TABLE.rule(
    "transpose-twice",
    "transpose",
    because="Two orders of axes, one after the other, are one order.",
    example=on(lambda x: transpose(transpose(x, perm=(2, 0, 1)), perm=(2, 1, 0)), "T[n, 3, 2]"),
)
def _merge_transposes(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "transpose")
    if inner is None:
        return None
    first, second = perm_of(inner), perm_of(node)
    return transpose(inner.inputs[0], perm=tuple(first[axis] for axis in second))


@TABLE.rule(
    "transpose-of-ones",
    "transpose",
    because="Axes of size 1 may stand anywhere: the elements keep their order.",
    example=on(lambda x: transpose(x, perm=(1, 0, 2)), "T[n, 1, 3]"),
)
def _reshape_instead(node: Node, facts: Facts) -> Outcome:
    x, perm = node.operands[0], perm_of(node)
    moved = [axis for axis in perm if x.tensor.shape[axis] != 1]
    if moved != sorted(moved):
        return None
    return reshape(x, shape=node.outputs[0].tensor.shape)


@TABLE.rule(
    "broadcast-twice",
    "broadcast_to",
    because="Only the last shape counts.",
    example=on(lambda x: broadcast_to(broadcast_to(x, shape=(4, 3)), shape=(2, 4, 3)), "T[4, 1]"),
)
def _merge_broadcasts(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "broadcast_to")
    return broadcast_to(inner.inputs[0], shape=node.attrs["shape"]) if inner else None


def _works_anywhere(op: Op[Any]) -> bool:
    """Tell whether an op is elementwise, broadcasts, and has no attribute that names an axis."""
    by_axis = {"axis", "axes", "block"} & op.parameters[2].keys()
    return op.is_(Trait.ELEMENTWISE) and op.family in _BROADCASTING and not by_axis


def _takes_several(op: Op[Any]) -> bool:
    return _works_anywhere(op) and len(op.parameters[0]) > 1


def _takes_one(op: Op[Any]) -> bool:
    return _works_anywhere(op) and len(op.parameters[0]) == 1


@TABLE.rule(
    "broadcast-implied",
    because="The op repeats its operands itself.",
    example=on(lambda x, y: add(x, broadcast_to(y, shape=x.tensor.shape)), "T[n, 3]", "T[3]"),
    when=_takes_several,
)
def _drop_broadcast(node: Node, facts: Facts) -> Outcome:
    op = get_op(node.op)
    for position, value in enumerate(node.inputs):
        inner = maker(value, "broadcast_to")
        if inner is None:
            continue
        inputs = [*node.inputs[:position], inner.inputs[0], *node.inputs[position + 1 :]]
        try:
            types = op.infer([None if v is None else v.type for v in inputs], node.attrs)
        except TypeRuleError:
            continue
        if types == node.types:
            return op.make(inputs, node.attrs).outputs
    return None


@TABLE.rule(
    "compute-then-repeat",
    because="Equal elements give equal results, so one of them is computed.",
    example=on(lambda x: exp(broadcast_to(x, shape=(4, *x.tensor.shape))), "float32[n]"),
    when=_takes_one,
)
def _broadcast_later(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "broadcast_to")
    if inner is None:
        return None
    computed = get_op(node.op).make(inner.inputs, node.attrs).outputs[0]
    return broadcast_to(computed, shape=inner.attrs["shape"])


@TABLE.rule(
    "transpose-later",
    because="At each place alone the order of axes does not matter; transposes move toward each "
    "other, and toward the outputs, where they meet and cancel.",
    example=on(lambda x: transpose(add(transpose(x, perm=(1, 0)), 1), perm=(1, 0)), "T[n, 3]"),
    when=_works_anywhere,
)
def _transpose_later(node: Node, facts: Facts) -> Outcome:
    moved = [v for v in node.operands if maker(v, "transpose")]
    if not moved or any(v.type != moved[0].type for v in moved):
        return None
    first = moved[0].node
    if first is None or moved[0].tensor.shape != node.outputs[0].tensor.shape:
        return None
    perm = perm_of(first)
    if any(v.node is None or v.node.attrs["perm"] != perm for v in moved):
        return None
    if any(facts.uses(v) > node.operands.count(v) for v in moved):
        return "a transpose is used elsewhere too, so there would be one more of them."
    inputs = [_undo_transpose(v, perm) for v in node.inputs]
    if any(new is None and old is not None for new, old in zip(inputs, node.inputs, strict=True)):
        return None
    return transpose(get_op(node.op).make(inputs, node.attrs).outputs[0], perm=perm)


def _undo_transpose(value: Value | None, perm: tuple[int, ...]) -> Value | None:
    """Return an operand from before the transpose; None if it is not constant or transposed."""
    if value is None or value.tensor.rank == 0:
        return value
    if inner := maker(value, "transpose"):
        return inner.inputs[0]
    if value.constant is None:
        return None
    missing = len(perm) - value.tensor.rank
    whole = reshape(value, shape=(1,) * missing + value.tensor.shape) if missing else value
    return transpose(whole, perm=tuple(int(axis) for axis in np.argsort(perm)))
