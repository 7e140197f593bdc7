"""Common subexpressions: nodes that compute the same thing become one node."""

from __future__ import annotations

from collections.abc import Hashable

from fusewire.dtypes import string
from fusewire.ir.builder import Rebuild
from fusewire.ir.graph import Attr, Graph, Node, Value
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.rewrite.rule import Log, Rewritten

# Constants with more elements are weights: not read only to find two that are equal.
MOST_ELEMENTS = 1024


def share(graph: Graph) -> Rewritten:
    """Keep the first of equal nodes and constants, in bodies too."""
    log = Log()
    return Rewritten(_shared(graph, log), log.report())


def _shared(graph: Graph, log: Log) -> Graph:
    rebuild = Rebuild(graph)
    nodes: dict[Hashable, Node] = {}
    constants: dict[Hashable, Value] = {}
    numbers: dict[Value, int] = {}
    changed = False
    for node in graph.nodes:
        current = _over(rebuild, constants, node, log)
        key = _key(current, numbers)
        found = nodes.setdefault(key, current)
        if found is not current:
            log.fired("share", current)
        changed |= found is not node
        rebuild.replace(node, found.outputs)
    return rebuild.finish() if changed else graph


def _over(rebuild: Rebuild, constants: dict[Hashable, Value], node: Node, log: Log) -> Node:
    """Give the node over shared operands, its bodies shared inside."""
    inputs = [v if v is None else _first(rebuild.value(v), constants) for v in node.inputs]
    bodies: dict[str, Attr] = {key: _shared(body, log) for key, body in node.graphs()}
    same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
    if same and all(body is node.attrs[key] for key, body in bodies.items()):
        return node
    return node.copy(inputs, {**node.attrs, **bodies})


def _first(value: Value, constants: dict[Hashable, Value]) -> Value:
    """Find the first constant that holds the same."""
    held = value.constant
    if held is None:
        return value
    if value in constants:
        return constants[value]
    if held.type.dtype is string or held.type.size not in range(MOST_ELEMENTS + 1):
        return value
    first = constants.setdefault((held.type, held.array.tobytes()), value)
    constants[value] = first
    return first


def _key(node: Node, numbers: dict[Value, int]) -> Hashable:
    operands = [None if v is None else numbers.setdefault(v, len(numbers)) for v in node.inputs]
    # Of zeros of both signs, maximum and minimum may take either: their order is kept.
    if node.op not in ("maximum", "minimum") and get_op(node.op).is_(Trait.COMMUTATIVE):
        operands.sort(key=lambda number: -1 if number is None else number)
    attrs = [(key, _attr_key(attr)) for key, attr in sorted(node.attrs.items())]
    return node.op, tuple(operands), tuple(attrs), node.types


def _attr_key(attr: Attr) -> Hashable:
    """Tell attributes apart that Python calls equal: 1, 1.0 and True, 0.0 and -0.0."""
    if isinstance(attr, tuple):
        return tuple(_attr_key(item) for item in attr)
    return type(attr), repr(attr) if isinstance(attr, float) else attr
