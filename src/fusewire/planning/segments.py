"""Cut a graph into segments, in order, where few tensors are handed over.

A split of a graph over engines gives each segment to one of them. Every place between two nodes is
a possible cut; those that few tensors cross, of sizes that are known, are kept. Segments with
little to do are joined with a neighbour until there are few enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fusewire.errors import DimError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import Symbol, evaluate
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.numerics.scale import node_work
from fusewire.planning.partition import Cutter

# The most tensors that cross a cut.
_MOST_CROSSING = 3
# So many operations of a contraction take about as long as one element takes to read or write.
_OPERATIONS = 50


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive nodes of a graph, as a graph of their own, with the values that they take."""

    nodes: tuple[Node, ...]
    graph: Graph
    takes: tuple[Value, ...]


def segments(graph: Graph, sizes: Mapping[Symbol, int], most: int) -> list[Segment]:
    """Cut a graph of these sizes into up to so many segments."""
    parts = joined(_parts(graph, sizes), sizes, most)
    if len(parts) < 2:
        return []
    cutter = Cutter(graph, parts)
    found = []
    for place, nodes in enumerate(parts):
        own, takes, _ = cutter.region(place, f"segment{place}")
        found.append(Segment(tuple(nodes), bind_symbols(own, dict(sizes)), tuple(takes)))
    return found


def _parts(graph: Graph, sizes: Mapping[Symbol, int]) -> list[list[Node]]:
    """Cut wherever few tensors cross."""
    last = {value: place for place, node in enumerate(graph.nodes) for value in node.operands}
    alive: dict[Value, int] = {}
    parts: list[list[Node]] = [[]]
    for place, node in enumerate(graph.nodes):
        parts[-1].append(node)
        alive |= {value: last[value] for value in node.outputs if value in last}
        alive = {value: until for value, until in alive.items() if until > place}
        is_cut = len(alive) <= _MOST_CROSSING and all(_is_sized(value, sizes) for value in alive)
        if is_cut and place + 1 < len(graph.nodes):
            parts.append([])
    return parts


def _is_sized(value: Value, sizes: Mapping[Symbol, int]) -> bool:
    is_tensor = isinstance(value.type, TensorType)
    return is_tensor and all(symbol in sizes for symbol in type_symbols(value.type))


def joined(parts: Sequence[list[Node]], sizes: Mapping[Symbol, int], most: int) -> list[list[Node]]:
    """Join neighbours, those first that have the least to do together."""
    found = [(nodes, sum(weight(node, sizes) for node in nodes)) for nodes in parts]
    while len(found) > most:
        together = [left + right for (_, left), (_, right) in pairwise(found)]
        at = together.index(min(together))
        (left, _), (right, _) = found[at : at + 2]
        found[at : at + 2] = [(left + right, together[at])]
    return [nodes for nodes, _ in found]


def weight(node: Node, sizes: Mapping[Symbol, int]) -> float:
    """Guess how long a node takes, in elements that are read and written."""
    try:
        read = [v.type for v in node.operands if v.constant is None]
        moved = [t.size for t in (*read, *node.types) if isinstance(t, TensorType)]
        return node_work(node, sizes) / _OPERATIONS + sum(evaluate(x, sizes) for x in moved)
    except DimError:
        # Values decide it.
        return 0.0
