"""Cut a graph into regions: convex by construction, in an order in which they can run.

The depth of a node is how many times the way to it changes hands. Nodes of one target and one depth
make a region: whatever lies on a path between two of them has the same target and depth.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from fusewire.ir.builder import Rebuild
from fusewire.ir.dims import Symbol, lone_symbol
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ir.verify import attr_symbols


def partition(graph: Graph, targets: Mapping[Node, Hashable]) -> list[tuple[Hashable, list[Node]]]:
    """Group nodes by target and depth; a target of None stands alone, one node a group."""
    depths: dict[Node, int] = {}
    groups: dict[tuple[int, int, Hashable], list[Node]] = {}
    tellers = _makers(graph)
    alone = 0
    for node in graph.nodes:
        target = targets[node]
        depth = 0
        # A size comes from who tells it, as an operand comes from who makes it.
        told = [tellers[s] for s in _mentioned(node) if s in tellers] if tellers else []
        for maker in (*(value.node for value in node.operands), *told):
            if maker is not None and maker in depths:
                apart = targets[maker] != target or target is None
                depth = max(depth, depths[maker] + apart)
        depths[node] = depth
        alone += target is None
        groups.setdefault((depth, alone if target is None else 0, target), []).append(node)
    ordered = sorted(groups.items(), key=lambda item: item[0][:2])
    return [(target, nodes) for (_, _, target), nodes in ordered]


class Cutter:
    """Cuts groups of nodes out of a graph; what is the same for all of them is found once."""

    def __init__(self, graph: Graph, groups: Sequence[Sequence[Node]]) -> None:
        self._graph = graph
        self._makers = _makers(graph)
        self._groups = groups
        self._taken = [_in_order(self._takes(nodes), graph.inputs) for nodes in groups]
        self._wanted = {*graph.outputs, *(v for taken in self._taken for v in taken)}

    def region(self, place: int, name: str) -> tuple[Graph, list[Value], list[Value]]:
        """Cut a group out as a graph of its own; also give the values it takes and makes.

        A size that its nodes mention and none of its inputs tells comes in through a further
        input, a value of the graph that has this size as a dim.
        """
        nodes, taken = self._groups[place], self._taken[place]
        made = [v for node in nodes for v in node.outputs if v in self._wanted]
        made = _in_order(made, self._graph.outputs)
        inputs = [Value(value.type, f"input{i}") for i, value in enumerate(taken)]
        rebuild = Rebuild(Graph([], made, nodes, name=name))
        rebuild.stand_in(taken, inputs)
        for node in nodes:
            rebuild.replace(node, rebuild.copied(node).outputs)
        outputs = [rebuild.value(value) for value in made]
        names = [f"output{i}" for i in range(len(outputs))]
        return Graph(inputs, outputs, name=name, output_names=names), taken, made

    def _takes(self, nodes: Sequence[Node]) -> list[Value]:
        """List what a group uses from around it, and what tells it sizes."""
        inside = set(nodes)
        operands = (value for node in nodes for value in node.operands)
        taken = [v for v in operands if v.constant is None and v.node not in inside]
        taken = list(dict.fromkeys(taken))
        return taken + self._carriers(nodes, inside, taken)

    def _carriers(
        self, nodes: Sequence[Node], inside: set[Node], taken: Sequence[Value]
    ) -> list[Value]:
        """Find values whose shapes tell the sizes that the taken ones do not."""
        mentioned = {symbol for node in nodes for symbol in _mentioned(node)}
        missing = {s for s in mentioned - _told(taken) if self._makers.get(s) not in inside}
        carriers: list[Value] = []
        for symbol in sorted(missing, key=lambda s: s.key):
            maker = self._makers.get(symbol)
            known = self._graph.inputs if maker is None else maker.outputs
            tells = [value for value in known if symbol in _told([value])]
            if tells and tells[0] not in carriers:
                carriers.append(tells[0])
        return carriers


def _in_order(values: Sequence[Value], edge: Sequence[Value]) -> list[Value]:
    """Put values as they lie at an edge of the graph: one region then takes or gives all of it."""
    places = {value: place for place, value in reversed(list(enumerate(edge)))}
    return sorted(values, key=lambda value: places.get(value, len(places)))


def _mentioned(node: Node) -> Iterator[Symbol]:
    """List the sizes that a node names."""
    for attr in node.attrs.values():
        yield from attr_symbols(attr)
    for type_ in node.types:
        yield from type_symbols(type_)


def _makers(graph: Graph) -> dict[Symbol, Node]:
    """Map unbacked symbols to the nodes that tell them."""
    makers: dict[Symbol, Node] = {}
    for node in graph.nodes:
        for type_ in node.types:
            for symbol in type_symbols(type_):
                if symbol.unbacked:
                    makers.setdefault(symbol, node)
    return makers


def _told(values: Sequence[Value]) -> set[Symbol]:
    """List the symbols that shapes progress: those that stand alone as a dim."""
    types = [v.type for v in values if isinstance(v.type, TensorType)]
    alone = (lone_symbol(dim) for type_ in types for dim in type_.shape)
    return {symbol for symbol in alone if symbol is not None}
