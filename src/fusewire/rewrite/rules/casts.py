"""Casts that do nothing, or follow one another."""

from __future__ import annotations

from typing import Any

import ml_dtypes

from fusewire.dtypes import DType, string
from fusewire.facts.known import Facts
from fusewire.ir.graph import Node
from fusewire.ops.conversion import bitcast, cast
from fusewire.rewrite.pattern import maker
from fusewire.rewrite.rule import Outcome, RuleTable, on

TABLE = RuleTable("casts")
# ml_dtypes ships this without types.
_finfo: Any = ml_dtypes.finfo


def holds(wide: DType, of: DType) -> bool:
    """Tell whether every value of a dtype is one of another, the wider."""
    if wide is of:
        return True
    if string in (wide, of) or of.is_complex or wide.is_narrow or wide.kind == "bool":
        return False
    if of.kind == "bool":
        return True
    if wide.is_integer:
        low, high = wide.range
        return of.is_integer and low <= of.range[0] and of.range[1] <= high
    part = wide.numpy.type(0).real.dtype
    digits = _finfo(part).nmant + 1
    if of.is_integer:
        return bool(of.bits - (of.kind == "int") <= digits and of.range[1] <= _finfo(part).max)
    theirs = _finfo(of.numpy)
    fine = float(_finfo(part).smallest_subnormal) <= float(theirs.smallest_subnormal)
    return digits >= theirs.nmant + 1 and fine and float(_finfo(part).max) >= float(theirs.max)


@TABLE.rule(
    "cast-to-the-same",
    "cast",
    "bitcast",
    because="It has that dtype already.",
    example=on(lambda x: cast(x, dtype="float32"), "float32[n]"),
)
def _same(node: Node, facts: Facts) -> Outcome:
    x = node.operands[0]
    return x if x.type == node.outputs[0].type else None


@TABLE.rule(
    "cast-twice",
    "cast",
    because="The dtype between holds every value, so going through it changes nothing.",
    example=on(lambda x: cast(cast(x, dtype="float64"), dtype="int32"), "T[n]"),
)
def _cast_twice(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "cast")
    if inner is None:
        return None
    x = inner.operands[0]
    first, between, last = x.tensor.dtype, inner.outputs[0].tensor.dtype, node.outputs[0].tensor
    if string in (first, between, last.dtype):
        return None
    if not holds(between, first):
        return f"{between} does not hold every value of {first}, so the first cast may round."
    whole = first.is_integer and between.is_inexact and last.dtype.is_integer
    if whole and not holds(last.dtype, first):
        return f"{between} to {last.dtype} stops at the limits, {first} to {last.dtype} wraps."
    return cast(x, dtype=last.dtype, saturate=node.attrs["saturate"])


@TABLE.rule(
    "bitcast-twice",
    "bitcast",
    because="The bits are the same all the way.",
    example=on(lambda x: bitcast(bitcast(x, dtype="int32"), dtype="uint32"), "float32[n]"),
)
def _bitcast_twice(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "bitcast")
    return bitcast(inner.inputs[0], dtype=node.attrs["dtype"]) if inner else None
