"""Types as ONNX models say them, read and written. Dtypes by their numbers are in ``elements``."""

from __future__ import annotations

from typing import Any

from fusewire.errors import FormatError, SizesNeededError
from fusewire.ir.dims import Dim, symbol, unbacked
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type, tensor_of
from fusewire.onnx.elements import DTYPES, element_of
from fusewire.ops.subgraph import dims_of, with_shape

# A sequence that starts without elements has no rank in ONNX: the first element gives it one.
UNKNOWN = unbacked("unknown")


def is_unknown(type_: Type) -> bool:
    """Tell whether a type is that of a sequence in which nothing was put yet."""
    return isinstance(type_, SequenceType) and tensor_of(type_).shape == (UNKNOWN,)


def any_size(type_: Type) -> Type:
    """Give the type of elements of which only numbers among the sizes are shared."""
    dims = [dim if isinstance(dim, int) else unbacked() for dim in dims_of(type_)]
    return with_shape(type_, tuple(dims))


def input_type(info: Any) -> Type:
    """Give the type of an input as the file says it; sizes it does not name get names."""
    return type_of(info.type, info.name)


def type_of(proto: Any, name: str | None) -> Type:
    """Read a TypeProto; sizes without a name are called after ``name``, or are unbacked."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return SequenceType(type_of(proto.sequence_type.elem_type, None))
    if kind == "optional_type":
        return OptionalType(type_of(proto.optional_type.elem_type, None))
    if kind != "tensor_type":
        raise FormatError(f"{name!r} is a {kind or 'value of no type'}: tensors can be read.")
    tensor = proto.tensor_type
    if tensor.elem_type not in DTYPES:
        raise FormatError(
            f"{name!r} has elements of type {tensor.elem_type}, which is not a dtype."
        )
    if not tensor.HasField("shape"):
        raise SizesNeededError(
            f"{name!r} has no shape in the file, so that not even its rank is known. "
            "Give an example array or a Spec for it."
        )
    dims = [_dim(dim, name, axis) for axis, dim in enumerate(tensor.shape.dim)]
    return TensorType(DTYPES[tensor.elem_type], tuple(dims))


def _dim(dim: Any, name: str | None, axis: int) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    if name is None:
        return unbacked()
    # "?" and "-1" name nothing: files give them to dims that differ.
    if dim.dim_param and any(c.isalpha() for c in dim.dim_param):
        return symbol(dim.dim_param)
    return symbol(f"{name}_{axis}")


def type_proto(type_: Type, has_symbols: bool) -> Any:
    """Say a type as ONNX does; dims without symbols stay open."""
    from onnx import helper

    if isinstance(type_, SequenceType):
        return helper.make_sequence_type_proto(type_proto(type_.element, False))
    if isinstance(type_, OptionalType):
        return helper.make_optional_type_proto(type_proto(type_.element, False))
    assert isinstance(type_, TensorType)
    named = str if has_symbols else lambda dim: None
    dims = [dim if isinstance(dim, int) else named(dim) for dim in type_.shape]
    return helper.make_tensor_type_proto(element_of(type_.dtype), dims)
