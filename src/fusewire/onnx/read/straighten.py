"""Repair models that break rules which engines do not enforce, then run ONNX's own checker.

ONNX Runtime takes all that is bent here. What the checker still finds is refused: it could mean two
things, or no engine would take it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

from fusewire.errors import FormatError

_DATA = (
    "raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data",
    "uint64_data", "external_data", "data_location", "dims",
)  # fmt: skip
# From here on the checker looks at functions, and lets initializers be no inputs.
_RULES = 8
_FLOAT = 1
# Its first version was withdrawn in favour of that of opset 21; engines go on running it.
_WITHDRAWN, _ELSEWHERE = "GroupNormalization", "withdrawn"


def straighten(proto: Any) -> None:
    """Make a model easier to read without changing what it means."""
    if not proto.opset_import and proto.ir_version < 3:
        proto.opset_import.add(domain="", version=1)
    for holder in bodies(proto):
        for node in holder.node:
            if node.domain == "ai.onnx":
                node.domain = ""
    for holder in (proto, *proto.functions):
        for opset in holder.opset_import:
            if opset.domain == "ai.onnx":
                opset.domain = ""
    proto.graph.name = proto.graph.name or "main"
    _drop_repeated(proto.graph)
    _sort(proto.graph)


def check(proto: Any) -> None:
    """Have ONNX's checker look at a straightened model, without its elements."""
    from onnx import checker

    copy = _without_weights(proto)
    _strip(copy)
    try:
        checker.check_model(copy.SerializeToString(), skip_opset_compatibility_check=True)
    except (checker.ValidationError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise FormatError(
            f"ONNX's checker refuses the model: {said[:400]} Export it again, or fix it."
        ) from None


def _without_weights(proto: Any) -> Any:
    """Copy a model; its initializers lose their elements, which would take long to copy."""
    copy = type(proto)()
    _copy_fields(proto, copy, ("graph",))
    _copy_fields(proto.graph, copy.graph, ("initializer",))
    for tensor in proto.graph.initializer:
        copy.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return copy


def _copy_fields(message: Any, copy: Any, left_out: tuple[str, ...]) -> None:
    for field, held in message.ListFields():
        if field.name in left_out:
            continue
        if hasattr(held, "CopyFrom"):
            getattr(copy, field.name).CopyFrom(held)
        elif hasattr(held, "extend"):
            getattr(copy, field.name).extend(held)
        else:
            setattr(copy, field.name, held)


def bodies(proto: Any) -> Iterator[Any]:
    """Yield every graph and every function."""
    stack = [proto.graph, *proto.functions]
    for training in proto.training_info:
        stack += [training.initialization, training.algorithm]
    while stack:
        holder = stack.pop()
        yield holder
        for node in holder.node:
            for attribute in node.attribute:
                stack += _graphs(attribute)


def _graphs(attribute: Any) -> list[Any]:
    return [attribute.g, *attribute.graphs] if attribute.HasField("g") else [*attribute.graphs]


def _drop_repeated(graph: Any) -> None:
    """Keep one of initializers that are the same; those that differ are left to the checker."""
    times = Counter(tensor.name for tensor in graph.initializer)
    if len(times) == len(graph.initializer):
        return
    seen: set[bytes] = set()
    for place in reversed(range(len(graph.initializer))):
        tensor = graph.initializer[place]
        if times[tensor.name] > 1:
            written = tensor.SerializeToString()
            if written in seen:
                del graph.initializer[place]
            seen.add(written)


def _sort(graph: Any) -> None:
    """Put the nodes of the main graph in an order in which they can run."""
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    needs = {
        place: {makers[name] for name in names_used(node) if name in makers}
        for place, node in enumerate(graph.node)
    }
    if all(max(found, default=-1) < place for place, found in needs.items()):
        return
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        ring = " -> ".join(graph.node[place].op_type[:40] for place in error.args[1][:6])
        raise FormatError(f"Nodes of the model need each other in a ring: {ring}.") from None
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes[place] for place in order)


def names_used(node: Any) -> Iterator[str]:
    """Yield the names that a node uses, and those that graphs inside it may use from around."""
    yield from node.input
    stack = [graph for attribute in node.attribute for graph in _graphs(attribute)]
    while stack:
        graph = stack.pop()
        yield from (info.name for info in graph.output)
        for inner in graph.node:
            yield from inner.input
            stack += [found for attribute in inner.attribute for found in _graphs(attribute)]


def _strip(copy: Any) -> None:
    """Leave what the checker is for: elements are checked, and bends that do no harm are gone."""
    copy.ir_version = max(copy.ir_version, _RULES)
    for field in ("metadata_props", "training_info"):
        copy.ClearField(field)
    for info in (*copy.graph.input, *copy.graph.output):
        _declare(info)
    for function in copy.functions:
        function.domain = function.domain or ""
    for holder in (copy, *copy.functions):
        holder.opset_import.add(domain=_ELSEWHERE, version=1)
    for holder in bodies(copy):
        if holder.DESCRIPTOR.name == "GraphProto":
            _empty(*holder.initializer)
            _empty_sparse(*holder.sparse_initializer)
        for node in holder.node:
            if node.op_type == _WITHDRAWN and not node.domain:
                node.domain = _ELSEWHERE
            for attribute in node.attribute:
                _empty(*attribute.tensors)
                _empty_sparse(*attribute.sparse_tensors)
                if attribute.HasField("t"):
                    _empty(attribute.t)
                if attribute.HasField("sparse_tensor"):
                    _empty_sparse(attribute.sparse_tensor)


def _empty(*tensors: Any) -> None:
    for tensor in tensors:
        for field in _DATA:
            tensor.ClearField(field)
        tensor.dims.append(0)


def _empty_sparse(*tensors: Any) -> None:
    for tensor in tensors:
        _empty(tensor.values)
        tensor.ClearField("indices")


def _declare(info: Any) -> None:
    """Give a type to an input or output that leaves it, or part of it, to be found out."""
    kind = info.type.WhichOneof("value") or "tensor_type"
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(info.type, kind)
        tensor.elem_type = tensor.elem_type or _FLOAT
        tensor.shape.SetInParent()
