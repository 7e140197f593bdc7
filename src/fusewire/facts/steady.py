"""Which inputs of a graph must not change while it runs.

A kernel may read an operand again and rely on what it read first: it counts what it is about to
write, checks an index that it will use, or compares elements while it orders their places. It
leaves its memory if somebody writes to the operand meanwhile. A run takes a copy of each input that
such an operand may be, or look into.
"""

from __future__ import annotations

from collections.abc import Iterable

from fusewire.dtypes import bool_
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import BodyLayout, Trait
from fusewire.ops.table import get_op

# Outputs of these primitives are always new.
_COMPUTING = {Trait.CONTRACTION, Trait.RANDOM, Trait.SHAPE}


def steady_places(graph: Graph) -> tuple[int, ...]:
    """List the places of the inputs that must not change during a run."""
    steady = _steady_values(graph)
    return tuple(place for place, value in enumerate(graph.inputs) if value in steady)


def steady_operands(node: Node) -> list[Value]:
    """List the operands of a node that its own kernel relies on to stay as they are."""
    op = get_op(node.op)
    if op.layout is not None:
        return [value for value in node.inputs[: op.layout.fixed] if value is not None]
    if op.is_(Trait.UNBACKED) and not op.steady:
        return [*node.operands]
    # An engine that checks an index reads it once more to use it.
    required = (requirement.operand for requirement in op.requires)
    names = {*op.steady, *op.index_operands, *required}
    pairs = zip(op.parameters[0], node.inputs, strict=False) if names else ()
    return [value for name, value in pairs if value is not None and name in names]


def _steady_values(graph: Graph, outputs: Iterable[Value] = ()) -> set[Value]:
    """Find what must stay as it is: for nodes of the graph, and for who takes some outputs."""
    steady = set(outputs)
    for node in reversed(graph.nodes):
        steady.update(steady_operands(node))
        op = get_op(node.op)
        if op.layout is not None:
            steady |= _around_bodies(node, op.layout, steady)
        elif op.is_composite and (op.traits & _COMPUTING or any(node.graphs())):
            steady |= _through_parts(node, steady)
        else:
            made = steady.intersection(node.outputs)
            steady.update(x for x in node.operands if any(_may_be(y, x, node) for y in made))
    return steady


def _through_parts(node: Node, steady: set[Value]) -> set[Value]:
    """Find the operands of a composite that must stay as they are: an einsum may be a transpose."""
    parts = get_op(node.op).expansion(node)
    pairs = zip(node.outputs, parts.outputs, strict=True)
    inside = _steady_values(parts, [part for output, part in pairs if output in steady])
    pairs = zip(node.operands, parts.inputs, strict=True)
    return {operand for operand, part in pairs if part in inside}


def _may_be(output: Value, operand: Value, node: Node) -> bool:
    """Tell whether an engine may take an operand for an output of the node, in whole or part.

    Engines do not only move elements by views: they leave out what changes nothing, such as a sum
    with 0, the mean of one element, or a cast of integers to others that are as wide.
    """
    one, other, op = output.type, operand.type, get_op(node.op)
    if op.traits & _COMPUTING:
        return False
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return True
    if op.is_(Trait.MOVEMENT) or node.op == "bitcast" or one.dtype is other.dtype:
        return True
    if other.dtype.is_complex or other.dtype is bool_:
        # Parts of complex numbers lie in them. Any byte of a boolean may become a number, where an
        # index is proven to be 0 or 1.
        return True
    is_converted = one.dtype.is_float or other.dtype.is_float
    return one.dtype.itemsize == other.dtype.itemsize and not is_converted


def _around_bodies(node: Node, layout: BodyLayout, steady: set[Value]) -> set[Value]:
    """Find the operands of control flow that must stay as they are.

    What a round makes of a carried value is that value in the next round, and the operand if there
    is no round.
    """
    carried = set(range(layout.carries(node)))
    numbers = {number for number, output in enumerate(node.outputs) if output in steady}
    while True:
        taken = numbers & carried
        for name, body in node.graphs():
            outputs = body.outputs
            if name != "condition":
                kept = (outputs[layout.flags + number] for number in numbers)
                outputs = (*outputs[: layout.flags], *kept)
            inside = _steady_values(body, outputs)
            places = range(len(layout.leading), len(body.inputs))
            taken |= {at - len(layout.leading) for at in places if body.inputs[at] in inside}
        if taken & carried <= numbers:
            operands = (node.inputs[layout.fixed + number] for number in taken)
            return {value for value in operands if value is not None}
        numbers |= taken & carried
