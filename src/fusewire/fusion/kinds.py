"""The kinds of nodes for fusion, as their ops declare them."""

from __future__ import annotations

from fusewire.ir.graph import Node, Value
from fusewire.ops.declare import Kind
from fusewire.ops.table import get_op


def kind_of(node: Node) -> Kind:
    """Tell the kind of a node."""
    return get_op(node.op).kind_of(node.attrs)


def unshaped(value: Value) -> Value:
    """Go back through reshapes to what has the same memory; not to an input or another view."""
    found = value
    while found.node is not None and found.node.op == "reshape":
        found = found.node.operands[0]
    made = found.node is not None and kind_of(found.node) is not Kind.FREE
    return found if made else value
