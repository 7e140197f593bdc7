"""Comparisons, conditions, limits: min, max, clip, where and logic on bools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusewire.dtypes import bool_
from fusewire.facts.known import Facts
from fusewire.ir.builder import constant
from fusewire.ir.graph import Node, Value
from fusewire.ops.elementwise import clip, maximum, minimum
from fusewire.ops.logic import equal, logical_and, logical_not, logical_or, where
from fusewire.ops.table import get_op
from fusewire.rewrite.pattern import is_number, maker, shaped, splat
from fusewire.rewrite.rule import Outcome, RuleTable, on
from fusewire.rewrite.rules.algebra import full_like

TABLE = RuleTable("choice")
_OPPOSITE = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "greater_equal": "less",
    "greater": "less_equal",
    "less_equal": "greater",
}


@TABLE.rule(
    "compare-with-itself",
    *_OPPOSITE,
    because="An int is equal to itself, and nothing is less than itself.",
    example=on(lambda x: equal(x, x), "int32[n]"),
)
def _itself(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    if x is not y:
        return None
    if node.op in ("less", "greater"):
        return full_like(node.outputs[0], False)
    if x.tensor.dtype.is_inexact:
        return "NaN is not equal to itself."
    return full_like(node.outputs[0], node.op != "not_equal")


@TABLE.rule(
    "not-compared",
    "logical_not",
    because="The opposite of a comparison is a comparison.",
    example=on(lambda x, y: logical_not(equal(x, y)), "T[n]", "T[n]"),
)
def _opposite(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], *_OPPOSITE)
    if inner is None:
        return None
    if inner.operands[0].tensor.dtype.is_float and "equal" not in (inner.op, inner.op[4:]):
        return f"{inner.op} and {_OPPOSITE[inner.op]} are both false of NaN."
    return _called(_OPPOSITE[inner.op], *inner.inputs)


def _called(op: str, *operands: Value | None, **attrs: Any) -> Value:
    found = get_op(op)(*operands, **attrs)
    assert isinstance(found, Value)
    return found


_LOGIC = {
    ("logical_and", True): None,
    ("logical_and", False): False,
    ("logical_or", False): None,
    ("logical_or", True): True,
    ("logical_xor", False): None,
}


@TABLE.rule(
    "logic-with-constant",
    "logical_and",
    "logical_or",
    "logical_xor",
    because="A constant decides, or leaves it to the other operand.",
    example=on(lambda x: logical_and(logical_or(x, False), False), "bool[n]"),
)
def _logic(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    for kept, other in ((x, y), (y, x)):
        known = splat(other)
        if (node.op, known) in _LOGIC:
            decided = _LOGIC[node.op, known]
            same = shaped(kept, node.outputs[0].tensor)
            return same if decided is None else full_like(node.outputs[0], decided)
    return None


@TABLE.rule(
    "where-decided",
    "where",
    because="The condition is the same everywhere, or both sides are.",
    example=on(lambda x, y: where(constant(np.array([True])), x, y), "T[n]", "T[3, 1]"),
)
def _decided(node: Node, facts: Facts) -> Outcome:
    condition, x, y = node.operands
    known = splat(condition)
    if x is y:
        return shaped(x, node.outputs[0].tensor)
    return None if known is None else shaped(x if known else y, node.outputs[0].tensor)


@TABLE.rule(
    "where-not",
    "where",
    because="Swapping the sides undoes the not.",
    example=on(lambda c, x, y: where(logical_not(c), x, y), "bool[n]", "T[n]", "T[1]"),
)
def _where_not(node: Node, facts: Facts) -> Outcome:
    condition, x, y = node.operands
    inner = maker(condition, "logical_not")
    return where(inner.inputs[0], y, x) if inner else None


@TABLE.rule(
    "where-true-false",
    "where",
    because="The condition is the answer.",
    example=on(lambda c: where(c, np.array(True), np.array(False)), "bool[n]"),
)
def _true_false(node: Node, facts: Facts) -> Outcome:
    condition, x, y = node.operands
    if x.tensor.dtype is not bool_ or (splat(x), splat(y)) != (True, False):
        return None
    return shaped(condition, node.outputs[0].tensor)


@TABLE.rule(
    "limit-twice",
    "maximum",
    "minimum",
    because="The tighter of two constant limits is the one that counts.",
    example=on(lambda x: maximum(maximum(x, 1), 2), "T[n]"),
)
def _limit(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    inner = maker(x, node.op)
    if inner is None:
        return None
    first, second = splat(inner.inputs[1]), splat(y)
    if first is None or second is None or inner.operands[0].type != node.outputs[0].type:
        return None
    if first != second and not (math.isnan(first) or math.isnan(second)):
        tighter = (max if node.op == "maximum" else min)(first, second)
        op = maximum if node.op == "maximum" else minimum
        return op(inner.inputs[0], tighter)
    return inner.outputs[0] if first == second and is_number(y, first) else None


def _bounds(node: Node) -> tuple[Any, Any] | None:
    """Give the constant limits of a clip, infinite where absent; None when they are not known."""
    low, high = (
        (-math.inf, math.inf)[side] if v is None else splat(v)
        for side, v in enumerate(node.inputs[1:3])
    )
    if low is None or high is None or not low <= high:
        return None
    return low, high


@TABLE.rule(
    "clip-twice",
    "clip",
    because="What both limits leave is one range, its ends limited by the outer one.",
    example=on(lambda x: clip(clip(x, 1, 5), 2, 7), "T[n]"),
)
def _clip_twice(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "clip")
    if inner is None or inner.operands[0].type != node.outputs[0].type:
        return None
    first, second = _bounds(inner), _bounds(node)
    if first is None or second is None:
        return None
    if 0 in (*first, *second):
        return "a limit of 0 and a value of the other sign of 0 are equal: either may be taken."
    low, high = (min(max(end, second[0]), second[1]) for end in first)
    ends = [None if math.isinf(end) else end for end in (low, high)]
    return None if ends == [None, None] else clip(inner.inputs[0], *ends)


@TABLE.rule(
    "clip-of-nothing",
    "clip",
    because="Limits that no number passes change nothing.",
    example=on(lambda x: clip(x, -math.inf, math.inf), "float32[n]"),
)
def _no_limit(node: Node, facts: Facts) -> Outcome:
    of = node.outputs[0].tensor.dtype
    low, high = (-math.inf, math.inf) if of.is_float else of.range
    given = _bounds(node)
    if given is None or given[0] > low or given[1] < high:
        return None
    return shaped(node.operands[0], node.outputs[0].tensor)


@TABLE.rule(
    "swap-constant-right",
    "add",
    "multiply",
    "equal",
    "not_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    because="Rules look for constants on the right.",
    example=on(lambda x: equal(constant(np.array(1, x.tensor.dtype.numpy)), x), "T[n]"),
)
def _swap(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    if x.constant is None or y.constant is not None:
        return None
    return _called(node.op, y, x)
