"""The messages of the Open Inference Protocol for gRPC, as a table of their fields.

Names and numbers are those of the protocol's public definition, version 2. The classes are made
from the table when the server starts, by whatever version of protobuf is installed, and in a pool
of their own: code generated from a ``.proto`` file is bound to the version that generated it, and
clients in the same process bring messages of the same names.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from fusewire.errors import RequestError

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# By message: number, name, type; "*" repeats, "map" has strings as keys, "|" is one of several.
MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ((1, "live", "bool"),),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ((1, "ready", "bool"),),
    "ModelReadyRequest": ((1, "name", "string"), (2, "version", "string")),
    "ModelReadyResponse": ((1, "ready", "bool"),),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (
        (1, "name", "string"),
        (2, "version", "string"),
        (3, "extensions", "string*"),
    ),
    "ModelMetadataRequest": ((1, "name", "string"), (2, "version", "string")),
    "ModelMetadataResponse": (
        (1, "name", "string"),
        (2, "versions", "string*"),
        (3, "platform", "string"),
        (4, "inputs", "ModelMetadataResponse.TensorMetadata*"),
        (5, "outputs", "ModelMetadataResponse.TensorMetadata*"),
    ),
    "ModelMetadataResponse.TensorMetadata": (
        (1, "name", "string"),
        (2, "datatype", "string"),
        (3, "shape", "int64*"),
    ),
    "InferParameter": (
        (1, "bool_param", "bool|parameter_choice"),
        (2, "int64_param", "int64|parameter_choice"),
        (3, "string_param", "string|parameter_choice"),
    ),
    "InferTensorContents": (
        (1, "bool_contents", "bool*"),
        (2, "int_contents", "int32*"),
        (3, "int64_contents", "int64*"),
        (4, "uint_contents", "uint32*"),
        (5, "uint64_contents", "uint64*"),
        (6, "fp32_contents", "float*"),
        (7, "fp64_contents", "double*"),
        (8, "bytes_contents", "bytes*"),
    ),
    "ModelInferRequest": (
        (1, "model_name", "string"),
        (2, "model_version", "string"),
        (3, "id", "string"),
        (4, "parameters", "map InferParameter"),
        (5, "inputs", "ModelInferRequest.InferInputTensor*"),
        (6, "outputs", "ModelInferRequest.InferRequestedOutputTensor*"),
        (7, "raw_input_contents", "bytes*"),
    ),
    "ModelInferRequest.InferInputTensor": (
        (1, "name", "string"),
        (2, "datatype", "string"),
        (3, "shape", "int64*"),
        (4, "parameters", "map InferParameter"),
        (5, "contents", "InferTensorContents"),
    ),
    "ModelInferRequest.InferRequestedOutputTensor": (
        (1, "name", "string"),
        (2, "parameters", "map InferParameter"),
    ),
    "ModelInferResponse": (
        (1, "model_name", "string"),
        (2, "model_version", "string"),
        (3, "id", "string"),
        (4, "parameters", "map InferParameter"),
        (5, "outputs", "ModelInferResponse.InferOutputTensor*"),
        (6, "raw_output_contents", "bytes*"),
    ),
    "ModelInferResponse.InferOutputTensor": (
        (1, "name", "string"),
        (2, "datatype", "string"),
        (3, "shape", "int64*"),
        (4, "parameters", "map InferParameter"),
        (5, "contents", "InferTensorContents"),
    ),
}
# By method: its request and its response.
METHODS = {
    name: (f"{name}Request", f"{name}Response")
    for name in (
        "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
    )
}  # fmt: skip


@cache
def messages() -> SimpleNamespace:
    """Make the classes of all messages, by name."""
    # protobuf ships no types.
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(
        name="fusewire/open_inference.proto", package=PACKAGE, syntax="proto3"
    )
    described: dict[str, Any] = {}
    # Inner messages come after those around them.
    for name in sorted(MESSAGES, key=lambda name: name.count(".")):
        outer, _, own = name.rpartition(".")
        place = described[outer].nested_type if outer else file.message_type
        described[name] = place.add(name=own or name)
    for name, fields in MESSAGES.items():
        for number, field, kind in fields:
            _add_field(described[name], name, number, field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClassesForFiles([file.name], pool)
    # Inner messages are attributes of those around them.
    whole = [name for name in MESSAGES if "." not in name]
    return SimpleNamespace(**{name: made[f"{PACKAGE}.{name}"] for name in whole})


def parse(kind: Any, raw: bytes) -> Any:
    """Read a message; RequestError if the bytes are none."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return kind.FromString(raw)
    except DecodeError:
        raise RequestError(f"The message is not a {kind.DESCRIPTOR.name}.") from None


def _add_field(message: Any, around: str, number: int, name: str, kind: str) -> None:
    kind, _, choice = kind.partition("|")
    is_map, is_repeated = kind.startswith("map "), kind.endswith("*")
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if is_repeated or is_map else field.LABEL_OPTIONAL
    if choice:
        if not message.oneof_decl:
            message.oneof_decl.add(name=choice)
        field.oneof_index = 0
    if is_map:
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, around, 1, "key", "string")
        _add_field(entry, around, 2, "value", kind.removeprefix("map "))
        kind = f"{around}.{entry.name}"
    _set_type(field, kind.rstrip("*"))


def _set_type(field: Any, kind: str) -> None:
    plain = getattr(field, f"TYPE_{kind.upper()}", None)
    if plain is None:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = plain
