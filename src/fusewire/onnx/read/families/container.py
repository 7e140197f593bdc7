"""Sequences and optionals. The reference alone runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import DType, float32
from fusewire.errors import FormatError, SizesNeededError, TypeRuleError
from fusewire.ir.builder import constant
from fusewire.ir.graph import Value
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type
from fusewire.onnx.elements import DTYPES
from fusewire.onnx.ops.reading import scalar
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.onnx.read.families.control import controlled
from fusewire.onnx.types import UNKNOWN, any_size, is_unknown, type_of
from fusewire.ops import container, control
from fusewire.ops.declare import Op
from fusewire.ops.subgraph import FLAG, INDEX, alike, result_types


def _empty(of: DType) -> Value:
    return container.sequence_empty.new(element=TensorType(of, (UNKNOWN,)))


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


def _sequence_insert(call: OnnxCall) -> Converted:
    held, x, place = call[0], call[1], scalar(call.get(2))
    # What a loop carries may be declared with another rank: it is empty, and the loop checks that.
    is_carried = held.node is None and call.scope.outer is not None
    if is_unknown(held.type) or (is_carried and not alike(held.type, SequenceType(x.type))):
        held = container.sequence_empty.new(element=any_size(x.type))
    return _held(container.sequence_insert, [held, x, place])


def _split_to_sequence(call: OnnxCall) -> Converted:
    keepdims = call.flag("keepdims", 1)
    return _held(
        container.split_to_sequence,
        [call[0], call.get(1)],
        axis=call.attr("axis", 0),
        keepdims=keepdims,
    )


def _concat_from_sequence(call: OnnxCall) -> Converted:
    return _held(
        container.concat_from_sequence,
        [call[0]],
        axis=call.needed("axis"),
        new_axis=call.flag("new_axis"),
    )


def _sequence_map(call: OnnxCall) -> Converted:
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


def _optional(call: OnnxCall) -> Converted:
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


def _optional_has(call: OnnxCall) -> Converted:
    held = call.get(0)
    if held is None or not isinstance(held.type, OptionalType):
        return constant(np.array(held is not None))
    return container.optional_has(held)


def _optional_get(call: OnnxCall) -> Converted:
    held = call[0]
    return container.optional_get(held) if isinstance(held.type, OptionalType) else held


TABLE: Mapping[str, Read] = {
    "SequenceConstruct": lambda call: _held(container.sequence_construct, call.rest),
    "SequenceEmpty": lambda call: _empty(call.dtype("dtype", float32)),
    "SequenceAt": lambda call: _held(container.sequence_at, [call[0], scalar(call[1])]),
    "SequenceInsert": _sequence_insert,
    "SequenceErase": lambda call: container.sequence_erase(call[0], scalar(call.get(1))),
    "SequenceLength": lambda call: container.sequence_length(call[0]),
    "SequenceMap": _sequence_map,
    "SplitToSequence": _split_to_sequence,
    "ConcatFromSequence": _concat_from_sequence,
    "Optional": _optional,
    "OptionalHasElement": _optional_has,
    "OptionalGetElement": _optional_get,
}
