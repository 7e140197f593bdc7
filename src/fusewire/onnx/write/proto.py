"""Make a ModelProto from emitted nodes. The only file of the writer that imports onnx."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from fusewire.ir.graph import Constant
from fusewire.ir.types import OptionalType, SequenceType, TensorType
from fusewire.onnx.notes import DOMAIN, PRODUCER, VERSION, body_digest
from fusewire.onnx.tensor_protos import external_tensor, inline_tensor
from fusewire.onnx.types import type_proto
from fusewire.onnx.write.model import LocalFunction, OnnxAttr, OnnxBody, OnnxStep, Port


def model_proto(
    body: OnnxBody,
    constants: Mapping[str, Constant],
    opset: int,
    outside: Container[str] = (),
    functions: Mapping[str, LocalFunction] | None = None,
) -> Any:
    """Build the model; constants whose digests are in ``outside`` are left out of it.

    What is left out is an external tensor whose location is the digest: whoever loads the model
    hands it over.
    """
    from onnx import ModelProto, helper

    model = ModelProto(producer_name=PRODUCER, producer_version=version("fusewire"))
    versions = [helper.make_opsetid("", opset)]
    domains = {step.op.rpartition(":")[0] for step in _walk(body.steps)} - {""}
    versions += [helper.make_opsetid(domain, VERSION) for domain in sorted(domains)]
    model.ir_version = helper.find_min_ir_version_for(versions[:1])
    model.opset_import.extend(versions)
    for name, function in (functions or {}).items():
        _fill_function(model.functions.add(name=name, domain=DOMAIN), function, versions[:1])
    _fill(model.graph, body)
    for name, constant in constants.items():
        is_outside = constant.digest in outside
        tensor = external_tensor(name, constant) if is_outside else inline_tensor(name, constant)
        model.graph.initializer.append(tensor)
    return model


def parsed(data: bytes) -> Any:
    """Read a model that we had made; what strangers made is read by ``reading``."""
    from onnx import ModelProto

    return ModelProto.FromString(data)


def _walk(steps: Iterable[OnnxStep]) -> Iterable[OnnxStep]:
    for step in steps:
        yield step
        for attr in step.attrs.values():
            if isinstance(attr, OnnxBody):
                yield from _walk(attr.steps)


def _fill(graph: Any, body: OnnxBody) -> None:
    graph.name = body.name
    graph.input.extend(_value_info(port) for port in body.inputs)
    graph.output.extend(_value_info(port) for port in body.outputs)
    _add_nodes(graph, body.steps)


def _fill_function(proto: Any, function: LocalFunction, versions: Iterable[Any]) -> None:
    """Write a body, and in the metadata what it stands for and that it was not changed since."""
    proto.opset_import.extend(versions)
    proto.input.extend(function.inputs)
    proto.output.extend(function.outputs)
    for name, constant in function.constants.items():
        value = _attribute("value", inline_tensor("", constant))
        proto.node.add(op_type="Constant", output=[name], name=name, attribute=[value])
    _add_nodes(proto, function.steps)
    written = {f"attr.{key}": text for key, text in function.attrs.items()}
    for key, text in {"op": function.op, **written, "body": body_digest(proto)}.items():
        proto.metadata_props.add(key=key, value=text)


def _add_nodes(graph: Any, steps: Iterable[OnnxStep]) -> None:
    for step in steps:
        domain, _, op = step.op.rpartition(":")
        name = step.name or step.outputs[0]
        node = graph.node.add(
            op_type=op, domain=domain, input=step.inputs, output=step.outputs, name=name
        )
        for key, attr in step.attrs.items():
            node.attribute.append(_attribute(key, attr))


def _attribute(key: str, attr: OnnxAttr) -> Any:
    from onnx import AttributeProto, helper

    if isinstance(attr, OnnxBody):
        found = AttributeProto(name=key, type=AttributeProto.GRAPH)
        _fill(found.g, attr)
        return found
    if isinstance(attr, TensorType | SequenceType | OptionalType):
        return helper.make_attribute(key, type_proto(attr, False))
    if isinstance(attr, list | tuple) and not attr:
        return helper.make_attribute(key, attr, attr_type=AttributeProto.INTS)
    found = helper.make_attribute(key, attr)
    if isinstance(attr, float) and found.f != attr:
        # ONNX keeps float32; the digits that are lost are told to whoever wants them.
        found.doc_string = repr(attr)
    return found


def _value_info(port: Port) -> Any:
    from onnx import ValueInfoProto

    return ValueInfoProto(name=port.name, type=type_proto(port.type, port.has_symbols))
