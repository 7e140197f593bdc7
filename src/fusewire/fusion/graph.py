"""A graph in which each group is one node, ``fused``, whose body holds what the group computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fusewire.ir.graph import Graph, Node, Value, order
from fusewire.ops.bundle import fused

if TYPE_CHECKING:
    from fusewire.fusion.fusion import Group


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
