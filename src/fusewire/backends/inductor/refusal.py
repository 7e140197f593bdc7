"""What the Inductor backend refuses beside what eager mode refuses: what an export cannot hold."""

from __future__ import annotations

from fusewire.backends.torch.lowering import CONTROL
from fusewire.backends.torch.refusal import refuses as refuses_eager
from fusewire.dtypes import DType, string
from fusewire.ir.graph import Node
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op

# Their functions read values while they run: an exported graph has none yet.
_READS_VALUES = {
    "dynamic_update_slice": "where it writes",
    "boolean_mask": "how many elements are kept",
}
# For complex numbers it calls what is not in the library that it makes.
_REAL = ("equal", "not_equal", "where")
_NARROW = "Inductor is given no floats of 8 bits or fewer and no integers under 8 bits."


def refuses(node: Node) -> str | None:
    """Say why a node is not taken; None for one that is."""
    reason = refuses_eager(node)
    if reason is not None:
        return reason
    if node.op in CONTROL:
        return f"Inductor is given graphs without control flow, and {node.op} is."
    if get_op(node.op).is_(Trait.UNBACKED) or node.op in _READS_VALUES:
        told = _READS_VALUES.get(node.op, "a size")
        return f"Only the run of {node.op} tells {told}, and Inductor compiles before it."
    if node.op == "scatter_nd" and node.attrs["reduction"] not in ("set", "add"):
        return "scatter_nd here checks its indices while it runs, and Inductor compiles before it."
    values = (*node.operands, *node.outputs)
    if any(_is_narrow(v.tensor.dtype) for v in values if isinstance(v.type, TensorType)):
        return _NARROW
    if node.op in _REAL and any(v.tensor.dtype.is_complex for v in node.operands):
        return f"Inductor has no kernel for {node.op} of complex numbers."
    if node.op == "concat" and node.operands[0].tensor.dtype.is_complex and _is_copy(node):
        return "Inductor has no kernel that copies complex numbers, and concat would be a copy."
    if any(True for v in values for _ in type_symbols(v.type)):
        return (
            "Inductor compiles for known sizes only, half a minute for each, and sizes here are "
            "open."
        )
    return None


def _is_copy(concat: Node) -> bool:
    """Tell whether one operand is left once Inductor has dropped the lists of nothing (2.13)."""
    return sum(value.tensor.shape != (0,) for value in concat.operands) < 2


def _is_narrow(of: DType) -> bool:
    return of is not string and of.is_narrow
