"""Grow groups over a graph, from its outputs back to its inputs.

``Growing`` is one group so far: the nodes that one kernel computes, and what it would mean for
another to join. ``Growth`` looks at a node once every node that uses it has a group. If one group
holds all of them, the node may be computed there; otherwise it starts a group of its own, or is
stored beside what one of those groups stores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fusewire.fusion.cost import Cost, KernelLimits, Work
from fusewire.fusion.kinds import kind_of
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import CostClass, Kind, Trait
from fusewire.ops.table import get_op

# A factor of a product is read from memory for every tile of the result.
TILES = 4
# How many nodes are looked at to find what they finish, and groups to find a cycle.
LONGEST_CHAIN, MOST_VISITS = 32, 256


def elements(value: Value) -> int:
    """Count the elements of a value; of a shape that only a run tells, none."""
    type_ = value.type
    if not isinstance(type_, TensorType) or not type_.is_static:
        return 0
    return math.prod(dim for dim in type_.shape if isinstance(dim, int))


def size_of(value: Value) -> int:
    """Count the bytes of a value."""
    return elements(value) * value.tensor.dtype.itemsize if elements(value) else 0


def is_static(node: Node) -> bool:
    """Tell whether all shapes of a node are known."""
    types = [v.type for v in (*node.operands, *node.outputs)]
    return all(isinstance(t, TensorType) and t.is_static for t in types)


def source(value: Value) -> tuple[Value, int]:
    """Go back through free ops to what is stored, and count the bytes that are read of it."""
    least = elements(value)
    while value.node is not None and kind_of(value.node) is Kind.FREE:
        if not value.node.operands:
            return value, 0
        value = value.node.operands[0]
        least = min(least, elements(value))
    return value, least * value.tensor.dtype.itemsize if least else 0


def reads_of(node: Node) -> dict[Value, int]:
    """List what a node reads from memory if nothing is fused, with bytes."""
    found: dict[Value, int] = {}
    for place, operand in enumerate(node.operands):
        value, size = source(operand)
        number = value.constant is not None and elements(value) == 1
        if number or (value.node is not None and kind_of(value.node) is Kind.FREE):
            continue
        if place == 0 and node.op.startswith("gather"):
            size = min(size, size_of(node.outputs[0]))
        found[value] = max(size, found.get(value, 0))
    return found


def flops_of(node: Node, points: int) -> int:
    """Count cheap operations for so many elements."""
    return points * (16 if get_op(node.op).cost is CostClass.SLOW else 1)


def fold_of(node: Node) -> tuple[object, object]:
    """Tell what a fold goes over: the shape of its operand, and which axes of it."""
    shape = node.operands[0].tensor.shape
    axes = node.attrs["axis"] if "axis" in node.attrs else node.attrs["axes"]
    listed = (axes,) if isinstance(axes, int) else axes
    if not isinstance(listed, tuple):
        return shape, tuple(range(len(shape)))
    return shape, tuple(sorted(a % len(shape) for a in listed if isinstance(a, int)))


@dataclass(eq=False)
class Growing:
    """A group: nodes, what is stored of them, what they read, and how often each is computed."""

    nodes: dict[Node, Kind] = field(default_factory=dict)
    outputs: dict[Value, None] = field(default_factory=dict)
    reads: dict[Value, int] = field(default_factory=dict)
    points: dict[Node, int] = field(default_factory=dict)
    # Nodes that factors of a product, or windows, need.
    factors: set[Node] = field(default_factory=set)
    # Nodes that are computed once a row, before the elements of the row.
    once: set[Node] = field(default_factory=set)
    kept: tuple[Value, ...] = ()
    # The pattern that a group was made by: it grows no further.
    pattern: str = ""

    def has(self, *kinds: Kind) -> bool:
        """Tell whether a node of such a kind is in it."""
        return any(kind in kinds for kind in self.nodes.values())

    @property
    def shape(self) -> object:
        """The shape of what it stores."""
        return next(iter(self.outputs)).tensor.shape

    @property
    def work(self) -> Work:
        """Count what it moves and computes."""
        moved = sum(self.reads.values()) + sum(map(size_of, self.outputs))
        return Work(moved, 1, sum(flops_of(n, self.points[n]) for n in self.nodes))

    def start(self, node: Node, kind: Kind) -> None:
        """Be the group of one node, which is stored."""
        self.nodes[node] = kind
        self.outputs.update(dict.fromkeys(node.outputs))
        self.reads.update(reads_of(node))
        self.points[node] = elements(node.outputs[0])

    def absorb(self, node: Node, kind: Kind, users: Iterable[Node], stored: list[Value]) -> None:
        """Take in a node that nodes of the group use."""
        users = list(users)
        self.points[node] = self.computed(node, users)
        heavy = (Kind.CONTRACT, Kind.WINDOW)
        if any(self.nodes[u] in heavy or u in self.factors for u in users):
            self.factors.add(node)
        self.nodes[node] = kind
        for value in node.outputs:
            self.reads.pop(value, None)
        self.outputs.update(dict.fromkeys(stored))
        for value, size in reads_of(node).items():
            self.reads[value] = max(size, self.reads.get(value, 0))

    def copy(self) -> Growing:
        """Give another group that is the same so far."""
        return Growing(
            dict(self.nodes),
            dict(self.outputs),
            dict(self.reads),
            dict(self.points),
            set(self.factors),
            set(self.once),
            self.kept,
            self.pattern,
        )

    def computed(self, node: Node, users: Iterable[Node]) -> int:
        """Count how many times an element of a node would be computed for these users."""
        own = elements(node.outputs[0])
        if node in self.once or kind_of(node) is Kind.FOLD:
            return own
        total = 0
        for user in users:
            times = self.points[user]
            kind = self.nodes[user]
            if kind is Kind.FOLD:
                times = own
            elif kind in (Kind.CONTRACT, Kind.WINDOW) or user in self.factors:
                times = own * TILES
            total = max(total, times) if kind is Kind.MAP else total + times
        return max(total, own)

    def refusal(
        self, node: Node, kind: Kind, users: Iterable[Node], limits: KernelLimits
    ) -> str | None:
        """Say why a node cannot be computed in this group, if so."""
        users = list(users)
        if not all(map(is_static, (node, *users))):
            return "its shape is known only when it runs"
        if len(self.nodes) >= limits.nodes:
            return f"one kernel holds {limits.nodes} nodes at most"
        new = {v for v in reads_of(node) if v not in self.reads}
        if len(self.reads) + len(new) + len(self.outputs) > limits.buffers:
            return f"one kernel has {limits.buffers} buffers at most"
        for user in users:
            reason = self._user_refusal(node, kind, user)
            if reason is not None:
                return reason
        return self._kind_refusal(node, kind, users, limits)

    def _user_refusal(self, node: Node, kind: Kind, user: Node) -> str | None:
        used = self.nodes[user]
        computes = get_op(user.op).is_(Trait.READS_ONCE) and kind is Kind.MAP
        if used is Kind.WHOLE and not computes:
            return f"{user.op} has kernels of its own, which read what is stored"
        if used in (Kind.CONTRACT, Kind.WINDOW) or user in self.factors:
            if kind is not Kind.MAP:
                return f"{user.op} uses each element many times, so it is computed once before"
            light = get_op(node.op).cost is CostClass.LIGHT
            if not light or (used is Kind.WINDOW and node.op != "pad"):
                return f"{user.op} would compute {node.op} many times for each element"
        return None

    def _kind_refusal(
        self, node: Node, kind: Kind, users: list[Node], limits: KernelLimits
    ) -> str | None:
        if kind is Kind.WHOLE:
            return f"{node.op} has kernels of its own, which store what they make"
        if self.has(Kind.WHOLE) and kind is not Kind.MAP:
            return "a kernel that runs in order computes no sums beside"
        if kind in (Kind.CONTRACT, Kind.WINDOW):
            if self.has(Kind.CONTRACT, Kind.WINDOW, Kind.FOLD):
                return "one kernel has one sum of products or windows, and nothing folds it"
            if self.computed(node, users) > elements(node.outputs[0]):
                return "it would be computed more than once"
        if kind is Kind.FOLD:
            return self._fold_refusal(node, limits)
        return None

    def _fold_refusal(self, node: Node, limits: KernelLimits) -> str | None:
        if self.has(Kind.CONTRACT, Kind.WINDOW):
            return "a kernel of products or windows folds nothing else"
        rows = elements(node.outputs[0])
        row = elements(node.operands[0]) // max(rows, 1)
        largest = max((self.points[n] for n in self.nodes), default=0)
        if row > limits.row and largest > rows:
            return f"a row of {row:,} elements is too long for one group of invocations"
        others = [n for n, k in self.nodes.items() if k is Kind.FOLD]
        if any(fold_of(n) != fold_of(node) for n in others):
            return "another fold of the kernel goes over other axes"
        # A result that keeps its axes stands beside the rows it is of; one that nothing in the
        # group uses need not.
        last = next(iter(self.nodes))
        if others and not all(n.attrs["keepdims"] or n is last for n in (node, *others)):
            return "two folds whose results do not stand beside their rows"
        return None


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
    limits: KernelLimits
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

    def seed(self, nodes: Sequence[Node], pattern: str) -> Growing | Unfused:
        """Make a group of nodes, in the order of the graph, or say what is in the way."""
        *others, last = nodes
        group = Growing()
        group.start(last, kind_of(last))
        for node in reversed(others):
            kind, users = kind_of(node), self.users(node)
            if not all(user in group.nodes for user in users):
                return Unfused(node, users[0], f"it is needed outside of the pattern {pattern!r}")
            if any(value in self._stored for value in node.outputs):
                return Unfused(node, users[0], f"the pattern {pattern!r} does not store it")
            reason = self._illegal(node, kind, users, group)
            if reason is not None:
                return Unfused(node, users[0], reason)
            group.absorb(node, kind, users, [])
        group.pattern = pattern
        return group

    def separate(self, group: Growing, reason: str) -> None:
        """Give each node of a group a group of its own."""
        for node, kind in group.nodes.items():
            alone = self.group_of[node] = Growing()
            alone.start(node, kind)
            users = [user for user in self.users(node) if user in group.nodes]
            self.refused += [Unfused(node, user, reason) for user in users[:1]]

    def _illegal(self, node: Node, kind: Kind, users: list[Node], group: Growing) -> str | None:
        if kind is Kind.MAP and self._is_of_rows(node, users, group):
            group.once.add(node)
        reason = next((self.apart[n] for n in (node, *users) if n in self.apart), None)
        return reason or group.refusal(node, kind, users, self.limits)

    def _refusal(self, node: Node, kind: Kind, users: list[Node], group: Growing) -> str | None:
        if group.pattern:
            return f"the pattern {group.pattern!r} begins after it"
        reason = self._illegal(node, kind, users, group)
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
