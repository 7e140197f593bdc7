"""Parts of a candidate in less precision: nodes that its engine can leave exact.

Neighbours with little to do are joined until there are few enough parts to measure each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fusewire.contract.backend import EXACT_NODES
from fusewire.contract.region import written_places
from fusewire.errors import DimError
from fusewire.ir.dims import Symbol, evaluate
from fusewire.ir.graph import Node
from fusewire.ir.types import TensorType
from fusewire.numerics.scale import node_work
from fusewire.planning.candidates import Candidate

# The most parts.
_MOST = 8
# So many operations of a contraction take about as long as one element takes to read or write.
_OPERATIONS = 50


@dataclass(frozen=True)
class Parts:
    """A candidate in less, and the places of its nodes that may be exact, by part."""

    candidate: Candidate
    places: Sequence[Sequence[int]]

    @property
    def count(self) -> int:
        """The number of parts; 0 if the engine cannot leave nodes exact."""
        return len(self.places)

    @staticmethod
    def of(candidate: Candidate, sizes: Mapping[Symbol, int]) -> Parts:
        """Ask the engine which nodes of its one region it can leave exact."""
        plan, target = candidate.planned.plan, candidate.target
        if not plan.is_whole or plan.steps[0].region.backend != target.name:
            return Parts(candidate, ())
        region = plan.steps[0].region.graph
        places = target.backend.reduced_nodes(region, target.device, candidate.options)
        if len(places) < 2:
            return Parts(candidate, ())
        numbers = {region.nodes[place]: place for place in sorted(places)}
        parts = joined([[node] for node in numbers], sizes, _MOST)
        return Parts(candidate, [[numbers[node] for node in part] for part in parts])

    def mixture(self, reduced: Collection[int]) -> Candidate:
        """Plan the candidate with some parts in less, by number, and all others exact."""
        places = [place for part in self.places for place in part]
        exact = {x for at, part in enumerate(self.places) if at not in reduced for x in part}
        options = {**self.candidate.options, EXACT_NODES: written_places(places, exact)}
        return replace(self.candidate, options=options)


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
