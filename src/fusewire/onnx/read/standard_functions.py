"""Bodies of standard ops that ONNX itself defines by other ops."""

from __future__ import annotations

from typing import Any

from fusewire.onnx.read.call import OnnxCall
from fusewire.onnx.types import type_proto


def standard_function(call: OnnxCall, domain: str) -> Any:
    """Give the FunctionProto of an op for these operands, or None when ONNX has none."""
    import onnx

    try:
        schema = onnx.defs.get_schema(call.op, call.opset, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return _with_defaults(schema.function_body, schema)
    if not schema.has_context_dependent_function:
        return None
    types = [
        type_proto(v.type, False).SerializeToString() if v is not None else b"" for v in call.inputs
    ]
    held = schema.get_context_dependent_function(_spelled_out(call).SerializeToString(), types)
    function = onnx.FunctionProto()
    function.ParseFromString(held)
    return _with_defaults(function, schema) if function.node else None


def _with_defaults(function: Any, schema: Any) -> Any:
    """Write into a function what its attributes are when a call does not say."""
    for name in function.attribute:
        default = schema.attributes[name].default_value
        if default.name:
            function.attribute_proto.append(default)
    return function


def _spelled_out(call: OnnxCall) -> Any:
    """Give the node with the values of attributes that it takes from a function around it."""
    import onnx

    taken = [a.name for a in call.node.attribute if a.ref_attr_name]
    if not taken:
        return call.node
    node = type(call.node)()
    node.CopyFrom(call.node)
    kept = [a for a in call.node.attribute if not a.ref_attr_name]
    given = [name for name in taken if name in call.attrs]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(onnx.helper.make_attribute(name, call.attrs[name]) for name in given)
    return node
