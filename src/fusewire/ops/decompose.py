"""Primitives in simpler primitives, for engines that lack them.

A decomposition is a function over an array namespace, as its first operand: with NumPy it may be
the reference itself, with ``jax.numpy`` a lowering, and with ``OPS`` it makes nodes. It works in
float64 (``wide``) or in float32 (``narrow``), where an engine has nothing wider; floats of 16 bits
are brought up to float32, and what comes out is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from fusewire.dtypes import DType, float32, float64
from fusewire.ir.graph import Graph, Node, Value

if TYPE_CHECKING:
    from fusewire.ops.declare import Op

Grade: TypeAlias = Literal["narrow", "wide"]
# The narrow one first: where it has the digits, it needs no conversions and is faster.
GRADES: tuple[Grade, ...] = ("narrow", "wide")
# The array namespace, then the operands and attributes of the op.
Formula: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Decomposition:
    """How to compute an op of floats in simpler ones; None where a grade has too few digits.

    ``wide`` is right for float64 itself.
    """

    wide: Formula
    narrow: Formula | None = None


def in_both(formula: Formula) -> Decomposition:
    """Use one formula whatever the precision."""
    return Decomposition(formula, formula)


@final
class Expression:
    """A value with the operators of an array."""

    __hash__ = None  # type: ignore[assignment] # == makes a node, so there is nothing to hash by

    def __init__(self, value: Value) -> None:
        self.value = value

    def __neg__(self) -> Expression:
        return OPS.negative(self)

    def __invert__(self) -> Expression:
        return OPS.logical_not(self)

    def __add__(self, other: Any) -> Expression:
        return OPS.add(self, other)

    def __radd__(self, other: Any) -> Expression:
        return OPS.add(other, self)

    def __sub__(self, other: Any) -> Expression:
        return OPS.subtract(self, other)

    def __rsub__(self, other: Any) -> Expression:
        return OPS.subtract(other, self)

    def __mul__(self, other: Any) -> Expression:
        return OPS.multiply(self, other)

    def __rmul__(self, other: Any) -> Expression:
        return OPS.multiply(other, self)

    def __truediv__(self, other: Any) -> Expression:
        return OPS.divide(self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return OPS.divide(other, self)

    def __and__(self, other: Any) -> Expression:
        return OPS.logical_and(self, other)

    def __or__(self, other: Any) -> Expression:
        return OPS.logical_or(self, other)

    def __lt__(self, other: Any) -> Expression:
        return OPS.less(self, other)

    def __le__(self, other: Any) -> Expression:
        return OPS.less_equal(self, other)

    def __gt__(self, other: Any) -> Expression:
        return OPS.greater(self, other)

    def __ge__(self, other: Any) -> Expression:
        return OPS.greater_equal(self, other)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override] # as of an array
        return OPS.equal(self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override] # as of an array
        return OPS.not_equal(self, other)


@final
class _Namespace:
    """Our ops under their names, on expressions."""

    def __getattr__(self, name: str) -> Callable[..., Expression]:
        from fusewire.ops.table import get_op

        op = get_op(name)

        def apply(*operands: Any, **attrs: Any) -> Expression:
            values = [x.value if isinstance(x, Expression) else x for x in operands]
            return Expression(op(*values, **attrs))

        return apply


OPS = _Namespace()


def decomposition(op: Op[Any], node: Node, grade: Grade) -> Graph | None:
    """Give a node in simpler ops, as a graph over the same inputs; None where there is no way."""
    if op.decompose is None:
        return None
    of = node.operands[0].tensor.dtype
    if not of.is_float:
        return None
    wide = grade == "wide" or of is float64
    formula = op.decompose.wide if wide else op.decompose.narrow
    if formula is None:
        return None
    inputs = [Value(v.type, f"operand{i}") for i, v in enumerate(node.operands)]
    working = float64 if wide else float32
    operands = [_cast(Expression(v), of, working) for v in inputs]
    result = _cast(formula(OPS, *operands, **node.attrs), working, of).value
    assert result.type == node.types[0], f"{op.name} decomposes to {result.type}"
    return Graph(inputs, [result], name=op.name, output_names=["output0"])


def _cast(x: Expression, of: DType, to: DType) -> Expression:
    return x if of is to else OPS.cast(x, dtype=to)
