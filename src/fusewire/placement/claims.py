"""What a backend says to a graph: offers and refusals, composites expanded where that helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusewire.backend import Backend, Device, Offer, Refusal, Shapes
from fusewire.ir.builder import Rebuild, inline
from fusewire.ir.graph import Graph, Node
from fusewire.ops.table import get_op


@dataclass(frozen=True)
class Claimed:
    """A graph as one backend would run it, what it offers of it, and why not the rest.

    ``refusals`` are about nodes of this graph; ``expanded`` tells of composites that were refused
    whole, by their op, with the first reason.
    """

    graph: Graph
    shapes: Mapping[Node, Shapes]
    refusals: Mapping[Node, Refusal]
    expanded: Mapping[str, str]

    def takes_all(self) -> bool:
        """Tell whether nothing is left over."""
        return not self.refusals


def ask(backend: Backend, device: Device, graph: Graph) -> Claimed:
    """Ask for a whole graph; give refused composites back expanded until only primitives are left.

    A node that is neither offered nor refused counts as refused.
    """
    expanded: dict[str, str] = {}
    while True:
        shapes, refusals = _answers(backend, device, graph)
        composites = {node for node in refusals if get_op(node.op).is_composite}
        if not composites:
            return Claimed(graph, shapes, refusals, expanded)
        for node in composites:
            expanded.setdefault(node.op, refusals[node].reason)
        graph = expand(graph, composites)


def _answers(
    backend: Backend, device: Device, graph: Graph
) -> tuple[dict[Node, Shapes], dict[Node, Refusal]]:
    shapes: dict[Node, Shapes] = {}
    refusals: dict[Node, Refusal] = {}
    for answer in backend.claim(graph, device):
        for place in answer.nodes:
            node = graph.nodes[place]
            if isinstance(answer, Offer):
                shapes.setdefault(node, answer.shapes)
            else:
                refusals.setdefault(node, answer)
    silent = "it was neither offered nor refused."
    for place, node in enumerate(graph.nodes):
        if node not in shapes and node not in refusals:
            refusals[node] = Refusal((place,), "silent", f"{backend.info.name}: {silent}")
    return shapes, {node: refusal for node, refusal in refusals.items() if node not in shapes}


def expand(graph: Graph, nodes: set[Node]) -> Graph:
    """Replace composites by their expansions, one level deep."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        current = rebuild.copied(node)
        if node in nodes:
            meaning = get_op(node.op).expansion(node)
            rebuild.replace(node, inline(meaning, current.operands))
        else:
            rebuild.replace(node, current.outputs)
    return rebuild.finish()
