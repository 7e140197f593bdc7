"""What a backend says to a graph: offers and refusals, composites expanded where that helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusewire.contract.backend import Backend, Device, Offer, Refusal, Shapes
from fusewire.errors import EngineError
from fusewire.ir.graph import Graph, Node
from fusewire.ops.decompose import GRADES
from fusewire.ops.table import get_op
from fusewire.process import isolate
from fusewire.process.guard import BY_CODE, described, guarded, refusal
from fusewire.process.limits import ChildLimits
from fusewire.rewrite.expand import replace_nodes


@dataclass(frozen=True)
class Home:
    """A backend and the device it is to run on.

    With a ``reference`` it is asked in a child process, without one in this process.
    """

    backend: Backend
    device: Device
    reference: str | None = None
    limits: ChildLimits = field(default_factory=ChildLimits)

    @property
    def name(self) -> str:
        return self.backend.info.name

    def claim(self, graph: Graph) -> Sequence[Offer | Refusal]:
        """Ask what of a graph it would run; raises EngineError if there is no answer."""
        if self.reference is None:
            return guarded(self.name, "claim", described(graph), self._claim, graph)
        answers = isolate.claim(self.reference, graph, self.device, self.limits)
        for answer in answers:
            if isinstance(answer, Refusal) and (kind := BY_CODE.get(answer.code)):
                raise kind(answer.reason, answer.suggestion)
        return answers

    def _claim(self, graph: Graph) -> Sequence[Offer | Refusal]:
        answers, count = self.backend.claim(graph, self.device), len(graph.nodes)
        if any(place not in range(count) for answer in answers for place in answer.nodes):
            raise ValueError(f"nodes outside of the {count} of the graph")
        return answers


@dataclass(frozen=True)
class Claimed:
    """A graph as one backend would run it, what it offers of it, and why not the rest.

    ``refusals`` are about nodes of this graph; ``expanded`` tells of composites that were refused
    whole, by their op, with the first reason. ``fault`` is what it did instead of answering.
    """

    graph: Graph
    shapes: Mapping[Node, Shapes]
    refusals: Mapping[Node, Refusal]
    expanded: Mapping[str, str]
    fault: EngineError | None = None

    def takes_all(self) -> bool:
        """Tell whether nothing is left over."""
        return not self.refusals


def ask(home: Home, graph: Graph) -> Claimed:
    """Ask for a whole graph; give what is refused back in simpler ops, as far as that helps.

    A node that is neither offered nor refused counts as refused. EngineError if it cannot answer.
    """
    expanded: dict[str, str] = {}
    while True:
        shapes, refusals = _answers(home, graph)
        meanings = {node: parts for node in refusals if (parts := _simpler(home, node))}
        if not meanings:
            return Claimed(graph, shapes, refusals, expanded)
        for node in meanings:
            expanded.setdefault(node.op, refusals[node].reason)
        graph = replace_nodes(graph, meanings)


def _simpler(home: Home, node: Node) -> Graph | None:
    """Give a refused composite as its expansion; a primitive in parts that are all taken."""
    op = get_op(node.op)
    if op.is_composite:
        return op.expansion(node)
    for grade in GRADES:
        parts = op.decomposition(node, grade)
        if parts is not None and (claimed := ask(home, parts)).takes_all():
            return claimed.graph
    return None


def ask_calmly(home: Home, graph: Graph) -> Claimed:
    """Ask for a whole graph; one that cannot answer has refused all of it."""
    try:
        return ask(home, graph)
    except EngineError as error:
        whole = refusal(error, graph)
        return Claimed(graph, {}, dict.fromkeys(graph.nodes, whole), {}, error)


def _answers(home: Home, graph: Graph) -> tuple[dict[Node, Shapes], dict[Node, Refusal]]:
    shapes: dict[Node, Shapes] = {}
    refusals: dict[Node, Refusal] = {}
    for answer in home.claim(graph):
        for place in answer.nodes:
            node = graph.nodes[place]
            if isinstance(answer, Offer):
                shapes.setdefault(node, answer.shapes)
            else:
                refusals.setdefault(node, answer)
    silent = "it was neither offered nor refused."
    for place, node in enumerate(graph.nodes):
        if node not in shapes and node not in refusals:
            refusals[node] = Refusal((place,), "silent", f"{home.name}: {silent}")
    return shapes, {node: why for node, why in refusals.items() if node not in shapes}
