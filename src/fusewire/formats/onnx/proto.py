"""Make a ModelProto of what was emitted. The one place of the writer that imports onnx."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from fusewire.formats.onnx.elements import element_of
from fusewire.formats.onnx.model import Body, OnnxAttr, Port, Step
from fusewire.ir.graph import Constant
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type

PRODUCER = "fusewire"


def model_proto(
    body: Body,
    constants: Mapping[str, Constant],
    opset: int,
    outside: Container[str] = (),
) -> Any:
    """Build the model; constants whose digests are in ``outside`` are left out of it.

    What is left out is an external tensor whose location is the digest: whoever loads the model
    hands it over.
    """
    from onnx import ModelProto, helper

    model = ModelProto(producer_name=PRODUCER)
    versions = [helper.make_opsetid("", opset)]
    domains = {step.op.rpartition(":")[0] for step in _walk(body.steps)} - {""}
    versions += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
    model.ir_version = helper.find_min_ir_version_for(versions[:1])
    model.opset_import.extend(versions)
    _fill(model.graph, body)
    for name, constant in constants.items():
        is_outside = constant.digest in outside
        tensor = _external(name, constant) if is_outside else _inline(name, constant)
        model.graph.initializer.append(tensor)
    return model


def _external(name: str, constant: Constant) -> Any:
    """Describe a tensor whose elements are elsewhere, under their digest."""
    from onnx import TensorProto

    of = constant.type.dtype
    tensor = TensorProto(name=name, data_type=element_of(of), dims=constant.type.shape)
    tensor.data_location = TensorProto.EXTERNAL
    size = constant.type.size
    assert isinstance(size, int)
    for key, value in (("location", constant.digest), ("length", size * of.bits // 8)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _inline(name: str, constant: Constant) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(constant.array, name)


def _walk(steps: Iterable[Step]) -> Iterable[Step]:
    for step in steps:
        yield step
        for attr in step.attrs.values():
            if isinstance(attr, Body):
                yield from _walk(attr.steps)


def _fill(graph: Any, body: Body) -> None:
    graph.name = body.name
    graph.input.extend(_value_info(port) for port in body.inputs)
    graph.output.extend(_value_info(port) for port in body.outputs)
    for step in body.steps:
        domain, _, op = step.op.rpartition(":")
        node = graph.node.add(
            op_type=op, domain=domain, input=step.inputs, output=step.outputs, name=step.outputs[0]
        )
        for key, attr in step.attrs.items():
            node.attribute.append(_attribute(key, attr))


def _attribute(key: str, attr: OnnxAttr) -> Any:
    from onnx import AttributeProto, helper

    if isinstance(attr, Body):
        found = AttributeProto(name=key, type=AttributeProto.GRAPH)
        _fill(found.g, attr)
        return found
    if isinstance(attr, TensorType | SequenceType | OptionalType):
        return helper.make_attribute(key, _type_proto(attr, False))
    if isinstance(attr, list | tuple) and not attr:
        return helper.make_attribute(key, attr, attr_type=AttributeProto.INTS)
    return helper.make_attribute(key, attr)


def _value_info(port: Port) -> Any:
    from onnx import ValueInfoProto

    return ValueInfoProto(name=port.name, type=_type_proto(port.type, port.has_symbols))


def _type_proto(type_: Type, has_symbols: bool) -> Any:
    from onnx import helper

    if isinstance(type_, SequenceType):
        return helper.make_sequence_type_proto(_type_proto(type_.element, False))
    if isinstance(type_, OptionalType):
        return helper.make_optional_type_proto(_type_proto(type_.element, False))
    assert isinstance(type_, TensorType)
    named = str if has_symbols else lambda dim: None
    dims = [dim if isinstance(dim, int) else named(dim) for dim in type_.shape]
    return helper.make_tensor_type_proto(element_of(type_.dtype), dims)
