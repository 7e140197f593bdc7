"""Grow groups over a graph, from its outputs back to its inputs.

A node is looked at once all that use it have groups. If one group holds all its users it may be
computed there; else it starts a group of its own, or is stored beside what one of them stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fusewire.fusion.cost import Cost, Limits
from fusewire.fusion.group import Growing, elements, fold_of, reads_of, source
from fusewire.fusion.kinds import Kind, kind_of
from fusewire.ir.graph import Graph, Node, Value

# How many nodes are looked at to find what they finish, and groups to find a cycle.
LONGEST_CHAIN, MOST_VISITS = 32, 256


@dataclass(frozen=True)
class Unfused:
    """A node that stayed out of the kernel of one that uses it, and why."""

    node: Node
    user: Node
    reason: str


@dataclass
class Growth:
    """Groups of a graph while they grow."""

    graph: Graph
    cost: Cost
    limits: Limits
    # Nodes that no kernel computes, and why.
    apart: Mapping[Node, str] = field(default_factory=dict)
    refused: list[Unfused] = field(default_factory=list)
    group_of: dict[Node, Growing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stored = {source(value)[0] for value in self.graph.outputs}
        self._users = self._through_views()
        self._finishes: dict[Node, Node | None] = {}

    def _through_views(self) -> Mapping[Value, list[Node]]:
        """List who uses a value, looking through ops that cost nothing."""
        users: dict[Value, dict[Node, None]] = {}
        for node in reversed(self.graph.nodes):
            free = kind_of(node) is Kind.FREE
            for operand in node.operands:
                found = users.setdefault(operand, {})
                found.update(users.get(node.outputs[0], {}) if free else {node: None})
        return {value: list(found) for value, found in users.items()}

    def users(self, node: Node) -> list[Node]:
        """List the nodes that use what a node makes."""
        return list(dict.fromkeys(u for v in node.outputs for u in self._users.get(v, ())))

    def run(self, ready: Mapping[Node, Growing]) -> None:
        """Give every node a group; some may have one already."""
        for node in reversed(self.graph.nodes):
            kind = kind_of(node)
            if node in ready:
                self.group_of[node] = ready[node]
            elif kind is not Kind.FREE:
                self._place(node, kind)

    def _place(self, node: Node, kind: Kind) -> None:
        users = self.users(node)
        groups = dict.fromkeys(self.group_of[u] for u in users)
        stored = [v for v in node.outputs if v in self._stored]
        if len(groups) == 1 and not stored:
            (group,) = groups
            reason = self._refusal(node, kind, users, group)
            if reason is None:
                group.absorb(node, kind, users, [])
                self.group_of[node] = group
                return
            self.refused.append(Unfused(node, users[0], reason))
        elif groups and self._joins(node, kind, users, list(groups)):
            return
        group = self.group_of[node] = Growing()
        group.start(node, kind)

    def _refusal(self, node: Node, kind: Kind, users: list[Node], group: Growing) -> str | None:
        if kind is Kind.MAP and self._is_of_rows(node, users, group):
            group.once.add(node)
        reason = next((self.apart[n] for n in (node, *users) if n in self.apart), None)
        reason = reason or group.refusal(node, kind, users, self.limits)
        if reason is not None:
            return reason
        if kind is Kind.MAP and self._belongs_elsewhere(node, users, group):
            return "it finishes what is computed before it"
        return self._loss(node, kind, users, group)

    def _loss(self, node: Node, kind: Kind, users: list[Node], group: Growing) -> str | None:
        """Say so where one kernel would cost more than two."""
        alone, joined = Growing(), group.copy()
        alone.start(node, kind)
        stored = [v for v in node.outputs if {*self._users.get(v, ())} - {*group.nodes}]
        joined.absorb(node, kind, users, stored)
        apart = self.cost(alone.work + group.work)
        together = self.cost(joined.work)
        if together <= apart:
            return None
        return f"one kernel would cost {together:,.0f}, two cost {apart:,.0f}"

    def _belongs_elsewhere(self, node: Node, users: list[Node], group: Growing) -> bool:
        """Tell whether a node is better computed where that is which it finishes."""
        end = self.finishes(node)
        if end is None:
            return False
        if group.has(Kind.CONTRACT, Kind.WINDOW):
            return True
        if kind_of(end) is Kind.FOLD:
            folds = [n for n, k in group.nodes.items() if k is Kind.FOLD]
            return any(fold_of(n) != fold_of(end) for n in folds)
        often = group.computed(node, users) > elements(node.outputs[0])
        return often or group.has(Kind.FOLD)

    def finishes(self, node: Node) -> Node | None:
        """Find the product, pooling or fold before a node of which it is what is done last.

        All between the two is elementwise and used for nothing else.
        """
        if node not in self._finishes:
            self._finishes[node] = self._finished(node, elements(node.outputs[0]))
        return self._finishes[node]

    def _is_of_rows(self, node: Node, users: list[Node], group: Growing) -> bool:
        """Tell whether a node is made of a fold over rows that its users spread it over again."""
        largest = max(group.points[user] for user in users)
        end = self._finished(node, largest) if elements(node.outputs[0]) < largest else None
        return end is not None and kind_of(end) is Kind.FOLD

    def _finished(self, node: Node, size: int) -> Node | None:
        inside, waiting = {node}, {node}
        while waiting and len(inside) <= LONGEST_CHAIN:
            makers = {v.node: v for n in inside for v in reads_of(n) if v.node not in inside}
            waiting = set()
            for maker, value in makers.items():
                if maker is None or value in self._stored:
                    continue
                if not inside.issuperset(self.users(maker)):
                    continue
                kind = kind_of(maker)
                # A fold gives as much as is spread over its rows again.
                spread = kind is Kind.FOLD and elements(maker.operands[0]) == size
                if spread or (kind in (Kind.CONTRACT, Kind.WINDOW) and elements(value) == size):
                    return maker
                if kind is Kind.MAP and elements(value) <= size:
                    waiting.add(maker)
            inside |= waiting
        return None

    def _joins(self, node: Node, kind: Kind, users: list[Node], groups: list[Growing]) -> bool:
        """Store a node beside what a group stores that uses it, if one may."""
        if kind is not Kind.MAP or self._ends_product(node):
            return False
        reason, user = "", users[0]
        for group in groups:
            inside = [u for u in users if self.group_of[u] is group]
            others = [g for g in groups if g is not group]
            if any(v.tensor.shape != group.shape for v in node.outputs):
                found: str | None = "it is needed elsewhere too, and has another shape"
            elif group.has(Kind.CONTRACT, Kind.WINDOW, Kind.WHOLE) or group.kept:
                found = "it is needed elsewhere too, and a kernel of products stores its result"
            elif self._reaches(others, group):
                found = "what it is needed for elsewhere is needed here"
            else:
                found = self._refusal(node, kind, inside, group)
            if found is None:
                group.absorb(node, kind, inside, list(node.outputs))
                self.group_of[node] = group
                return True
            reason, user = found, inside[0]
        self.refused.append(Unfused(node, user, reason))
        return False

    def _ends_product(self, node: Node) -> bool:
        end = self.finishes(node)
        return end is not None and kind_of(end) is not Kind.FOLD

    def _reaches(self, starts: Iterable[Growing], goal: Growing) -> bool:
        """Tell whether a group needs what others make; also when that takes too long to find."""
        stack, seen = list(starts), set(starts)
        while stack:
            group = stack.pop()
            if group is goal or len(seen) > MOST_VISITS:
                return True
            for value in group.outputs:
                for user in self._users.get(value, ()):
                    found = self.group_of[user]
                    if found not in seen:
                        seen.add(found)
                        stack.append(found)
        return False


def ordered(groups: Iterable[Growing]) -> list[Growing]:
    """Put groups in an order in which each comes after what it reads."""
    listed = list(groups)
    maker = {value: group for group in listed for value in group.outputs}
    done: set[Growing] = set()
    found: list[Growing] = []
    for start in listed:
        stack = [start]
        while stack:
            group = stack[-1]
            needs = [maker[v] for v in group.reads if v in maker]
            waiting = [g for g in needs if g not in done and g is not group]
            if waiting and group not in done:
                stack.extend(waiting)
                continue
            stack.pop()
            if group not in done:
                done.add(group)
                found.append(group)
    return found
