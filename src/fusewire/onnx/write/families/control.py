"""Control flow. Our bodies are closed and take operands; ONNX's see the names around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import bool_, int64
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType, tensor_of
from fusewire.onnx.ops.writing import attrs_of, either, operand
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import OnnxBody, OnnxStep, Port, Ref

_FLAG, _INDEX = TensorType(bool_, ()), TensorType(int64, ())


def _inputs(e: Emitter, values: Sequence[Value]) -> list[Ref]:
    return [Ref(e.model.fresh("in"), tensor_of(v.type).dtype) for v in values]


def _ports(refs: Sequence[Ref], values: Sequence[Value]) -> list[Port]:
    return [Port(ref.name, v.type, False) for ref, v in zip(refs, values, strict=True)]


def _made(node: Node) -> list[Any]:
    return [tensor_of(t).dtype for t in node.types]


def cond(e: Emitter, node: Node, predicate: Ref, *operands: Ref) -> list[Ref]:
    """Run one of two branches."""
    branches = {}
    for theirs, ours in (("then_branch", "then"), ("else_branch", "otherwise")):
        graph = node.attrs[ours]
        assert isinstance(graph, Graph)
        outputs, steps = e.run(graph, operands)
        branches[theirs] = OnnxBody(graph.name, [], _ports(outputs, graph.outputs), steps)
    return e.raw("If", [predicate], _made(node), branches)


def while_(e: Emitter, node: Node, *operands: Ref) -> list[Ref]:
    """Test before the first run, and at the end of each."""
    condition, body = node.attrs["condition"], node.attrs["body"]
    assert isinstance(condition, Graph)
    assert isinstance(body, Graph)
    count = len(body.outputs)
    rest = operands[count:]
    goes = e.run(condition, operands, inline=True)[0]
    held = _inputs(e, body.inputs[:count])
    inner = Emitter(e.model, e, is_trial=e.is_trial)
    outputs = inner.run(body, [*held, *rest], inline=True)[0]
    again = inner.run(condition, [*outputs, *rest], inline=True)[0]
    given = [inner.give(x) for x in outputs]
    ports = _ports(held, body.inputs[:count]), _ports(given, body.outputs)
    made = _loop_body(e, body.name, inner.give(again[0]), *ports, inner.steps)
    return e.raw("Loop", [None, *goes, *operands[:count]], _made(node), {"body": made})


def _loop_body(
    e: Emitter, name: str, goes: Ref, inputs: list[Port], outputs: list[Port], steps: list[OnnxStep]
) -> OnnxBody:
    """Make the body of a Loop that reads neither its index nor its condition."""
    index, going = Port(e.model.fresh("index"), _INDEX), Port(e.model.fresh("going"), _FLAG)
    return OnnxBody(name, [index, going, *inputs], [Port(goes.name, _FLAG), *outputs], steps)


def loop(
    e: Emitter, node: Node, trips: Ref | None, condition: Ref | None, *operands: Ref
) -> list[Ref]:
    """Run as ONNX's Loop does; without a condition, what the body says of it is not heard."""
    body, carries = node.attrs["body"], node.attrs["carries"]
    assert isinstance(body, Graph)
    assert isinstance(carries, int)
    held = _inputs(e, body.inputs[: 2 + carries])
    outputs, steps = e.run(body, [*held, *operands[carries:]])
    if condition is None and e.target.is_cautious:
        steps.append(OnnxStep("Identity", [held[1].name], [e.model.fresh("going")], {}))
        outputs[0] = Ref(steps[-1].outputs[0], bool_)
    ports = _ports(held, body.inputs[: 2 + carries]), _ports(outputs, body.outputs)
    if condition is None and e.target.is_cautious:
        condition = e.constant(np.array(True))
    start = [trips, condition, *operands[:carries]]
    return e.raw("Loop", start, _made(node), {"body": OnnxBody(body.name, *ports, steps)})


def scan(e: Emitter, node: Node, *operands: Ref) -> list[Ref]:
    """Run over rows; without rows, as often as the length says."""
    attrs = attrs_of(node)
    carries, scans = attrs["carries"], attrs["scans"]
    taken = carries + scans
    if not scans:
        return _repeat(e, node, operands[:carries], operands[taken:])
    length, first = operand(node, carries).tensor.shape[0], operands[:carries]
    if length == 0:
        return _unrun(e, node, first)
    if isinstance(length, int):
        return _scanned(e, node, operands)
    # Engines stop at a Scan over nothing, which only the run can tell.
    any_ = e("Greater", e.scalar(length), e.scalar(0), dtype=bool_)
    return either(
        e,
        node,
        any_,
        lambda inner: _scanned(inner, node, operands),
        lambda inner: _unrun(inner, node, first),
    )


def _scanned(e: Emitter, node: Node, operands: Sequence[Ref]) -> list[Ref]:
    """Write a Scan over rows of which there is at least one."""
    attrs = attrs_of(node)
    body, carries, scans = attrs["body"], attrs["carries"], attrs["scans"]
    taken = carries + scans
    held = _inputs(e, body.inputs[:taken])
    outputs, steps = e.run(body, [*held, *operands[taken:]])
    ports = _ports(held, body.inputs[:taken]), _ports(outputs, body.outputs)
    added, flag = len(body.outputs) - carries, int(bool(attrs["reverse"]))
    return e.raw(
        "Scan",
        operands[:taken],
        _made(node),
        {
            "body": OnnxBody(body.name, *ports, steps),
            "num_scan_inputs": scans,
            "scan_input_directions": [flag] * scans,
            "scan_output_directions": [flag] * added if added else None,
        },
    )


def _unrun(e: Emitter, node: Node, carried: Sequence[Ref]) -> list[Ref]:
    """Give what a scan over nothing gives: what it began with, and no rows."""
    rows = [v.tensor.with_shape((0, *v.tensor.shape[1:])) for v in node.outputs[len(carried) :]]
    return [*carried, *(e.nothing(row) for row in rows)]


def _repeat(e: Emitter, node: Node, carried: Sequence[Ref], rest: Sequence[Ref]) -> list[Ref]:
    """Write a scan over nothing as a Loop; what it stacks is turned round if it runs backwards."""
    attrs = attrs_of(node)
    graph, goes = attrs["body"], e.constant(np.array(True))
    held = _inputs(e, graph.inputs[: len(carried)])
    outputs, steps = e.run(graph, [*held, *rest])
    steps.append(OnnxStep("Identity", [goes.name], [e.model.fresh("going")], {}))
    again = Ref(steps[-1].outputs[0], bool_)
    ports = _ports(held, graph.inputs[: len(carried)]), _ports(outputs, graph.outputs)
    body = _loop_body(e, graph.name, again, *ports, steps)
    found = e.raw("Loop", [e.scalar(attrs["length"]), goes, *carried], _made(node), {"body": body})
    if not attrs["reverse"]:
        return found
    ends = (e.integers(-1), e.integers(-(2**62)), e.integers(0), e.integers(-1))
    first = len(carried)
    return [*found[:first], *(e("Slice", x, *ends) for x in found[first:])]


WRITERS = {"cond": cond, "while": while_, "loop": loop, "scan": scan}
