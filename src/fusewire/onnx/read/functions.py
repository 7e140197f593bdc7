"""Bodies of standard ops that ONNX itself defines by other ops."""

from __future__ import annotations

from typing import Any

from fusewire.errors import FormatError
from fusewire.ir.types import OptionalType, TensorType, Type
from fusewire.onnx.elements import element_of
from fusewire.onnx.read.call import Call


def standard_function(call: Call, domain: str) -> Any:
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
    types = [_type_proto(v.type).SerializeToString() if v is not None else b"" for v in call.inputs]
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


def _spelled_out(call: Call) -> Any:
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


def _type_proto(type_: Type) -> Any:
    import onnx

    if isinstance(type_, TensorType):
        dims = [dim if isinstance(dim, int) else None for dim in type_.shape]
        return onnx.helper.make_tensor_type_proto(element_of(type_.dtype), dims)
    inner = _type_proto(type_.element)
    if isinstance(type_, OptionalType):
        return onnx.helper.make_optional_type_proto(inner)
    if inner is None:
        raise FormatError(f"ONNX has no type for {type_}.")
    return onnx.helper.make_sequence_type_proto(inner)
