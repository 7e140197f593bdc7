"""The file that was read and checked, as an engine may get it: what the graph needs, and no more.

Every message is made anew from the fields that decide what the model computes. What is left out
cannot have an effect: metadata (an engine may take settings from it), documentation, training,
annotations, declared types of inner values (which may lie), nodes that no output needs, defaults of
inputs. Weights and external data are handed over as arrays, under their digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, final

from fusewire import dtypes
from fusewire.contract.model_file import FileFormat, ModelFile
from fusewire.ir.graph import Constant, Graph
from fusewire.ir.types import TensorType
from fusewire.onnx.notes import DOMAIN
from fusewire.onnx.read.model_file import Opened
from fusewire.onnx.read.straighten import names_used
from fusewire.onnx.read.survey import DOMAINS, STANDARD
from fusewire.onnx.read.tensors import EXTERNAL
from fusewire.onnx.tensor_protos import external_tensor, inline_tensor, is_weight

# Smaller tensors stay in the model.
WEIGHT_BYTES = 1024
# Fields that decide what a node computes; graphs and tensors in its attributes are cleaned.
_NODE = ("op_type", "domain", "overload", "name", "input", "output")
_ATTRIBUTE = ("name", "type", "ref_attr_name", "f", "i", "s", "floats", "ints", "strings")


@final
class CheckedFile(ModelFile):
    """A file of ONNX; its payload is made when it is first asked for."""

    def __init__(self, opened: Opened, graph: Graph) -> None:
        self._opened: Opened | None = opened
        self._graph = graph

    @property
    def format(self) -> FileFormat:
        return "onnx"

    @cached_property
    def digest(self) -> str:
        assert self._opened is not None, "asked for before the payload"
        return self._opened.digest

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def payload(self) -> bytes:
        return self._content[0]

    @property
    def weights(self) -> Mapping[str, Constant]:
        return self._content[1]

    @cached_property
    def _content(self) -> tuple[bytes, Mapping[str, Constant]]:
        _ = self.digest
        assert self._opened is not None, "made once"
        cleaner = _Cleaner(self._opened)
        payload = cleaner.model().SerializeToString(deterministic=True)
        # It holds all elements of the file a second time.
        self._opened = None
        return payload, cleaner.weights


def checked_file(opened: Opened, graph: Graph, hazards: Sequence[str]) -> ModelFile | None:
    """Return the file for engines that read it; None if the graph is safer or means another thing.

    ``hazards`` are what only our own writing of the graph makes safe.
    """
    proto = opened.proto
    # Engines have operators of these names, too, and we take functions of our own for ops.
    domains = (*STANDARD, *DOMAINS, DOMAIN)
    overrides = any(f.domain in domains for f in proto.functions)
    values = [*graph.inputs, *graph.outputs]
    are_tensors = all(
        isinstance(v.type, TensorType) and v.type.dtype is not dtypes.string for v in values
    )
    is_plain = are_tensors and len(set(graph.output_names)) == len(graph.outputs)
    return None if hazards or overrides or not is_plain else CheckedFile(opened, graph)


class _Cleaner:
    """Makes the messages of a model anew; ``weights`` has what is left out of them."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self.weights: dict[str, Constant] = {}

    def model(self) -> Any:
        """Make the model."""
        from onnx import ModelProto

        given, model = self._opened.proto, ModelProto()
        model.ir_version = given.ir_version
        _add_opsets(model, given)
        self._fill_graph(model.graph, given.graph, is_main=True)
        called = _called(given, model.graph.node)
        for function in given.functions:
            if (function.domain, function.name, function.overload) in called:
                self._fill_function(model.functions.add(), function)
        return model

    def _fill_graph(self, graph: Any, given: Any, *, is_main: bool = False) -> None:
        graph.name = given.name
        held = {tensor.name for tensor in given.initializer}
        held |= {sparse.values.name for sparse in given.sparse_initializer}
        for info in given.input:
            if info.name not in held:
                # The main graph gets the types of the region, which are checked.
                graph.input.add(name=info.name, type=_bare_type(info.type))
        for info in given.output:
            graph.output.add(name=info.name, type=_bare_type(info.type))
        nodes, used = _needed(given.node, [info.name for info in given.output])
        for node in nodes:
            self._fill_node(graph.node.add(), node)
        for tensor in given.initializer:
            if tensor.name in used:
                graph.initializer.append(self._initializer(tensor, is_main=is_main))
        for sparse in given.sparse_initializer:
            if sparse.values.name in used:
                constant = self._opened.sparse(sparse)
                graph.initializer.append(inline_tensor(sparse.values.name, constant))

    def _fill_function(self, function: Any, given: Any) -> None:
        for name in ("name", "domain", "overload"):
            setattr(function, name, getattr(given, name))
        for name in ("input", "output", "attribute"):
            getattr(function, name).extend(getattr(given, name))
        _add_opsets(function, given)
        for attribute in given.attribute_proto:
            self._fill_attribute(function.attribute_proto.add(), attribute)
        for node in _needed(given.node, given.output)[0]:
            self._fill_node(function.node.add(), node)

    def _fill_node(self, node: Any, given: Any) -> None:
        _copy_fields(node, given, _NODE)
        for attribute in given.attribute:
            self._fill_attribute(node.attribute.add(), attribute)

    def _fill_attribute(self, attribute: Any, given: Any) -> None:
        _copy_fields(attribute, given, _ATTRIBUTE)
        if given.HasField("t"):
            attribute.t.CopyFrom(self._inner_tensor(given.t))
        if given.HasField("g"):
            self._fill_graph(attribute.g, given.g)
        if given.HasField("tp"):
            attribute.tp.CopyFrom(given.tp)
        if given.HasField("sparse_tensor"):
            self._fill_sparse(attribute.sparse_tensor, given.sparse_tensor)
        attribute.tensors.extend(map(self._inner_tensor, given.tensors))
        attribute.type_protos.extend(given.type_protos)
        for graph in given.graphs:
            self._fill_graph(attribute.graphs.add(), graph)
        for sparse in given.sparse_tensors:
            self._fill_sparse(attribute.sparse_tensors.add(), sparse)

    def _fill_sparse(self, sparse: Any, given: Any) -> None:
        sparse.values.CopyFrom(self._inner_tensor(given.values))
        sparse.indices.CopyFrom(self._inner_tensor(given.indices))
        sparse.dims.extend(given.dims)

    def _initializer(self, tensor: Any, *, is_main: bool) -> Any:
        """Leave out a large tensor; its elements are handed over under their digest."""
        if not is_main:
            return self._inner_tensor(tensor)
        constant = self._opened.initializers[tensor.name]
        if not is_weight(constant, WEIGHT_BYTES):
            return self._inner_tensor(tensor)
        self.weights[constant.digest] = constant
        return external_tensor(tensor.name, constant)

    def _inner_tensor(self, tensor: Any) -> Any:
        """Copy a tensor without what it says about itself; external elements are inside."""
        if tensor.data_location == EXTERNAL:
            return inline_tensor(tensor.name, self._opened.constant(tensor))
        made = type(tensor)()
        made.CopyFrom(tensor)
        for name in ("doc_string", "external_data", "data_location", "metadata_props", "segment"):
            made.ClearField(name)
        return made


def _copy_fields(message: Any, given: Any, names: Iterable[str]) -> None:
    for field, value in given.ListFields():
        if field.name not in names:
            continue
        if isinstance(value, str | bytes | int | float):
            setattr(message, field.name, value)
        else:
            getattr(message, field.name).extend(value)


def _add_opsets(message: Any, given: Any) -> None:
    for opset in given.opset_import:
        message.opset_import.add(domain=opset.domain, version=opset.version)


def _bare_type(type_: Any) -> Any:
    """Copy a type without shapes and denotations."""
    made = type(type_)()
    kind = type_.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        getattr(made, kind).elem_type = getattr(type_, kind).elem_type
    elif kind in ("sequence_type", "optional_type"):
        inner = _bare_type(getattr(type_, kind).elem_type)
        getattr(made, kind).elem_type.CopyFrom(inner)
    return made


def _needed(nodes: Sequence[Any], outputs: Iterable[str]) -> tuple[list[Any], set[str]]:
    """List the nodes that outputs need, in order, and all names that are used."""
    used, kept = set(outputs), []
    for node in reversed(nodes):
        if used.intersection(filter(None, node.output)):
            used.update(names_used(node))
            kept.append(node)
    return kept[::-1], used


def _called(model: Any, nodes: Sequence[Any]) -> set[tuple[str, str, str]]:
    """Name the functions that nodes call, also inside of other functions."""
    bodies = {(f.domain, f.name, f.overload): f.node for f in model.functions}
    called: set[tuple[str, str, str]] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        key = node.domain, node.op_type, node.overload
        if key in bodies and key not in called:
            called.add(key)
            stack.extend(bodies[key])
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                stack.extend(graph.node)
    return called
