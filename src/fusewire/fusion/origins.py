"""Expand what is refused, and track which node each primitive comes from.

Fusion works on primitives, and people think in layers: a group is called a softmax because what is
in it comes from one. Equal nodes of one expansion become one node, and what is made of constants
becomes a constant.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from fusewire.ir.builder import constant
from fusewire.ir.graph import Attr, Graph, Node, Value
from fusewire.ops.decompose import GRADES, Grade
from fusewire.ops.interpret import interpret
from fusewire.ops.table import get_op
from fusewire.rewrite.expand import Refuses, simpler

# Constants of this many elements are compared by what they hold.
SMALL = 16
# Constants of at most this many elements are computed with while expanding.
MOST_FOLDED = 1 << 14


@dataclass(frozen=True)
class ExpandedGraph:
    """A graph in ops that are taken, and of each of its nodes the one that it was made for."""

    graph: Graph
    origin: Mapping[Node, Node]


def expand_with_origins(
    graph: Graph, refuses: Refuses, grades: Sequence[Grade] = GRADES
) -> ExpandedGraph:
    """Replace what is refused by simpler ops until nothing more can be, in subgraphs too."""
    return _Expansion(refuses, grades).run(graph)


class _Expansion:
    def __init__(self, refuses: Refuses, grades: Sequence[Grade]) -> None:
        self._refuses = refuses
        self._grades = grades
        self._origin: dict[Node, Node] = {}
        self._made: dict[Hashable, Node] = {}

    def run(self, graph: Graph) -> ExpandedGraph:
        new: dict[Value, Value] = {}
        for node in graph.nodes:
            self._made.clear()
            self._place(node, node, new)
        outputs = [new.get(v, v) for v in graph.outputs]
        nodes = self._needed(outputs)
        found = Graph(
            graph.inputs, outputs, nodes, name=graph.name, output_names=graph.output_names
        )
        return ExpandedGraph(found, {node: self._origin[node] for node in nodes})

    def _needed(self, outputs: Sequence[Value]) -> list[Node]:
        """List what outputs need of what was made; a graph may be a part of a larger one."""
        wanted = {v.node for v in outputs}
        kept = []
        for node in reversed(self._origin):
            if node in wanted:
                kept.append(node)
                wanted.update(v.node for v in node.operands)
        return kept[::-1]

    def _place(self, node: Node, origin: Node, new: dict[Value, Value]) -> None:
        """Put a node, or what it expands to, over the new values."""
        inputs = tuple(None if v is None else new.get(v, v) for v in node.inputs)
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        current = node if same else node.copy(inputs)
        meaning = self._simpler(current)
        if meaning is not None:
            inner = dict(zip(meaning.inputs, current.operands, strict=True))
            for part in meaning.nodes:
                self._place(part, origin, inner)
            new.update((old, inner.get(v, v)) for old, v in _pairs(node, meaning))
            return
        values = _folded(current) if node is not origin else None
        if values is None:
            values = self._kept(current, origin, expanded=node is not origin).outputs
        new.update(zip(node.outputs, values, strict=True))

    def _simpler(self, node: Node) -> Graph | None:
        op = get_op(node.op)
        # Asking may take long, so only where the answer counts.
        if not op.is_composite and op.decompose is None:
            return None
        refused = self._refuses(node) is not None
        return simpler(node, self._refuses, self._grades) if refused else None

    def _kept(self, node: Node, origin: Node, *, expanded: bool) -> Node:
        bodies: dict[str, Attr] = {
            key: _Expansion(self._refuses, self._grades).run(body).graph
            for key, body in node.graphs()
        }
        if bodies:
            node = node.copy(node.inputs, {**node.attrs, **bodies})
        elif expanded:
            key = (node.op, tuple(map(_seen, node.inputs)), tuple(node.attrs.items()))
            node = self._made.setdefault(key, node)
        self._origin.setdefault(node, origin)
        return node


def _folded(node: Node) -> tuple[Value, ...] | None:
    """Compute what an expansion makes of small constants alone, as a norm does of its scales."""
    sizes = [v.tensor.size for v in (*node.operands, *node.outputs)]
    known = node.operands and all(v.constant is not None for v in node.operands)
    if not known or any(not isinstance(n, int) or n > MOST_FOLDED for n in sizes):
        return None
    return tuple(map(constant, interpret(Graph([], node.outputs, [node]), [])))


def _pairs(node: Node, meaning: Graph) -> list[tuple[Value, Value]]:
    return list(zip(node.outputs, meaning.outputs, strict=True))


def _seen(value: Value | None) -> Hashable:
    """Tell values apart: small constants by what they hold, all else by what it is."""
    if value is None or value.constant is None:
        return value
    size = value.tensor.size
    return value.constant.digest if isinstance(size, int) and size <= SMALL else value
