"""Assign the nodes of a graph to targets: each to the first, in their order, that takes it.

What a target refuses is asked of it again in simpler ops, and then of the next target. A composite
of which a target would take only some parts goes to a later target that takes it whole: each cut
hands tensors over. The fallback takes what is left, in one piece or another.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.contract.backend import Shapes
from fusewire.errors import EngineError
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import type_symbols
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.planning.bounds import unbounded
from fusewire.planning.claims import Claimed, answers, ask_safely
from fusewire.planning.guards import Need, needy_nodes
from fusewire.planning.target import Target
from fusewire.planning.work import works


class Assignment:
    """Which target runs each node of a graph, and in what form the graph is then.

    ``chosen`` maps nodes to names of targets, None for the host; nodes that nobody took are
    missing. ``claims`` has what each target that was asked said of this graph.
    """

    def __init__(
        self, graph: Graph, targets: Sequence[Target], fallback: Target | None = None
    ) -> None:
        self.graph = graph
        self.claims: dict[str, Claimed] = {}
        self.chosen: dict[Node, str | None] = {}
        self.shapes: dict[Node, Shapes] = {}
        first, *others = targets
        self._first_asked(first, [x for x in others if fallback is None or x.name != fallback.name])
        if fallback is not None and fallback.name != first.name:
            self._keep_unbounded(fallback)
        self._take(first, runs_control=True)
        for target in others:
            if not self.missing():
                break
            self._ask(target)
            self._take(target, runs_control=fallback is None or target.name != fallback.name)

    def missing(self) -> list[Node]:
        """List the nodes that nobody has taken."""
        return [node for node in self.graph.nodes if node not in self.chosen]

    @property
    def needs(self) -> Sequence[Need]:
        """What composites required that were expanded, for any of the targets."""
        first, *others = self.claims.values()
        # Those of others are of what the first left whole.
        return [*first.needs, *(need for claimed in others for need in claimed.needs)]

    def value(self, given: Value) -> Value:
        """Return the value of this graph for one of the graph as it was given."""
        return next(iter(self.claims.values())).value(given)

    def _first_asked(self, first: Target, engines: Sequence[Target]) -> None:
        """Ask the first target; what others run whole, and it only in part, is not expanded."""
        claimed = ask_safely(first, self.graph)
        partly = _partly_taken(claimed) if engines and claimed.fault is None else set()
        if partly:
            whole = {node for target in engines for node in partly & _taken(target, self.graph)}
            claimed = ask_safely(first, self.graph, whole) if whole else claimed
        self.graph, self.claims[first.name] = claimed.graph, claimed

    def _ask(self, target: Target) -> None:
        """Ask another target for what is missing; what others run stays as it is."""
        claimed = ask_safely(target, self.graph, self.chosen)
        if claimed.graph is not self.graph:
            pairs = [(node, claimed.origin(node)) for node in claimed.graph.nodes]
            self.chosen = {node: self.chosen[old] for node, old in pairs if old in self.chosen}
            self.shapes = {node: self.shapes[old] for node, old in pairs if old in self.shapes}
            self.claims = {name: known.moved(claimed) for name, known in self.claims.items()}
            self.graph = claimed.graph
        self.claims[target.name] = claimed

    def _take(self, target: Target, *, runs_control: bool) -> None:
        claimed = self.claims[target.name]
        for node in self.missing():
            if node in claimed.shapes and _may_take(target, node, runs_control):
                self.chosen[node] = target.name
                self.shapes[node] = claimed.shapes[node]

    def _keep_unbounded(self, fallback: Target) -> None:
        """Keep on the host what asks for sizes or rounds without a bound, whoever offers it."""
        for node in unbounded(self.graph):
            is_control = get_op(node.op).is_(Trait.CONTROL)
            self.chosen[node] = None if is_control else fallback.name
            self.shapes[node] = "dynamic"


def _partly_taken(claimed: Claimed) -> set[Node]:
    """List what was expanded and is still refused in part, as far as it computes data."""
    kinds = works(claimed.graph) if claimed.origins else {}
    return {
        claimed.origin(node)
        for node in claimed.refusals
        if node in claimed.origins and kinds[node] == "data" and node.op != claimed.origin(node).op
    }


def _taken(target: Target, graph: Graph) -> set[Node]:
    """List the nodes that a target takes as they are; none if it does not answer."""
    try:
        return set(answers(target, graph)[0])
    except EngineError:
        return set()


def _may_take(target: Target, node: Node, runs_control: bool) -> bool:
    """Tell whether a target may run a node that it offers.

    The fallback does not run control flow, of whose bodies others may take nodes. In bodies,
    nothing can be checked between two nodes.
    """
    if not get_op(node.op).is_(Trait.CONTROL):
        return True
    return runs_control and all(checks(target, inner) for inner in needy_nodes(node))


def checks(target: Target | None, node: Node) -> bool:
    """Tell whether an engine finds what a node does not allow; None is the host."""
    return target is None or target.backend.info.checks(node.op)


def taken_whole(target: Target, graph: Graph, instead_of: Target) -> Shapes | None:
    """Tell whether a target can run a region in the place of another, and for which sizes.

    A plan checks what the engine of a region does not check by itself, and no more.
    """
    try:
        shapes, refusals = answers(target, graph)
    except EngineError:
        return None
    if refusals or not all(_checks_as_much(target, instead_of, node) for node in graph.nodes):
        return None
    is_dynamic = all(found == "dynamic" for found in shapes.values())
    has_symbols = any(True for value in graph.inputs for _ in type_symbols(value.type))
    return "dynamic" if is_dynamic else None if has_symbols else "static"


def _checks_as_much(target: Target, other: Target, node: Node) -> bool:
    inner = [part for _, body in node.graphs() for part in body.nodes]
    is_enough = checks(target, node) or not checks(other, node) or not get_op(node.op).requires
    return is_enough and all(_checks_as_much(target, other, part) for part in inner)
