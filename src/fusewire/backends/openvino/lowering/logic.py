"""Comparisons, tests of values, logic, choice by a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering import wide
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Lower,
    Ov,
    Pair,
    Table,
    above,
    at_least,
    convert,
    elementwise,
    ints,
    is_below,
    is_same,
    select,
    turned,
)
from fusewire.backends.openvino.lowering.floats import is_finite
from fusewire.dtypes import uint32
from fusewire.ir.graph import Node

# By op: comparisons of int32, which the engine's own would round to float32.
_EXACT: dict[str, Callable[[Ov, Ov], Ov]] = {
    "equal": is_same,
    "not_equal": lambda x, y: ops.logical_not(is_same(x, y)),
    "less": is_below,
    "greater": lambda x, y: is_below(y, x),
    "less_equal": lambda x, y: ops.logical_not(is_below(y, x)),
    "greater_equal": lambda x, y: ops.logical_not(is_below(x, y)),
}


_PLAIN: dict[str, Callable[[Ov, Ov], Ov]] = {
    "equal": ops.equal,
    "not_equal": ops.not_equal,
    "less": ops.less,
    "greater": above,
    "less_equal": ops.less_equal,
    "greater_equal": at_least,
}


def _compared(name: str) -> Lower:
    def lower(s: Any, node: Node, x: Ov, y: Ov) -> Ov:
        of = node.operands[0].tensor.dtype
        if not of.is_integer or of.bits < 32:
            return _PLAIN[name](ints(x), ints(y))
        given = (turned(x), turned(y)) if of is uint32 else (x, y)
        return _EXACT[name](*given)

    return lower


def _comparison(name: str) -> Entry:
    return Entry(_compared(name), "fiub", _COMPLEX.get(name), wide.compare(name))


def _complex_equal(s: Any, node: Node, x: Pair, y: Pair) -> Ov:
    return ops.logical_and(ops.equal(x[0], y[0]), ops.equal(x[1], y[1]))


def _complex_differs(s: Any, node: Node, x: Pair, y: Pair) -> Ov:
    return ops.logical_or(ops.not_equal(x[0], y[0]), ops.not_equal(x[1], y[1]))


_COMPLEX: dict[str, Lower] = {"equal": _complex_equal, "not_equal": _complex_differs}


def _tested(function: Callable[[Ov], Ov], join: Callable[[Ov, Ov], Ov]) -> Entry:
    return Entry(
        elementwise(function),
        complex=lambda s, node, x: join(function(x[0]), function(x[1])),
    )


def _where(s: Any, node: Node, condition: Ov, x: Ov, y: Ov) -> Ov:
    # The engine selects among bools only as numbers.
    if node.outputs[0].tensor.dtype.kind == "bool":
        chosen = select(condition, convert(x, "u8"), convert(y, "u8"))
        return convert(chosen, "boolean")
    return select(condition, x, y)


TABLE: Table = {
    **{name: _comparison(name) for name in _EXACT},
    **{
        name: Entry(elementwise(getattr(ops, name)), "b")
        for name in ("logical_and", "logical_or", "logical_xor", "logical_not")
    },
    "isnan": _tested(ops.is_nan, ops.logical_or),
    "isinf": _tested(ops.is_inf, ops.logical_or),
    "isfinite": _tested(is_finite, ops.logical_and),
    "where": Entry(_where, "fiub"),
}
