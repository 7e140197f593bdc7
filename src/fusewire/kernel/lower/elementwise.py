"""Ops whose elements depend on the operands' elements at the same place."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.ir.graph import Value
from fusewire.kernel.form import Guard
from fusewire.kernel.lower.body import Body, Element, Indices
from fusewire.kernel.lower.shapes import broadcast
from fusewire.ops.declare import Trait
from fusewire.ops.table import all_ops


def elementwise(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    """Apply the op to the operands' elements."""
    node = value.node
    assert node is not None
    operands = [body.element(x, broadcast(index, x), guard) for x in node.operands]
    return body.compute(node.op, *operands, **node.attrs)


def elements() -> dict[str, Element]:
    """Every primitive that says of itself that it is elementwise."""
    primitives = [op for op in all_ops().values() if not op.is_composite]
    named: Sequence[str] = [
        op.name for op in primitives if op.is_(Trait.ELEMENTWISE) and not op.is_(Trait.HOST)
    ]
    return dict.fromkeys(named, elementwise)
