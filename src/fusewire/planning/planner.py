"""Make a plan from claims: backends in order, the fallback for the rest, the host for control."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusewire.contract.backend import Device, Shapes
from fusewire.contract.devices import CPU, DeviceName
from fusewire.errors import EngineError, RefusedError
from fusewire.facts.bounds import peaks, unbounded
from fusewire.facts.steady import steady_places
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import type_symbols
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.options import FALLBACK
from fusewire.plan.guards import Guard
from fusewire.plan.plan import HOST, INTERPRETED, Plan, Region, Step
from fusewire.planning.claims import Claimed, answers, ask_safely
from fusewire.planning.guards import (
    Guarding,
    Need,
    Viewed,
    guard_of,
    guarding,
    needy_nodes,
    sizes_in,
)
from fusewire.planning.partition import Cutter, partition
from fusewire.planning.target import Target
from fusewire.planning.work import works

HOST_DEVICE = Device("cpu", "the host")
# A region, the values that it takes and those that it makes.
RegionEdges: TypeAlias = tuple[Region, list[Value], list[Value]]


@dataclass(frozen=True)
class Planned:
    """A plan, and the claims that it was made from.

    ``steps`` maps a node to its step; ``bodies`` has the plans of control-flow bodies by step.
    """

    plan: Plan
    claims: Mapping[str, Claimed]
    steps: Mapping[Node, int]
    bodies: Mapping[int, Mapping[str, Planned]]

    def warnings(self) -> list[str]:
        """Say which nodes run on none of the requested backends, if any."""
        refused = self.fallback_nodes()
        if not refused:
            return []
        node, reason = next(iter(refused.items()))
        names = self.engine_names()
        not_on = f"do not run on {names[0]}" if len(names) == 1 else f"run on none of {_and(names)}"
        return [
            f"{len(refused)} of {len(self.plan.graph.nodes)} nodes {not_on} and run on {FALLBACK}, "
            f"in {len(self.plan.steps)} regions. The first is {node!r}: {reason} "
            "Use fallback='allow' to accept this, or 'error' to refuse it."
        ]

    def engine_names(self) -> list[str]:
        """List the backends that were asked for nodes, in order, without the fallback."""
        first, *others = self.claims
        return [first, *(name for name in others if name != FALLBACK)]

    def refused_nodes(self) -> dict[Node, str]:
        """Map the nodes on data that the first backend refuses to its reasons."""
        first = next(iter(self.claims.values()))
        if not first.refusals:
            return {}
        kinds = works(self.plan.graph)
        return {n: why.reason for n, why in first.refusals.items() if kinds[n] == "data"}

    def fallback_nodes(self) -> dict[Node, str]:
        """Map the nodes on data that no backend takes to the reasons of all of them."""
        names = self.engine_names()
        return {
            node: " ".join(
                dict.fromkeys(
                    self.claims[name].refusals[node].reason
                    for name in names
                    if node in self.claims[name].refusals
                )
            )
            for node in self.refused_nodes()
            if self.backend_of(node) == FALLBACK
        }

    def backend_of(self, node: Node) -> str:
        """Name the backend that runs a node of the plan's graph."""
        return self.plan.steps[self.steps[node]].region.backend


def make_plan(
    graph: Graph,
    targets: Sequence[Target],
    fallback: Target | None = None,
) -> Planned:
    """Assign each node to the first target that takes it.

    Of the rest, the host drives control flow, whose bodies have plans of their own, and the
    ``fallback`` target computes sizes; both run what has no bound. RefusedError if a node is left.
    """
    assigned = Assignment(graph, targets, fallback)
    chosen, claims = assigned.chosen, assigned.claims
    _leave_to_host(assigned, fallback)
    _check_complete(assigned.graph, chosen, claims)
    # A backend that did not answer is not asked again for the bodies.
    order = [x for x in targets if x.name not in claims or claims[x.name].fault is None]
    known = {target.name: target for target in (*targets, *([fallback] if fallback else ()))}
    guards = guarding(
        graph, assigned, lambda node, need: finds(known.get(chosen[node] or ""), node, need)
    )
    for node in guards.declined if fallback is not None else ():
        chosen[node], assigned.shapes[node] = FALLBACK, "dynamic"
    assembly = _Assembly(assigned.graph, known, chosen, assigned.shapes, guards)
    bodies = {
        step: {key: make_plan(body, order or targets, fallback) for key, body in node.graphs()}
        for node, step in assembly.steps.items()
        if chosen[node] is None
    }
    return Planned(assembly.plan(bodies), claims, assembly.steps, bodies)


def _leave_to_host(assigned: Assignment, fallback: Target | None) -> None:
    left = assigned.missing()
    kinds = works(assigned.graph) if left else {}
    for node in left:
        # Backends may take nodes of a body, so the host drives control flow that they refuse.
        if kinds[node] == "control":
            assigned.chosen[node] = None
        elif kinds[node] == "shape" and fallback is not None:
            assigned.chosen[node] = fallback.name
            assigned.shapes[node] = "dynamic"


def _check_complete(
    graph: Graph, chosen: Mapping[Node, str | None], claims: Mapping[str, Claimed]
) -> None:
    left = [node for node in graph.nodes if node not in chosen]
    if not left:
        return
    node = left[0]
    reasons = [
        f"{name}: {claimed.refusals[node].reason}"
        for name, claimed in claims.items()
        if node in claimed.refusals
    ]
    where = f" ({node.source})" if node.source else ""
    raise RefusedError(
        f"{len(left)} of {len(graph.nodes)} nodes run on none of {', '.join(claims)}. The first is "
        f"{node!r}{where}. {' '.join(reasons)} Allow fallback='warn', or choose another backend."
    )


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


class Assignment:
    """Which target runs each node of a graph, and in what form the graph is then.

    Each goes to the first, in their order, that takes it. What a target refuses is asked of it
    again in simpler ops, and then of the next target. A composite of which a target would take only
    some parts goes to a later target that takes it whole: each cut hands tensors over. The fallback
    takes what is left, in one piece or another.

    ``chosen`` maps nodes to names of targets, None for the host; nodes that nobody took are
    missing. ``claims`` has what each target that was asked said of this graph.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Target],
        fallback: Target | None = None,
    ) -> None:
        self.graph = graph
        self.claims: dict[str, Claimed] = {}
        self.chosen: dict[Node, str | None] = {}
        self.shapes: dict[Node, Shapes] = {}
        first, *others = targets
        engines = [x for x in others if fallback is None or x.name != fallback.name]
        self._first_asked(first, engines)
        if fallback is not None and fallback.name != first.name:
            self._keep_unbounded(fallback)
        self._take(first, self.missing(), runs_control=True)
        for target in others:
            if not self.missing():
                break
            if target.name not in self.claims:
                self._ask(target, self.chosen)
            is_last = fallback is not None and target.name == fallback.name
            self._take(target, self.missing(), runs_control=not is_last)

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

    def _ask(self, target: Target, kept: Collection[Node]) -> None:
        """Ask another target; what others run stays as it is."""
        claimed = ask_safely(target, self.graph, kept)
        if claimed.graph is not self.graph:
            pairs = [(node, claimed.origin(node)) for node in claimed.graph.nodes]
            self.chosen = {node: self.chosen[old] for node, old in pairs if old in self.chosen}
            self.shapes = {node: self.shapes[old] for node, old in pairs if old in self.shapes}
            self.claims = {name: known.moved(claimed) for name, known in self.claims.items()}
            self.graph = claimed.graph
        self.claims[target.name] = claimed

    def _take(self, target: Target, nodes: Iterable[Node], *, runs_control: bool) -> None:
        claimed = self.claims[target.name]
        for node in nodes:
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
    """Tell whether an engine finds what a node does not allow; None is the host.

    Only an engine's own CPU is believed to: kernels of a GPU go on with what is there, or stop the
    whole device, and a provider's are not the engine's.
    """
    if target is None:
        return True
    name = DeviceName.of(target.device.id)
    is_own = name.kind == CPU and not name.provider
    return is_own and target.backend.info.checks(node.op)


def finds(target: Target | None, node: Node, need: Need) -> bool:
    """Tell whether an engine finds what a need forbids: of usual ones what it checks.

    Only the reference looks at the order of elements, and whether they are finite.
    """
    is_reference = target is None or target.name == FALLBACK
    return checks(target, node) and (need.is_usual or is_reference)


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


class _Assembly:
    """Numbers the values of a run and cuts out the regions."""

    def __init__(
        self,
        graph: Graph,
        targets: Mapping[str, Target],
        chosen: Mapping[Node, str | None],
        shapes: Mapping[Node, Shapes],
        guards: Guarding,
    ) -> None:
        self._graph = graph
        self._guards = guards
        self._targets = targets
        self._shapes = shapes
        self._groups = partition(graph, chosen, guards.boundaries)
        self.steps = {n: step for step, (_, nodes) in enumerate(self._groups) for n in nodes}
        self._places: dict[Value, int] = {v: i for i, v in enumerate(graph.inputs)}
        outputs = [v for v in graph.outputs if v.constant is not None]
        self._constants = list(dict.fromkeys((*guards.constants, *outputs)))
        for value in self._constants:
            self._places[value] = len(self._places)

    def plan(self, bodies: Mapping[int, Mapping[str, Planned]]) -> Plan:
        edges: list[RegionEdges] = []
        cutter = Cutter(self._graph, [nodes for _, nodes in self._groups])
        for place, (name, nodes) in enumerate(self._groups):
            assert name is None or isinstance(name, str)
            subgraph, takes, makes = cutter.region(place, f"region{place}")
            for value in makes:
                self._places[value] = len(self._places)
            edges.append((self._region(name, nodes, subgraph), takes, makes))
        frees, checked = self._frees(edges), self._step_guards(edges)
        steps = [
            Step(
                region,
                tuple(self._places[v] for v in takes),
                tuple(self._places[v] for v in makes),
                tuple(self._places[v] for v in frees[index]),
                {key: planned.plan for key, planned in bodies.get(index, {}).items()},
                tuple(checked[index]),
                () if region.backend in INTERPRETED else peaks(region.graph),
            )
            for index, (region, takes, makes) in enumerate(edges)
        ]
        constants = tuple(v.constant.array for v in self._constants if v.constant is not None)
        outputs = tuple(self._places[v] for v in self._graph.outputs)
        count, places = len(self._graph.inputs), len(self._places)
        entry = self._guards.entry
        load = lambda: self._graph  # noqa: E731 - a plan that was read has a function here
        steady = steady_places(self._graph)
        return Plan(count, tuple(steps), constants, outputs, places, load, entry, steady)

    def _step_guards(self, edges: Sequence[RegionEdges]) -> list[list[Guard]]:
        """List for each step what is checked of the values that it takes.

        The first step that takes a value checks it, for all that follow, if the sizes are known.
        """
        guards: list[list[Guard]] = [[] for _ in edges]
        inputs = {value: self._places[value] for value in self._graph.inputs}
        known = [
            sizes_in({**inputs, **{value: self._places[value] for value in takes}})
            for _, takes, _ in edges
        ]
        for need in self._guards.computed:
            users = [i for i, (_, takes, _) in enumerate(edges) if need.value in takes]
            # No step takes a constant.
            own = [] if need.node is None else [self.steps[need.node]]
            for index in (*users, *own):
                place = self._places[need.value]
                guard = guard_of(need, Viewed(need.value), place, known[index])
                if guard is not None:
                    guards[index].append(guard)
                    break
            else:
                assert not users, "regions are cut where the sizes are known"
        return guards

    def _frees(self, edges: Sequence[RegionEdges]) -> list[list[Value]]:
        """List for each step the values that no later step needs."""
        last = {v: index for index, (_, takes, makes) in enumerate(edges) for v in (*takes, *makes)}
        kept = {*self._graph.outputs, *self._graph.inputs}
        frees: list[list[Value]] = [[] for _ in edges]
        for value, index in last.items():
            if value not in kept:
                frees[index].append(value)
        return frees

    def _region(self, name: str | None, nodes: Sequence[Node], graph: Graph) -> Region:
        if name is None:
            return Region.of(graph, HOST, HOST_DEVICE, "dynamic")
        static = any(self._shapes[node] != "dynamic" for node in nodes)
        return Region.of(graph, name, self._targets[name].device, "static" if static else "dynamic")
