"""Find the patterns that a user gives: chains of nodes, by ops or kinds, that become one group.

A match is a proposal: ``Growth.seed`` makes a group of it only if one kernel can hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fusewire.errors import OptionsError
from fusewire.fusion.growth import Growing, Growth, Unfused
from fusewire.fusion.kinds import kind_of
from fusewire.fusion.patterns import PATTERNS, Pattern
from fusewire.ir.graph import Graph, Node
from fusewire.ops.declare import Kind
from fusewire.ops.table import all_ops

# What a sequence may say beside the names of ops; the first stands for one node or more.
ELEMENTWISE = "elementwise"
KINDS = (ELEMENTWISE, "reduction", "product", "convolution", "anything")
# What needs no pattern: nothing is fused.
UNFUSED = ("single", "copy")


def named_patterns(given: Sequence[Pattern | str] | None) -> dict[str, Pattern]:
    """Map names to the patterns that may make groups; OptionsError for one that is unknown."""
    if given is None:
        return dict(PATTERNS)
    found: dict[str, Pattern] = {}
    for item in given:
        pattern = PATTERNS.get(item) if isinstance(item, str) else item
        if pattern is None:
            raise OptionsError(f"There is no pattern {item!r}. There are {', '.join(PATTERNS)}.")
        if found.setdefault(pattern.name, pattern) != pattern:
            raise OptionsError(f"Two patterns are called {pattern.name!r}. Rename one of them.")
        if PATTERNS.get(pattern.name) != pattern:
            _check(pattern)
    return found


def _check(pattern: Pattern) -> None:
    if pattern.name in PATTERNS:
        raise OptionsError(f"{pattern.name!r} is a pattern of ours. Give yours another name.")
    unknown = [x for x in pattern.sequence if x not in KINDS and x not in all_ops()]
    if unknown or not pattern.sequence:
        said = f"{unknown[0]!r}, which is neither an op nor a kind" if unknown else "nothing"
        raise OptionsError(
            f"The pattern {pattern.name!r} has {said}. Kinds are {', '.join(KINDS)}; "
            "`fusewire ops` lists the ops."
        )


def seeded(
    growth: Growth, graph: Graph, origin: Mapping[Node, Node], patterns: Mapping[str, Pattern]
) -> dict[Node, Growing]:
    """Make the groups that patterns of the user's ask for, and note those that cannot be."""
    own = [pattern for name, pattern in patterns.items() if name not in PATTERNS]
    if not own:
        return {}
    parts: dict[Node, list[Node]] = {}
    for node in growth.graph.nodes:
        if kind_of(node) is not Kind.FREE:
            parts.setdefault(origin[node], []).append(node)
    chains, groups = _Chains(graph, parts), dict[Node, Growing]()
    places = {node: place for place, node in enumerate(growth.graph.nodes)}
    for pattern in sorted(own, key=lambda pattern: pattern.priority):
        for chain in chains.matches(pattern.sequence, growth.limits.nodes):
            nodes = sorted((n for part in chain for n in parts[part]), key=places.__getitem__)
            group = growth.seed(nodes, pattern.name)
            if isinstance(group, Unfused):
                growth.refused.append(group)
            else:
                groups.update(dict.fromkeys(nodes, group))
                chains.taken.update(chain)
    return groups


class _Chains:
    """The chains of a graph, looking through what costs nothing."""

    def __init__(self, graph: Graph, parts: Mapping[Node, Sequence[Node]]) -> None:
        # Nodes that have a group are in no other chain.
        self.taken: set[Node] = set()
        self._nodes = [node for node in graph.nodes if node in parts]
        self._kinds = {node: {kind_of(n) for n in own} for node, own in parts.items()}
        self._outputs = {self._maker(value.node) for value in graph.outputs}
        self._users: dict[Node, set[Node]] = {}
        for node in self._nodes:
            for maker in self._makers(node):
                self._users.setdefault(maker, set()).add(node)

    def matches(self, sequence: Sequence[str], most: int) -> Iterator[tuple[Node, ...]]:
        """Yield the longest chain that ends in each node, the last nodes first."""
        for node in reversed(self._nodes):
            chain = self._back(node, sequence, most)
            if chain is not None:
                yield chain

    def _back(self, node: Node, sequence: Sequence[str], most: int) -> tuple[Node, ...] | None:
        """Match a sequence from its end, with so many nodes at most."""
        *before, last = sequence
        if most < 1 or node in self.taken or not self._fits(node, last):
            return None
        for maker in self._makers(node):
            if self._users[maker] != {node} or maker in self._outputs:
                continue
            longer = self._back(maker, sequence, most - 1) if last == ELEMENTWISE else None
            if longer is None and before:
                longer = self._back(maker, before, most - 1)
            if longer is not None:
                return (*longer, node)
        return None if before else (node,)

    def _fits(self, node: Node, word: str) -> bool:
        kinds = self._kinds[node]
        if word == ELEMENTWISE:
            return kinds == {Kind.MAP}
        if word == "reduction":
            return Kind.FOLD in kinds and kinds <= {Kind.FOLD, Kind.MAP}
        if word == "product":
            return Kind.CONTRACT in kinds and node.op != "conv"
        return word == "anything" or node.op == ("conv" if word == "convolution" else word)

    def _makers(self, node: Node) -> list[Node]:
        found = (self._maker(value.node) for value in node.operands)
        return list(dict.fromkeys(maker for maker in found if maker is not None))

    def _maker(self, node: Node | None) -> Node | None:
        while node is not None and node not in self._kinds:
            node = node.operands[0].node if node.operands else None
        return node
