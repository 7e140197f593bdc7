"""Cut a graph into regions: convex by construction, in an order in which they can run.

The depth of a node is the largest number of target changes on a path to it. Nodes of one target and
one depth make a region: every node on a path between two of them has the same target and depth.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from fusewire.ir.builder import Rebuild
from fusewire.ir.dims import Symbol, lone_symbol
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ir.verify import mentioned
from fusewire.ops.table import nodes_by_sizes, size_makers


def partition(
    graph: Graph,
    targets: Mapping[Node, Hashable],
    boundaries: Collection[Value] = (),
) -> list[tuple[Hashable, list[Node]]]:
    """Group nodes by target and depth; each node whose target is None is a group of its own.

    A value of the ``boundaries`` is in another region than the nodes that use it.
    """
    depths: dict[Node, int] = {}
    groups: dict[tuple[int, int, Hashable], list[Node]] = {}
    makers = size_makers(graph)
    alone = 0
    for node in nodes_by_sizes(graph, makers):
        target = targets[node]
        depth = 0
        # A node depends on those that compute the sizes it mentions, as on its operands.
        sizes = [makers[s] for s in mentioned(node) if s in makers] if makers else []
        for maker in (*(value.node for value in node.operands), *sizes):
            if maker is not None and maker in depths:
                apart = targets[maker] != target or target is None
                depth = max(depth, depths[maker] + apart)
        if boundaries:
            checked = [depths[v.node] for v in node.operands if v in boundaries and v.node]
            depth = max([depth, *(at + 1 for at in checked)])
        depths[node] = depth
        alone += target is None
        groups.setdefault((depth, alone if target is None else 0, target), []).append(node)
    ordered = sorted(groups.items(), key=lambda item: item[0][:2])
    return [(target, nodes) for (_, _, target), nodes in ordered]


class Cutter:
    """Cuts groups of nodes out of a graph; what they share is computed once."""

    def __init__(self, graph: Graph, groups: Sequence[Sequence[Node]]) -> None:
        self._graph = graph
        self._makers = size_makers(graph)
        self._groups = groups
        self._inputs = [_in_order(self._takes(nodes), graph.inputs) for nodes in groups]
        self._wanted = {*graph.outputs, *(v for inputs in self._inputs for v in inputs)}

    def region(self, place: int, name: str) -> tuple[Graph, list[Value], list[Value]]:
        """Cut out a group as a graph of its own; also return the values it takes and makes.

        If its nodes mention a size that the shapes of its inputs do not give, the region gets a
        further input: a value of the graph that has this size as a dim.
        """
        nodes, takes = self._groups[place], self._inputs[place]
        makes = [v for node in nodes for v in node.outputs if v in self._wanted]
        makes = _in_order(makes, self._graph.outputs)
        inputs = [Value(value.type, f"input{i}") for i, value in enumerate(takes)]
        rebuild = Rebuild(Graph([], makes, nodes, name=name))
        rebuild.stand_in(takes, inputs)
        for node in nodes:
            rebuild.replace(node, rebuild.copied(node).outputs)
        outputs = [rebuild.value(value) for value in makes]
        names = [f"output{i}" for i in range(len(outputs))]
        graph = Graph(inputs, outputs, name=name, output_names=names)
        ordered = nodes_by_sizes(graph, size_makers(graph))
        return Graph(inputs, outputs, ordered, name=name, output_names=names), takes, makes

    def _takes(self, nodes: Sequence[Node]) -> list[Value]:
        """List the values that a group takes from the graph, for data or for their sizes."""
        inside = set(nodes)
        operands = (value for node in nodes for value in node.operands)
        takes = [v for v in operands if v.constant is None and v.node not in inside]
        takes = list(dict.fromkeys(takes))
        return takes + self._carriers(nodes, inside, takes)

    def _carriers(
        self, nodes: Sequence[Node], inside: set[Node], takes: Sequence[Value]
    ) -> list[Value]:
        """Find values whose shapes give the sizes that the other inputs do not."""
        named = {symbol for node in nodes for symbol in mentioned(node)}
        missing = {s for s in named - _given_sizes(takes) if self._makers.get(s) not in inside}
        carriers: list[Value] = []
        for symbol in sorted(missing, key=lambda s: s.key):
            maker = self._makers.get(symbol)
            known = self._graph.inputs if maker is None else maker.outputs
            giving = [value for value in known if symbol in _given_sizes([value])]
            if giving and giving[0] not in carriers:
                carriers.append(giving[0])
        return carriers


def _in_order(values: Sequence[Value], edge: Sequence[Value]) -> list[Value]:
    """Sort values as in an edge of the graph, so that a single region has the same edge."""
    places = {value: place for place, value in reversed(list(enumerate(edge)))}
    return sorted(values, key=lambda value: places.get(value, len(places)))


def _given_sizes(values: Sequence[Value]) -> set[Symbol]:
    """List the symbols whose size a shape gives: those that stand alone as a dim."""
    types = [v.type for v in values if isinstance(v.type, TensorType)]
    alone = (lone_symbol(dim) for type_ in types for dim in type_.shape)
    return {symbol for symbol in alone if symbol is not None}
