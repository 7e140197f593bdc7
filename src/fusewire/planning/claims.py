"""Ask a backend for a graph: offers and refusals, with composites expanded where that helps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fusewire.contract.backend import Offer, Refusal, Shapes
from fusewire.errors import EngineError
from fusewire.ir.builder import Rebuild
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ops.decompose import GRADES
from fusewire.ops.table import get_op
from fusewire.planning.guards import Need, expanded_needs
from fusewire.planning.target import Target
from fusewire.process.guard import refusal
from fusewire.rewrite.expand import with_meanings


@dataclass(frozen=True)
class Claimed:
    """A graph as one backend would run it, the nodes it offers, and why it refuses the rest.

    ``refusals`` are about nodes of this graph; ``expanded`` maps ops of composites that were
    refused whole to the first reason. ``fault`` is what the backend raised instead of answering.
    ``needs`` are what these composites required of their operands, ``rebuilds`` lead from the
    values of the graph that was asked about to those of this one, and ``origins`` from the nodes of
    this one back, where they differ.
    """

    graph: Graph
    shapes: Mapping[Node, Shapes]
    refusals: Mapping[Node, Refusal]
    expanded: Mapping[str, str]
    fault: EngineError | None = None
    needs: tuple[Need, ...] = ()
    rebuilds: tuple[Rebuild, ...] = ()
    origins: Mapping[Node, Node] = field(default_factory=dict)

    def origin(self, node: Node) -> Node:
        """Return the node that this one is, or is a part of, in the graph that was asked about."""
        return self.origins.get(node, node)

    def moved(self, later: Claimed) -> Claimed:
        """Say the same of a graph that another backend got expanded further."""
        if later.graph is self.graph:
            return self
        pairs = [(node, later.origin(node)) for node in later.graph.nodes]
        needs = self.needs
        for rebuild in later.rebuilds:
            needs = tuple(need.moved(rebuild) for need in needs)
        return Claimed(
            later.graph,
            {node: self.shapes[old] for node, old in pairs if old in self.shapes},
            {node: self.refusals[old] for node, old in pairs if old in self.refusals},
            self.expanded,
            self.fault,
            needs,
            (*self.rebuilds, *later.rebuilds),
            {node: self.origin(old) for node, old in pairs if self.origin(old) is not node},
        )

    def value(self, given: Value) -> Value:
        """Return the value of this graph for one of the graph that was asked about."""
        for rebuild in self.rebuilds:
            given = rebuild.value(given)
        return given

    def takes_all(self) -> bool:
        """Tell whether no node is refused."""
        return not self.refusals


def ask(target: Target, graph: Graph, kept: Collection[Node] = ()) -> Claimed:
    """Ask a target for a whole graph; refused nodes are asked for again in simpler ops.

    A node that is neither offered nor refused counts as refused. Those in ``kept`` are for others,
    and stay whole. Raises EngineError if the backend does not answer.
    """
    expanded: dict[str, str] = {}
    needs: list[Need] = []
    rebuilds: list[Rebuild] = []
    origins: dict[Node, Node] = {}
    simpler = _Simpler(target)
    whole = set(kept)
    while True:
        shapes, refusals = answers(target, graph)
        asked = [node for node in refusals if origins.get(node, node) not in whole]
        meanings = {node: parts for node in asked if (parts := simpler(node)) is not None}
        if not meanings:
            found = tuple(needs), tuple(rebuilds), origins
            return Claimed(graph, shapes, refusals, expanded, None, *found)
        for node in meanings:
            expanded.setdefault(node.op, refusals[node].reason)
        rebuild = with_meanings(graph, meanings)
        needs = [need.moved(rebuild) for need in (*needs, *expanded_needs(list(meanings)))]
        rebuilds.append(rebuild)
        steps = _origins(rebuild, meanings)
        origins = {n: at for n, old in steps if (at := origins.get(old, old)) is not n}
        graph = rebuild.finish()


def _origins(rebuild: Rebuild, expanded: Collection[Node]) -> Iterator[tuple[Node, Node]]:
    """Yield the nodes of the new graph, each with the one that it copies or is a part of."""
    known: set[Node] = set()
    for node in rebuild.graph.nodes:
        if node not in expanded and (copy := rebuild.value(node.outputs[0]).node) is not None:
            known.add(copy)
            yield copy, node
    # In order: what comes before a part is known, or a part of the same node.
    for node in rebuild.graph.nodes:
        waiting = [rebuild.value(value).node for value in node.outputs if node in expanded]
        while waiting:
            part = waiting.pop()
            if part is not None and part not in known:
                known.add(part)
                waiting += [value.node for value in part.operands]
                yield part, node


class _Simpler:
    """Gives refused nodes of one graph in simpler ops; asks a target once for nodes alike."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._decompositions: dict[str, Graph | None] = {}

    def __call__(self, node: Node) -> Graph | None:
        """Expand a composite; decompose a primitive if the target takes all parts."""
        op = get_op(node.op)
        if op.kept_whole is not None:
            return None
        if op.is_composite:
            return op.expansion(node)
        if op.decompose is None:
            return None
        types = ", ".join(str(value.type) for value in node.operands)
        key = f"{node.op}({types}) {dict(node.attrs)}"
        if key not in self._decompositions:
            self._decompositions[key] = self._decomposition(node)
        return self._decompositions[key]

    def _decomposition(self, node: Node) -> Graph | None:
        for grade in GRADES:
            parts = get_op(node.op).decomposition(node, grade)
            if parts is not None and (claimed := ask(self._target, parts)).takes_all():
                return claimed.graph
        return None


def ask_safely(target: Target, graph: Graph, kept: Collection[Node] = ()) -> Claimed:
    """Ask a target for a whole graph; a backend that does not answer refuses all of it."""
    try:
        return ask(target, graph, kept)
    except EngineError as error:
        whole = refusal(error, graph)
        return Claimed(graph, {}, dict.fromkeys(graph.nodes, whole), {}, error)


def _with_reason_to_keep(refusal: Refusal, node: Node) -> Refusal:
    """Say why a refused composite is not tried in simpler ops, if it is not."""
    why = get_op(node.op).kept_whole
    return refusal if why is None else replace(refusal, reason=f"{refusal.reason} Expanded, {why}")


def answers(target: Target, graph: Graph) -> tuple[dict[Node, Shapes], dict[Node, Refusal]]:
    """Ask a target for a graph as it is; EngineError if it does not answer."""
    shapes: dict[Node, Shapes] = {}
    refusals: dict[Node, Refusal] = {}
    for answer in target.claim(graph):
        for place in answer.nodes:
            node = graph.nodes[place]
            if isinstance(answer, Offer):
                shapes.setdefault(node, answer.shapes)
            else:
                refusals.setdefault(node, _with_reason_to_keep(answer, node))
    silent = "the node was neither offered nor refused."
    for place, node in enumerate(graph.nodes):
        if node not in shapes and node not in refusals:
            refusals[node] = Refusal((place,), "silent", f"{target.name}: {silent}")
    return shapes, {node: why for node, why in refusals.items() if node not in shapes}
