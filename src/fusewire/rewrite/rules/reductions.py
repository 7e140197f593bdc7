"""Reductions over nothing, over axes of size 1, and one after another."""

from __future__ import annotations

from fusewire.facts.known import Facts
from fusewire.ir.graph import Node
from fusewire.ops.inference import axes_of, axis_of
from fusewire.ops.movement import reshape
from fusewire.ops.pooling import max_pool, max_pool_with_indices
from fusewire.ops.reduction import argmax, reduce_max, reduce_prod
from fusewire.ops.table import get_op
from fusewire.rewrite.pattern import maker
from fusewire.rewrite.rule import Outcome, RuleTable, on
from fusewire.rewrite.rules.algebra import full_like

TABLE = RuleTable("reductions")
_KEEPING = ("reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all", "reduce_sum")


@TABLE.rule(
    "reduce-one",
    *_KEEPING,
    because="One element is its own maximum, product and so on.",
    example=on(lambda x: reduce_prod(x, axes=(0, 2)), "T[1, n, 1]"),
)
def _reduce_one(node: Node, facts: Facts) -> Outcome:
    x = node.operands[0]
    axes = axes_of(node.attrs["axes"], x.tensor.rank)  # type: ignore[arg-type] # by its type rule
    if any(x.tensor.shape[axis] != 1 for axis in axes):
        return None
    if node.op == "reduce_sum" and x.tensor.dtype.is_inexact:
        return "a sum starts from 0.0, so the sum of -0.0 alone is 0.0."
    if x.tensor.dtype.is_complex:
        return "a product starts from 1, and 1 * z is not z where z is infinite."
    return reshape(x, shape=node.outputs[0].tensor.shape)


@TABLE.rule(
    "position-of-one",
    "argmax",
    "argmin",
    because="The only element is at place 0.",
    example=on(lambda x: argmax(x, axis=1), "T[n, 1]"),
)
def _position(node: Node, facts: Facts) -> Outcome:
    x = node.operands[0].tensor
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    return full_like(node.outputs[0], 0) if x.shape[axis_of(axis, x.rank)] == 1 else None


@TABLE.rule(
    "reduce-twice",
    *_KEEPING,
    because="Both reductions at once combine the same elements; order does not matter to ints, "
    "bools, maxima and minima.",
    example=on(lambda x: reduce_max(reduce_max(x, axes=(1,)), axes=(1,)), "T[n, 3, 2]"),
)
def _reduce_twice(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], node.op)
    if inner is None or inner.attrs["keepdims"] != node.attrs["keepdims"]:
        return None
    x = inner.operands[0].tensor
    if x.dtype.is_inexact and node.op in ("reduce_sum", "reduce_prod"):
        return "floats add up and multiply to other roundings in another order."
    first = axes_of(inner.attrs["axes"], x.rank)  # type: ignore[arg-type] # by its type rule
    kept = [axis for axis in range(x.rank) if node.attrs["keepdims"] or axis not in first]
    second = axes_of(node.attrs["axes"], len(kept))  # type: ignore[arg-type] # by its type rule
    axes = tuple(sorted({*first, *(kept[axis] for axis in second)}))
    return get_op(node.op)(inner.inputs[0], axes=axes, keepdims=node.attrs["keepdims"])  # type: ignore[no-any-return] # one output by its rule


@TABLE.rule(
    "indices-unused",
    "max_pool_with_indices",
    because="Nobody asks where the largest elements were.",
    example=on(lambda x: max_pool_with_indices(x, window=(2,))[0], "T[n, 1, 5]"),
)
def _indices(node: Node, facts: Facts) -> Outcome:
    if facts.uses(node.outputs[1]):
        return None
    attrs = {key: attr for key, attr in node.attrs.items() if key != "column_major"}
    return max_pool(node.operands[0], **attrs), full_like(node.outputs[1], 0)
