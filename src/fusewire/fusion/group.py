"""One group while it grows: nodes that one kernel computes, and what joining it would mean."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fusewire.fusion.cost import Limits, Work
from fusewire.fusion.kinds import LIGHT, READS_ONCE, SLOW, Kind, kind_of
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType

# A factor of a product is read from memory for every tile of the result.
TILES = 4


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
    return points * (16 if node.op in SLOW else 1)


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

    def refusal(self, node: Node, kind: Kind, users: Iterable[Node], limits: Limits) -> str | None:
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
        if used is Kind.WHOLE and not (user.op in READS_ONCE and kind is Kind.MAP):
            return f"{user.op} has kernels of its own, which read what is stored"
        if used in (Kind.CONTRACT, Kind.WINDOW) or user in self.factors:
            if kind is not Kind.MAP:
                return f"{user.op} uses each element many times, so it is computed once before"
            if node.op not in LIGHT or (used is Kind.WINDOW and node.op != "pad"):
                return f"{user.op} would compute {node.op} many times for each element"
        return None

    def _kind_refusal(
        self, node: Node, kind: Kind, users: list[Node], limits: Limits
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

    def _fold_refusal(self, node: Node, limits: Limits) -> str | None:
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
