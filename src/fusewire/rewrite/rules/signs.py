"""Signs, roundings and ops that undo or repeat themselves."""

from __future__ import annotations

from fusewire.facts.known import Facts
from fusewire.ir.graph import Node, Value
from fusewire.ops.declare import Op
from fusewire.ops.elementwise import (
    abs_,
    add,
    ceil,
    conj,
    divide,
    floor,
    multiply,
    negative,
    round_,
    sign,
    subtract,
    trunc,
)
from fusewire.ops.logic import bitwise_not, logical_not
from fusewire.ops.table import get_op
from fusewire.rewrite.pattern import maker
from fusewire.rewrite.rule import Outcome, RuleTable, on

TABLE = RuleTable("signs")


def _pair(name: str, outer: Op[Value], inner: Op[Value], because: str, types: str) -> None:
    """Declare that an op undoes itself."""

    def apply(node: Node, facts: Facts) -> Outcome:
        found = maker(node.inputs[0], inner.name)
        return found.inputs[0] if found else None

    example = on(lambda x: outer(inner(x)), types)
    TABLE.rule(name, outer.name, because=because, example=example)(apply)


_pair("negative-twice", negative, negative, "Changing the sign twice changes nothing.", "T[n]")
_pair("bitwise-not-twice", bitwise_not, bitwise_not, "Every bit is flipped back.", "int16[n]")
_pair("logical-not-twice", logical_not, logical_not, "It holds again.", "bool[n]")
_pair("conj-twice", conj, conj, "The sign of each imaginary part is changed back.", "complex64[n]")

_ROUNDINGS = (floor, ceil, round_, trunc)


@TABLE.rule(
    "round-the-rounded",
    *(op.name for op in _ROUNDINGS),
    because="What is rounded to a whole number rounds to itself.",
    example=on(lambda x: floor(ceil(x)), "T[n]"),
)
def _rounded(node: Node, facts: Facts) -> Outcome:
    x = node.inputs[0]
    return x if maker(x, *(op.name for op in _ROUNDINGS)) else None


@TABLE.rule(
    "idempotent",
    "abs",
    "relu",
    "sign",
    because="Done once or twice is the same.",
    example=on(lambda x: sign(sign(x)), "T[n]"),
)
def _idempotent(node: Node, facts: Facts) -> Outcome:
    x = node.inputs[0]
    return x if maker(x, node.op) else None


@TABLE.rule(
    "sign-dropped",
    "abs",
    "square",
    "cosh",
    because="The sign of the operand does not reach the result.",
    example=on(lambda x: abs_(negative(x)), "T[n]"),
)
def _sign_dropped(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "negative", *(["abs"] if node.op != "abs" else []))
    if inner is None or inner.operands[0].tensor.dtype.is_complex:
        return None
    return get_op(node.op)(inner.inputs[0])  # type: ignore[no-any-return] # one output by its rule


@TABLE.rule(
    "add-negative",
    "add",
    "subtract",
    because="Adding -y is subtracting y, and the other way round, rounding included.",
    example=on(lambda x, y: add(x, negative(y)), "T[n]", "T[n]"),
)
def _add_negative(node: Node, facts: Facts) -> Outcome:
    x, y = node.operands
    if inner := maker(y, "negative"):
        return (subtract if node.op == "add" else add)(x, inner.inputs[0])
    if node.op == "add" and (inner := maker(x, "negative")):
        return subtract(y, inner.inputs[0])
    return None


@TABLE.rule(
    "two-negatives",
    "multiply",
    "divide",
    because="Two changes of sign cancel in a product and a quotient.",
    example=on(lambda x, y: multiply(negative(x), negative(y)), "T[n]", "T[3, n]"),
)
def _two_negatives(node: Node, facts: Facts) -> Outcome:
    x, y = (maker(v, "negative") for v in node.operands)
    if x is None or y is None or node.outputs[0].tensor.dtype.is_complex:
        return None
    return (multiply if node.op == "multiply" else divide)(x.inputs[0], y.inputs[0])
