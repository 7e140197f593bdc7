"""Find branches of a graph: parts that do not depend on each other, and have much to do.

Where a node joins two values, what only one of them comes of and what only the other comes of are
independent. The results of the graph are joined, too, by whoever takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusewire.ir.dims import Symbol
from fusewire.ir.graph import Graph, Node, Value
from fusewire.planning.segments import weight

# Larger graphs are not looked at: the sets of what comes before each node take too much memory.
_MOST_NODES = 2000
# A branch has at least this share of the work of the graph.
_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class Fork:
    """Two parts of a graph that are independent of each other; the first has more to do."""

    first: frozenset[Node]
    second: frozenset[Node]


def forks(graph: Graph, sizes: Mapping[Symbol, int]) -> list[Fork]:
    """List forks that have no node in common, those first that have the most to do on both sides.

    Sets of nodes are numbers here: a bit for each node.
    """
    if len(graph.nodes) > _MOST_NODES:
        return []
    weights = [weight(node, sizes) for node in graph.nodes]
    least = _SHARE * sum(weights)
    sides = [_sides(masks, weights) for masks in _joined(graph)]
    found = [(min(_total(x, weights) for x in pair), pair) for pair in sides]
    taken, kept = 0, []
    for least_side, (first, second) in sorted(found, reverse=True):
        if least_side and least_side >= least and not taken & (first | second):
            taken |= first | second
            kept.append(
                Fork(*(frozenset(graph.nodes[x] for x in _bits(s)) for s in (first, second)))
            )
    return kept


def _joined(graph: Graph) -> Iterator[list[int]]:
    """Yield, for each node that joins several values, what each of them comes of."""
    before: dict[Node, int] = {}
    for place, node in enumerate(graph.nodes):
        masks = _masks(node.operands, before)
        mask = 1 << place
        for other in masks:
            mask |= other
        before[node] = mask
        if len(masks) > 1:
            yield masks
    if len(masks := _masks(graph.outputs, before)) > 1:
        yield masks


def _masks(values: Sequence[Value], before: Mapping[Node, int]) -> list[int]:
    makers = dict.fromkeys(value.node for value in values)
    return [before[maker] for maker in makers if maker is not None and maker in before]


def _sides(masks: Sequence[int], weights: Sequence[float]) -> tuple[int, int]:
    """Share values out to two sides that have about as much to do; the heavier one comes first."""
    sides = [0, 0]
    for mask in sorted(masks, key=lambda mask: _total(mask, weights), reverse=True):
        lighter = min((0, 1), key=lambda at: _total(sides[at], weights))
        sides[lighter] |= mask
    first, second = sides[0] & ~sides[1], sides[1] & ~sides[0]
    return (first, second) if _total(first, weights) >= _total(second, weights) else (second, first)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _total(mask: int, weights: Sequence[float]) -> float:
    return sum(weights[place] for place in _bits(mask))
