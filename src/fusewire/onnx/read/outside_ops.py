"""Nodes of custom domains that a package outside the tree declares an op for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.onnx.read.call import Converted, OnnxCall
from fusewire.ops.declare import Op
from fusewire.ops.operand import annotation_text

# What a file may hold for an attribute, by its annotation in the type rule.
_KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (int,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
}


def read_outside(call: OnnxCall, op: Op[Any]) -> Converted:
    """Make the op of a node: operands in order, attributes by name; absent ones have defaults."""
    declared = op.parameters[2]
    if unknown := sorted(call.attrs.keys() - declared.keys()):
        known = ", ".join(sorted(declared)) or "none"
        call.refuse(f"{op.name} has no attribute {', '.join(unknown)}. It has {known}.")
    attrs = {name: _attribute(call, op, name) for name in call.attrs}
    call.importer.hazards.append(f"{call.op} is of a domain that engines do not know")
    return op.make(call.inputs, attrs).outputs


def _attribute(call: OnnxCall, op: Op[Any], name: str) -> Any:
    found = call.attr(name)
    annotation = annotation_text(op.signature.parameters[name].annotation)
    if "DType" in annotation:
        return call.dtype(name)
    kinds = _KINDS.get(annotation.partition(" |")[0])
    if kinds is not None and not isinstance(found, kinds):
        call.refuse(
            f"the attribute {name} of {op.name} is {annotation}, found {found!r}. Write it as that."
        )
    return bool(found) if annotation == "bool" else found
