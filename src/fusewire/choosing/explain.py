"""Say why a program runs as it does: what was said of each node, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusewire.ir.graph import Node
from fusewire.planning.planner import Planned
from fusewire.planning.work import works
from fusewire.records.remember import Made
from fusewire.runtime.plan import Region
from fusewire.runtime.why import Contacted, Expanded, NodeWhy, RegionWhy, Tried, Verdict, Why
from fusewire.trials.contact import Maker


@dataclass(frozen=True)
class Explanation:
    """Keeps what planning and first contact found out, until somebody asks."""

    planned: Planned
    maker: Maker
    notes: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()

    def why(self) -> Why:
        """Tell all of it."""
        names = dict(_region_names(self.planned, ""))
        contacts = tuple(self._contacted(made, names) for made in list(self.maker.contacts))
        home = self.maker.home
        return Why(
            home.name,
            home.device.id,
            self.maker.fallback,
            tuple(_nodes(self.planned, "", "", _by_backend(self.tried))),
            tuple(_region(region, name) for region, name in names.items()),
            tuple(dict.fromkeys(_expanded(self.planned))),
            contacts,
            self.notes,
            self.tried,
        )

    def _contacted(self, made: Made, names: Mapping[Region, str]) -> Contacted:
        region, cache, memory = made.outline.region, made.contacted.cache, self.maker.memory
        if cache == "miss" and made.key is not None and memory is not None:
            cache = memory.why_missed(made.key)
        return replace(made.contacted, region=names.get(region, region.graph.name), cache=cache)


def _bodies(planned: Planned) -> Iterator[tuple[int, int, str, Planned]]:
    """Yield the bodies with the place and the step of the node around them."""
    for place, node in enumerate(planned.plan.graph.nodes):
        step = planned.steps[node]
        for key, body in planned.bodies.get(step, {}).items():
            yield place, step, key, body


def _region_names(planned: Planned, prefix: str) -> Iterator[tuple[Region, str]]:
    for step in planned.plan.steps:
        yield step.region, prefix + step.region.graph.name
    for _, number, key, body in _bodies(planned):
        yield from _region_names(body, f"{prefix}region{number}.{key}.")


def _region(region: Region, name: str) -> RegionWhy:
    return RegionWhy(name, region.backend, region.device.id, region.shapes, len(region.graph.nodes))


def _by_backend(tried: Sequence[Tried]) -> dict[str, Tried]:
    """Find the best way of each backend."""
    best: dict[str, Tried] = {}
    for way in tried:
        known = best.get(way.backend)
        if known is None or (way.seconds or math.inf) < (known.seconds or math.inf):
            best[way.backend] = way
    return best


def _nodes(
    planned: Planned, place_prefix: str, region_prefix: str, tried: Mapping[str, Tried]
) -> Iterator[NodeWhy]:
    plan = planned.plan
    kinds = works(plan.graph)
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
            tuple(_verdicts(planned, node, tried)),
        )
    for place, step, key, body in _bodies(planned):
        places, regions = f"{place_prefix}{place}.{key}.", f"{region_prefix}region{step}.{key}."
        yield from _nodes(body, places, regions, tried)


def _verdicts(planned: Planned, node: Node, tried: Mapping[str, Tried]) -> Iterator[Verdict]:
    for name, said in planned.claims.items():
        if node in said.shapes:
            yield _measured(Verdict(name, True), tried.get(name))
        elif (refusal := said.refusals.get(node)) is not None:
            yield Verdict(name, False, refusal.code, refusal.reason, refusal.suggestion)
    # Of those that are not in the plan, all is known that was found when they were tried.
    for name, way in tried.items():
        if name not in planned.claims:
            is_offered = way.status != "refused"
            refused = () if is_offered else ("refused", way.reason)
            yield _measured(Verdict(name, is_offered, *refused), way)


def _measured(verdict: Verdict, way: Tried | None) -> Verdict:
    if way is None:
        return verdict
    return replace(
        verdict, status=way.status, seconds=way.seconds, error=way.error, cache=way.cache
    )


def _expanded(planned: Planned) -> Iterator[Expanded]:
    for name, said in planned.claims.items():
        for op, reason in said.expanded.items():
            yield Expanded(name, op, reason)
    for _, _, _, body in _bodies(planned):
        yield from _expanded(body)
