"""Bodies of standard ops that ONNX itself defines by other ops."""

from __future__ import annotations

from typing import Any

from fusewire.errors import FormatError
from fusewire.formats.onnx.elements import element_of
from fusewire.frontends.onnx.call import Call
from fusewire.ir.types import OptionalType, TensorType, Type


def standard_function(call: Call, domain: str) -> Any:
    """Give the FunctionProto of an op for these operands, or None when ONNX has none."""
    import onnx

    try:
        schema = onnx.defs.get_schema(call.op, call.opset, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    types = [_type_proto(v.type).SerializeToString() if v is not None else b"" for v in call.inputs]
    held = schema.get_context_dependent_function(call.node.SerializeToString(), types)
    function = onnx.FunctionProto()
    function.ParseFromString(held)
    return function if function.node else None


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
