"""Ops called by name in traced code; branches and loops take Python functions for their bodies.

A body is traced into its own graph. Outer values that it uses become operands; it cannot assign to
outer arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusewire.contract.frontend import Structure
from fusewire.dtypes import bool_, int64
from fusewire.errors import TypeRuleError
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.sizes import Size
from fusewire.ir.builder import inline
from fusewire.ir.graph import Graph, Node, Value, order
from fusewire.ir.types import TensorType, Type, tensor_of
from fusewire.ops.declare import Op
from fusewire.ops.operand import Traced
from fusewire.ops.subgraph import result_types

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording

_FLAG = TensorType(bool_, ())
# The number of operands before those that bodies receive.
_BEFORE = {"cond": 1, "while": 0, "scan": 0, "loop": 2}


@dataclass(frozen=True)
class TracedBody:
    """A traced body: its inputs, its results, and the outer values that it uses."""

    name: str
    inputs: list[Value]
    outputs: list[Value]
    structure: Structure
    captured: list[Value]
    nodes: list[Node]

    def close(self, captured: Sequence[Value]) -> Graph:
        """Make a graph with the captured values of all bodies of a node as further inputs."""
        raw = Graph([*self.inputs, *captured], self.outputs, self.nodes)
        extra = [Value(v.type, f"captured{i}") for i, v in enumerate(captured)]
        inputs = [*self.inputs, *extra]
        names = [f"output{i}" for i in range(len(self.outputs))]
        return Graph(inputs, inline(raw, inputs), name=self.name, output_names=names)


def call(trace: Recording, op: Op[Any], operands: Any, attrs: Any) -> Any:
    """Apply an op to traced arrays."""
    attrs = {key: _attr(value) for key, value in attrs.items()}
    functions = {key: f for key, f in attrs.items() if callable(f)}
    if functions and op.name in _BEFORE:
        return _call_control(trace, op, operands, attrs, functions)
    if not any(isinstance(x, Traced | Size) for x in operands):
        found = op(*operands, **attrs) if operands else op.new(**attrs)
        return trace.wrap(found) if isinstance(found, Value) else trace.lift(found)
    leader = next((x for x in operands if isinstance(x, Traced)), None)
    of = None if leader is None else tensor_of(leader.value.type).dtype
    given = [trace.wrap(trace.value(x, of)) if isinstance(x, Size) else x for x in operands]
    return trace.checked(op, *given, **attrs)


def _attr(attr: Any) -> Any:
    if isinstance(attr, Size):
        return attr.dim
    if isinstance(attr, tuple | list):
        return tuple(_attr(item) for item in attr)
    return attr


def _call_control(
    trace: Recording, op: Op[Any], operands: Any, attrs: Any, functions: dict[str, Any]
) -> Any:
    values = [None if x is None else trace.value(x) for x in operands]
    before = _BEFORE[op.name]
    taken = [v.type for v in values[before:] if v is not None]
    if op.name == "scan":
        carries, scans = attrs["carries"], attrs["scans"]
        for i in range(carries, carries + scans):
            row = tensor_of(taken[i])
            taken[i] = row.with_shape(row.shape[1:])
    elif op.name == "loop":
        taken = [TensorType(int64, ()), _FLAG, *taken]
    bodies = {key: _body(trace, key, f, taken) for key, f in functions.items()}
    captured = list(dict.fromkeys(v for body in bodies.values() for v in body.captured))
    if op.name == "while":
        attrs["carries"] = len(values)
    attrs |= {key: body.close(captured) for key, body in bodies.items()}
    every = [*values, *captured]
    types = [None if v is None else v.type for v in every]
    try:
        op.infer(types, op.complete(attrs))
    except TypeRuleError:
        attrs["types"] = trace.checked(result_types, op, types, **attrs)
    found = [trace.wrap(v) for v in trace.checked(op, *every, **attrs)]
    structures = [body.structure for key, body in bodies.items() if key != "condition"]
    return structures[0].restore(found) if op.name in ("cond", "while") else tuple(found)


def _body(
    trace: Recording, name: str, function: Callable[..., Any], types: Sequence[Type]
) -> TracedBody:
    inputs = [Value(type_, f"input{i}") for i, type_ in enumerate(types)]
    with trace.inside() as scope:
        found = function(*(trace.wrap(v, is_scalar=False) for v in inputs))
        structure, leaves = Structure.of(found, lambda x: x is not None and not _is_tree(x))
        if not leaves:
            raise refusal(f"The function given as {name} must return arrays, found {found!r}.")
        outputs = [trace.value(leaf) for leaf in leaves]
        for value in outputs:
            trace.stamp(value)
    nodes = [node for node in order(outputs) if node in scope.nodes]
    own = {*inputs, *(v for node in nodes for v in node.outputs)}
    used = (*(v for node in nodes for v in node.operands), *outputs)
    outer = dict.fromkeys(v for v in used if v not in own and v.constant is None)
    return TracedBody(name, inputs, outputs, structure, list(outer), nodes)


def _is_tree(x: Any) -> bool:
    return isinstance(x, tuple | list | dict)
