"""Which nodes become one kernel: groups as data, with every fusion that was refused and why.

Composites that are refused are expanded first, and groups grow over what is left: ``growth``
decides what is legal, a function of ``cost`` what pays. Nothing here knows how a kernel is written;
``fusewire.kernel`` makes one for each group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fusewire.errors import GraphError
from fusewire.fusion.cost import Cost, KernelLimits, Work, bytes_and_launches
from fusewire.fusion.growth import (
    Growing,
    Growth,
    Unfused,
    elements,
    is_static,
    ordered,
    reads_of,
    size_of,
    source,
)
from fusewire.fusion.kinds import kind_of, unshaped
from fusewire.fusion.matching import UNFUSED, named_patterns, seeded
from fusewire.fusion.origins import expand_with_origins
from fusewire.fusion.patterns import PATTERNS, Pattern, pattern_of
from fusewire.ir.graph import Graph, Node, Value, order
from fusewire.ir.types import TensorType
from fusewire.ops.bundle import fused
from fusewire.ops.declare import Kind
from fusewire.rewrite.expand import Refuses, refuses_composites


@dataclass(frozen=True)
class Group:
    """Nodes that one kernel computes: it stores ``outputs``, and holds rows of ``kept`` meanwhile.

    Views are in no group: they are other indices wherever they are read.
    """

    pattern: str
    nodes: tuple[Node, ...]
    origins: tuple[Node, ...]
    outputs: tuple[Value, ...]
    reads: tuple[Value, ...]
    kept: tuple[Value, ...]
    work: Work

    @property
    def name(self) -> str:
        """The ops of the nodes it was made for, in order."""
        return " ".join(dict.fromkeys(node.op for node in self.origins))

    @cached_property
    def graph(self) -> Graph:
        """What it computes, by itself."""
        return body_of(self)[0]


@dataclass(frozen=True)
class Fusion:
    """The groups of a graph, in an order in which they can run.

    ``given`` is the graph that was asked about, ``graph`` the same in the ops that were fused.
    ``before`` and ``after`` are what it takes without groups and with them. ``known`` has the
    patterns that could make a group, by name.
    """

    given: Graph
    graph: Graph
    groups: tuple[Group, ...]
    refused: tuple[Unfused, ...]
    before: Work
    after: Work
    known: Mapping[str, Pattern] = field(default_factory=lambda: PATTERNS)

    @cached_property
    def fused(self) -> Graph:
        """The graph with each group as one node, ``fused``."""
        return joined(self.graph, self.groups)

    @property
    def least(self) -> int:
        """Count the bytes that any plan moves: inputs, constants and outputs, each once."""
        read: dict[Value, int] = {}
        for value, size in (item for n in self.graph.nodes for item in reads_of(n).items()):
            if value.node is None:
                read[value] = max(size, read.get(value, 0))
        return sum(read.values()) + sum(map(size_of, dict.fromkeys(self.graph.outputs)))

    @property
    def patterns(self) -> Mapping[str, int]:
        """Count the groups of each pattern."""
        counted = Counter(group.pattern for group in self.groups)
        return {name: counted[name] for name in {**PATTERNS, **self.known} if counted[name]}

    @cached_property
    def refusals(self) -> Mapping[str, int]:
        """Count the refused fusions by their reason."""
        return Counter(found.reason for found in self.refused)


def fuse(
    graph: Graph,
    refuses: Refuses = refuses_composites,
    *,
    cost: Cost = bytes_and_launches,
    limits: KernelLimits = KernelLimits(),
    apart: Callable[[Graph], Mapping[Node, str]] | None = None,
    patterns: Sequence[Pattern | str] | None = None,
) -> Fusion:
    """Find the groups of a graph; GraphError where it has values that are no tensors.

    ``apart`` names nodes, of the graph that is left to fuse, that are in no kernel, and why. With
    ``patterns``, names of ours or patterns of the user's, no others make groups.
    """
    known = named_patterns(patterns)
    for value in [*graph.inputs, *(v for n in graph.nodes for v in n.outputs)]:
        if not isinstance(value.type, TensorType):
            raise GraphError(f"Fusion is for tensors, and {value!r} is none.")
    expanded = expand_with_origins(graph, refuses)
    growth = Growth(expanded.graph, cost, limits, apart(expanded.graph) if apart else {})
    _grow(growth, graph, expanded.origin, known)
    groups = ordered(dict.fromkeys(growth.group_of.values()))
    copies = [_copy(value) for value in dict.fromkeys(expanded.graph.outputs) if _is_view(value)]
    found = tuple(_group(group, expanded.graph, expanded.origin) for group in groups)
    alone = [_alone(node) for node in expanded.graph.nodes if kind_of(node) is not Kind.FREE]
    alone += [copy.work for copy in copies]
    after = sum((group.work for group in (*found, *copies)), Work(0, 0))
    return Fusion(
        graph,
        expanded.graph,
        (*found, *copies),
        tuple(growth.refused),
        sum(alone, Work(0, 0)),
        after,
        known,
    )


def _grow(
    growth: Growth, graph: Graph, origin: Mapping[Node, Node], known: Mapping[str, Pattern]
) -> None:
    """Give every node a group that a known pattern makes, or one of its own."""
    ready = seeded(growth, graph, origin, known)
    if "attention" in known:
        found = _attentions(growth.graph, origin, growth.limits)
        taken = {group for node, group in found.items() if node in ready}
        ready = {**{n: group for n, group in found.items() if group not in taken}, **ready}
    growth.run(ready)
    if known.keys() >= PATTERNS.keys():
        return
    for group in dict.fromkeys(growth.group_of.values()):
        name = pattern_of(group, [origin[node] for node in group.nodes])
        if name not in known and name not in UNFUSED:
            growth.separate(group, f"{name!r} is not among the patterns that were given")


def _is_view(value: Value) -> bool:
    """Tell whether an output has to be copied: nothing computes it, and memory has it elsewhere."""
    free = value.node is None or kind_of(value.node) is Kind.FREE
    return free and unshaped(value) is value


def _copy(value: Value) -> Group:
    read, size = source(value)
    origins = () if value.node is None else (value.node,)
    work = Work(size + size_of(value), 1, 0)
    return Group("copy", (), origins, (value,), (read,), (), work)


def _alone(node: Node) -> Work:
    group = Growing()
    group.start(node, kind_of(node))
    return group.work


def _group(group: Growing, graph: Graph, origin: Mapping[Node, Node]) -> Group:
    places = {node: place for place, node in enumerate(graph.nodes)} if len(group.nodes) > 1 else {}
    nodes = tuple(sorted(group.nodes, key=lambda node: places.get(node, 0)))
    origins = tuple(dict.fromkeys(origin[node] for node in nodes))
    return Group(
        pattern_of(group, origins),
        nodes,
        origins,
        tuple(group.outputs),
        tuple(group.reads),
        group.kept,
        group.work,
    )


def _attentions(
    graph: Graph, origin: Mapping[Node, Node], limits: KernelLimits
) -> dict[Node, Growing]:
    """Make one group of all that an attention expands to, where a row of it fits."""
    parts: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if origin[node].op == "attention" and kind_of(node) is not Kind.FREE:
            parts.setdefault(origin[node], []).append(node)
    found: dict[Node, Growing] = {}
    for nodes in parts.values():
        group = _attention(nodes, limits)
        if group is not None:
            found.update(dict.fromkeys(nodes, group))
    return found


def _attention(nodes: list[Node], limits: KernelLimits) -> Growing | None:
    products = [node for node in nodes if kind_of(node) is Kind.CONTRACT]
    if len(products) != 2 or len(nodes) > limits.nodes or not all(map(is_static, nodes)):
        return None
    scores, result = products[0].outputs[0], products[1].outputs[0]
    weights = products[1].operands[0]
    row = scores.tensor.shape[-1]
    assert isinstance(row, int)
    if 2 * row * scores.tensor.dtype.itemsize > limits.local_bytes:
        return None
    group = Growing(kept=(scores, weights))
    group.nodes = {node: kind_of(node) for node in reversed(nodes)}
    group.points = {node: elements(node.outputs[0]) for node in nodes}
    group.factors = {n for n in nodes if group.nodes[n] is Kind.MAP}
    group.outputs = {result: None}
    made = {v for node in nodes for v in node.outputs}
    for node in nodes:
        group.reads.update((v, n) for v, n in reads_of(node).items() if v not in made)
    return group if len(group.reads) + 1 <= limits.buffers else None


def joined(graph: Graph, groups: Iterable[Group]) -> Graph:
    """Make the graph of groups; views between them stay nodes, a group of one node stays itself."""
    new: dict[Value, Value] = {}
    done: set[Node] = set()

    def copy(nodes: Iterable[Node]) -> None:
        for node in nodes:
            inputs = [None if v is None else new.get(v, v) for v in node.inputs]
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            made = node if same else node.copy(inputs)
            new.update(zip(node.outputs, made.outputs, strict=True))
            done.add(node)

    for group in groups:
        if len(group.nodes) < 2:
            copy(order(group.outputs, done))
            continue
        body, _ = body_of(group)
        operands = [v for v in group.reads if v.constant is None]
        copy(order(operands, done))
        node = fused.make(
            [new.get(v, v) for v in operands], {"body": body, "pattern": group.pattern}
        )
        new.update(zip(group.outputs, node.outputs, strict=True))
        done.update(group.nodes)
    copy(order(graph.outputs, done))
    outputs = [new.get(v, v) for v in graph.outputs]
    return Graph(graph.inputs, outputs, name=graph.name, output_names=graph.output_names)


def body_of(group: Group) -> tuple[Graph, tuple[Value, ...]]:
    """Give what a group computes as a graph over what it reads, and what it keeps rows of.

    Constants stay in it.
    """
    operands = [v for v in group.reads if v.constant is None]
    inputs = [Value(v.type, f"input{i}") for i, v in enumerate(operands)]
    new = dict(zip(operands, inputs, strict=True))
    stops = {v.node for v in operands if v.node is not None}
    for node in order(group.outputs, stops):
        copy = node.copy([None if v is None else new.get(v, v) for v in node.inputs])
        new.update(zip(node.outputs, copy.outputs, strict=True))
    outputs = [new[v] for v in group.outputs]
    names = [f"output{i}" for i in range(len(outputs))]
    made = Graph(inputs, outputs, name=group.pattern, output_names=names)
    return made, tuple(new[v] for v in group.kept)
