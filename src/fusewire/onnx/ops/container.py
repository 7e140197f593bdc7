"""Sequences and optionals, which ONNX has as we do. Only the reference runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import DType, float32
from fusewire.errors import FormatError, SizesNeededError, TypeRuleError
from fusewire.ir.builder import constant
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type, tensor_of
from fusewire.onnx.elements import DTYPES, element_of
from fusewire.onnx.ops.control import controlled
from fusewire.onnx.ops.reading import scalar
from fusewire.onnx.ops.writing import attrs_of, holding, indices
from fusewire.onnx.types import UNKNOWN, any_size, is_unknown, type_of
from fusewire.ops import container, control
from fusewire.ops.declare import Op
from fusewire.ops.subgraph import FLAG, INDEX, alike, result_types

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


def _empty(of: DType) -> Value:
    return container.sequence_empty.new(element=TensorType(of, (UNKNOWN,)))


def _write_sequence_empty(e: Emitter, node: Node) -> list[Ref]:
    """Hold nothing yet."""
    of = tensor_of(node.types[0]).dtype
    return e.raw("SequenceEmpty", [], [of], {"dtype": element_of(of)})


def _held(op: Op[Any], operands: Sequence[Value | None], **attrs: Any) -> Value:
    """Make a node; sizes that only the run can tell get names."""
    types = [None if v is None else v.type for v in operands]
    if any(t is not None and is_unknown(t) for t in types):
        raise SizesNeededError("a sequence is used in which nothing was put before it.")
    try:
        return op.make(operands, attrs).outputs[0]
    except TypeRuleError:
        attrs["types"] = result_types(op, types, **attrs)
        return op.make(operands, attrs).outputs[0]


def _read_sequence_insert(call: OnnxCall) -> Converted:
    held, x, place = call[0], call[1], scalar(call.get(2))
    # What a loop carries may be declared with another rank: it is empty, and the loop checks that.
    is_carried = held.node is None and call.scope.outer is not None
    if is_unknown(held.type) or (is_carried and not alike(held.type, SequenceType(x.type))):
        held = container.sequence_empty.new(element=any_size(x.type))
    return _held(container.sequence_insert, [held, x, place])


def _read_split_to_sequence(call: OnnxCall) -> Converted:
    keepdims = call.flag("keepdims", 1)
    return _held(
        container.split_to_sequence,
        [call[0], call.get(1)],
        axis=call.attr("axis", 0),
        keepdims=keepdims,
    )


def _write_split_to_sequence(e: Emitter, node: Node, x: Ref, sizes: Ref | None) -> list[Ref]:
    """Split into a sequence; sizes make the axis stay."""
    attrs = attrs_of(node)
    sizes = None if sizes is None else indices(e, sizes)
    given = {"axis": attrs["axis"], "keepdims": int(attrs["keepdims"])}
    return e.raw("SplitToSequence", [x, sizes], [x.dtype], given)


def _read_concat_from_sequence(call: OnnxCall) -> Converted:
    return _held(
        container.concat_from_sequence,
        [call[0]],
        axis=call.needed("axis"),
        new_axis=call.flag("new_axis"),
    )


def _read_sequence_map(call: OnnxCall) -> Converted:
    """Run the body on the elements at each place, and collect what it gives."""
    proto, inner = call.needed("body"), call.scope.inner()
    place, going = Value(INDEX, "place"), Value(FLAG, "going")
    taken = [
        _held(container.sequence_at, [v, place]) if isinstance(v.type, SequenceType) else v
        for v in call.rest
    ]
    taken = call.importer.settle(taken, inner, call.label)
    if len(proto.input) != len(taken):
        raise FormatError(f"the body takes {len(proto.input)} values and is given {len(taken)}.")
    for info, value in zip(proto.input, taken, strict=True):
        inner.values[info.name] = value
    made = call.importer.run(proto, inner)
    starts = [container.sequence_empty.new(element=any_size(v.type)) for v in made]
    carried = [Value(v.type, f"held{i}") for i, v in enumerate(starts)]
    added = [
        _held(container.sequence_insert, [held, v]) for held, v in zip(carried, made, strict=True)
    ]
    added = call.importer.settle(added, inner, call.label)
    body = call.importer.collected("map", [place, going, *carried], [going, *added], inner)
    trips = container.sequence_length(call[0])
    return controlled(
        call, control.loop, [trips, None], starts, {"body": body}, carries=len(starts)
    )


def _read_optional(call: OnnxCall) -> Converted:
    held = call.get(0)
    if held is not None:
        return container.optional_of(held)
    return container.optional_empty.new(element=_declared(call.needed("type")))


def _declared(proto: Any) -> Type:
    """Read the type of what an optional might have held, whose rank files leave out."""
    try:
        return type_of(proto, None)
    except SizesNeededError:
        return TensorType(DTYPES[proto.tensor_type.elem_type], (UNKNOWN,))


def _write_optional_empty(e: Emitter, node: Node) -> list[Ref]:
    """Hold no value."""
    element = attrs_of(node)["element"]
    return e.raw("Optional", [], [tensor_of(element).dtype], {"type": element})


def _read_optional_has(call: OnnxCall) -> Converted:
    held = call.get(0)
    if held is None or not isinstance(held.type, OptionalType):
        return constant(np.array(held is not None))
    return container.optional_has(held)


def _read_optional_get(call: OnnxCall) -> Converted:
    held = call[0]
    return container.optional_get(held) if isinstance(held.type, OptionalType) else held


READERS: Mapping[str, Read] = {
    "SequenceConstruct": lambda call: _held(container.sequence_construct, call.rest),
    "SequenceEmpty": lambda call: _empty(call.dtype("dtype", float32)),
    "SequenceAt": lambda call: _held(container.sequence_at, [call[0], scalar(call[1])]),
    "SequenceInsert": _read_sequence_insert,
    "SequenceErase": lambda call: container.sequence_erase(call[0], scalar(call.get(1))),
    "SequenceLength": lambda call: container.sequence_length(call[0]),
    "SequenceMap": _read_sequence_map,
    "SplitToSequence": _read_split_to_sequence,
    "ConcatFromSequence": _read_concat_from_sequence,
    "Optional": _read_optional,
    "OptionalHasElement": _read_optional_has,
    "OptionalGetElement": _read_optional_get,
}


WRITERS: Mapping[str, Write] = {
    "sequence_construct": holding("SequenceConstruct"),
    "sequence_empty": _write_sequence_empty,
    "sequence_at": holding("SequenceAt"),
    "sequence_insert": holding("SequenceInsert"),
    "sequence_erase": holding("SequenceErase"),
    "sequence_length": holding("SequenceLength"),
    "concat_from_sequence": holding("ConcatFromSequence", axis="axis", new_axis="new_axis"),
    "split_to_sequence": _write_split_to_sequence,
    "optional_of": holding("Optional"),
    "optional_empty": _write_optional_empty,
    "optional_has": holding("OptionalHasElement"),
    "optional_get": holding("OptionalGetElement"),
}
