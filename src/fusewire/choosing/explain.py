"""Explain why a program runs as it does: the claims, the verdicts, and where each node runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusewire.contract.backend import DEVICE_NODES, HOST_NODES
from fusewire.ir.graph import Graph, Node, Value
from fusewire.plan.finite import LOST_INSIDE
from fusewire.plan.guards import Guard
from fusewire.plan.plan import FUNCTION, Plan
from fusewire.planning.planner import Planned
from fusewire.planning.work import works
from fusewire.records.entries import BuiltRegion
from fusewire.records.plans import SavedPlan
from fusewire.show.contact import Contacted
from fusewire.show.why import (
    Expanded,
    FailedCalls,
    NodeVerdict,
    NodeWhy,
    PortWhy,
    RegionWhy,
    Tried,
    Why,
)
from fusewire.trials.build import BuildTarget, PlanBuilder


@dataclass(frozen=True)
class Explanation:
    """What planning and first contact showed, kept until the user asks.

    ``saved`` returns the plan with all that a warm start needs.
    """

    planned: Planned
    builder: PlanBuilder
    notes: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    saved: Callable[[], SavedPlan] | None = None

    @property
    def plan(self) -> Plan:
        """The plan to explain."""
        return self.planned.plan

    def why(self) -> Why:
        """Explain every node, region and contact."""
        names = dict(_region_names(self.planned, ""))
        built = list(self.builder.contacts)
        contacts = tuple(self._contacted(region, names) for region in built)
        return Why(
            self._engine_names(),
            self._device(),
            self.builder.policy,
            tuple(_nodes(self.planned, "", "", _by_target(self.tried))),
            tuple(_regions(self.planned, "")),
            tuple(dict.fromkeys(_expanded(self.planned))),
            contacts,
            (*self.notes, *_left_to_host(self._device(), contacts), *self._losses()),
            self.tried,
            tuple(self._failures(names)),
            tuple(guard.sentence() for guard in _guards(self.planned.plan)),
            self.planned.plan.crossings(),
            *_ports(self.planned.plan.graph),
            self.planned.plan.host_bytes(),
        )

    def _engines(self) -> list[BuildTarget]:
        """List the targets that run regions, the first target if none does."""
        used = {region.backend for region in self.plan.regions()}
        targets = (self.builder.first, *self.builder.others)
        return [target for target in targets if target.name in used] or [self.builder.first]

    def _engine_names(self) -> str:
        return " + ".join(target.name for target in self._engines())

    def _device(self) -> str:
        return self._engines()[0].target.device.id

    def _losses(self) -> Iterator[str]:
        """Say so if an engine runs nodes of its own that may lose NaN."""
        if any(map(self.builder.may_lose_nan, self.plan.regions())):
            yield LOST_INSIDE

    def _failures(self, names: Mapping[Graph, str]) -> Iterator[FailedCalls]:
        for region, recovery in list(self.builder.recoveries):
            yield FailedCalls(
                names.get(region.graph, region.graph.name),
                region.backend,
                recovery.by_caller,
                recovery.by_engine,
                recovery.rests,
                recovery.recoveries,
                recovery.resting > 0,
                recovery.reason,
            )

    def _contacted(self, built: BuiltRegion, names: Mapping[Graph, str]) -> Contacted:
        graph, cache, records = built.region.graph, built.contacted.cache, self.builder.records
        if cache == "miss" and built.key is not None and records is not None:
            cache = records.why_missed(built.key)
        return replace(built.contacted, region=names.get(graph, graph.name), cache=cache)


@dataclass(frozen=True)
class FunctionExplanation:
    """What is known of a program that runs the user's own function.

    ``rejected`` explains the best plan, which is not used.
    """

    rejected: Explanation

    @property
    def plan(self) -> Plan:
        """The best plan, which is not used."""
        return self.rejected.plan

    def why(self) -> Why:
        """Explain that every node is part of the function."""
        why = self.rejected.why()
        nodes = tuple(replace(node, backend=FUNCTION, region=FUNCTION) for node in why.nodes)
        region = RegionWhy(FUNCTION, FUNCTION, "cpu", "dynamic", len(self.plan.graph.nodes))
        return replace(
            why,
            backend=FUNCTION,
            device="cpu",
            nodes=nodes,
            regions=(region,),
            expanded=(),
            contacts=(self._contacted(),),
            failures=(),
            guards=(),
            notes=tuple(note for note in why.notes if note != LOST_INSIDE),
        )

    def _contacted(self) -> Contacted:
        """Say that the function, which nothing has to build, is ready."""
        types = tuple(str(value.type) for value in self.plan.graph.inputs)
        return Contacted(FUNCTION, FUNCTION, types, "ready", FUNCTION, is_isolated=False)


def _left_to_host(device: str, contacts: Sequence[Contacted]) -> Iterator[str]:
    """Say how many nodes of its own graph an engine does not run on the device."""
    for contact in contacts:
        count = round(contact.metrics.get(HOST_NODES, 0))
        if count:
            total = count + round(contact.metrics.get(DEVICE_NODES, 0))
            yield (
                f"{contact.backend} leaves {count} of its {total} nodes of {contact.region} to the "
                f"processor: {device} does not run them."
            )


def _guards(plan: Plan) -> Iterator[Guard]:
    """Yield the guards of a plan and of its bodies, in the order in which they are checked."""
    yield from plan.guards
    for step in plan.steps:
        yield from step.guards
        for body in step.bodies.values():
            yield from _guards(body)


def _bodies(planned: Planned) -> Iterator[tuple[int, int, str, Planned]]:
    """Yield the bodies, each with the place and the step of the node around it."""
    for place, node in enumerate(planned.plan.graph.nodes):
        step = planned.steps[node]
        for key, body in planned.bodies.get(step, {}).items():
            yield place, step, key, body


def _region_names(planned: Planned, prefix: str) -> Iterator[tuple[Graph, str]]:
    """Yield the graphs of all regions with their names, prefixed for those in bodies."""
    for step in planned.plan.steps:
        yield step.region.graph, prefix + step.region.graph.name
    for _, number, key, body in _bodies(planned):
        yield from _region_names(body, f"{prefix}region{number}.{key}.")


def _regions(planned: Planned, prefix: str) -> Iterator[RegionWhy]:
    for step in planned.plan.steps:
        region = step.region
        name, count = prefix + region.graph.name, len(region.graph.nodes)
        yield RegionWhy(name, region.backend, region.device.id, region.shapes, count)
    for _, number, key, body in _bodies(planned):
        yield from _regions(body, f"{prefix}region{number}.{key}.")


def _by_target(tried: Sequence[Tried]) -> dict[tuple[str, str], Tried]:
    """Map each backend and device to its fastest candidate."""
    best: dict[tuple[str, str], Tried] = {}
    for candidate in tried:
        target = candidate.backend, candidate.device
        known = best.get(target)
        if known is None or (candidate.seconds or math.inf) < (known.seconds or math.inf):
            best[target] = candidate
    return best


class _Operands:
    """Says where the values of a graph come from."""

    def __init__(self, graph: Graph, prefix: str = "") -> None:
        self._places = {node: f"{prefix}{place}" for place, node in enumerate(graph.nodes)}

    def shown(self, value: Value | None) -> str:
        """Name the node that computes a value, or the input that it is."""
        if value is None:
            return ""
        if value.constant is not None:
            return "constant"
        if value.node is None:
            return f"input {value.name or ''}"
        place = self._places[value.node]
        return f"{place}:{value.index}" if value.index else place


def _ports(graph: Graph) -> tuple[tuple[PortWhy, ...], tuple[PortWhy, ...]]:
    """List the inputs and the outputs of a graph."""
    inputs = tuple(PortWhy(value.name or "", str(value.type)) for value in graph.inputs)
    pairs, operand = zip(graph.output_names, graph.outputs, strict=True), _Operands(graph).shown
    return inputs, tuple(PortWhy(name, str(v.type), operand(v)) for name, v in pairs)


def _nodes(
    planned: Planned, place_prefix: str, region_prefix: str, tried: Mapping[tuple[str, str], Tried]
) -> Iterator[NodeWhy]:
    plan = planned.plan
    kinds = works(plan.graph)
    used = {region.backend: region.device.id for region in plan.regions()}
    operand = _Operands(plan.graph, place_prefix).shown
    for place, node in enumerate(plan.graph.nodes):
        region = plan.steps[planned.steps[node]].region
        yield NodeWhy(
            f"{place_prefix}{place}",
            node.op,
            tuple(map(str, node.types)),
            str(node.source or ""),
            kinds[node],
            region.backend,
            region_prefix + region.graph.name,
            tuple(_verdicts(planned, node, used, tried)),
            tuple(map(operand, node.inputs)),
        )
    for place, step, key, body in _bodies(planned):
        places, regions = f"{place_prefix}{place}.{key}.", f"{region_prefix}region{step}.{key}."
        yield from _nodes(body, places, regions, tried)


def _verdicts(
    planned: Planned,
    node: Node,
    used: Mapping[str, str],
    tried: Mapping[tuple[str, str], Tried],
) -> Iterator[NodeVerdict]:
    """List what each target says; ``used`` has the device of each backend of the plan."""
    for name, claimed in planned.claims.items():
        if node in claimed.shapes:
            yield _measured(NodeVerdict(name, True), tried.get((name, used.get(name, ""))))
        elif (refusal := claimed.refusals.get(node)) is not None:
            yield NodeVerdict(name, False, refusal.code, refusal.reason, refusal.suggestion)
    # Targets that are not in the plan have no claims; their trials are known.
    for (name, device), candidate in tried.items():
        if name not in planned.claims or used.get(name, device) != device:
            is_alone = sum(other == name for other, _ in tried) == 1
            is_offered = candidate.status != "refused"
            refused = () if is_offered else ("refused", candidate.reason)
            shown = name if is_alone else f"{name} ({device})"
            yield _measured(NodeVerdict(shown, is_offered, *refused), candidate)


def _measured(verdict: NodeVerdict, candidate: Tried | None) -> NodeVerdict:
    if candidate is None:
        return verdict
    return replace(
        verdict,
        status=candidate.status,
        seconds=candidate.seconds,
        error=candidate.error,
        cache=candidate.cache,
    )


def _expanded(planned: Planned) -> Iterator[Expanded]:
    for name, claimed in planned.claims.items():
        for op, reason in claimed.expanded.items():
            yield Expanded(name, op, reason)
    for _, _, _, body in _bodies(planned):
        yield from _expanded(body)
