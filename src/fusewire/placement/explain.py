"""Say why a program runs as it does: what was said of each node, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusewire.ir.graph import Node
from fusewire.placement.contact import Maker
from fusewire.placement.planner import Planned
from fusewire.placement.work import works
from fusewire.runtime.plan import Region
from fusewire.runtime.why import Expanded, NodeWhy, RegionWhy, Verdict, Why


@dataclass(frozen=True)
class Explanation:
    """Keeps what planning and first contact found out, until somebody asks."""

    planned: Planned
    maker: Maker
    notes: tuple[str, ...] = ()

    def why(self) -> Why:
        """Tell all of it."""
        names = dict(_region_names(self.planned, ""))
        contacts = tuple(
            replace(contacted, region=names.get(region, contacted.region))
            for region, contacted in list(self.maker.contacts)
        )
        home = self.maker.home
        return Why(
            home.name,
            home.device.id,
            self.maker.fallback,
            tuple(_nodes(self.planned, "", "")),
            tuple(_region(region, name) for region, name in names.items()),
            tuple(dict.fromkeys(_expanded(self.planned))),
            contacts,
            self.notes,
        )


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


def _nodes(planned: Planned, place_prefix: str, region_prefix: str) -> Iterator[NodeWhy]:
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
            tuple(_verdicts(planned, node)),
        )
    for place, step, key, body in _bodies(planned):
        yield from _nodes(
            body, f"{place_prefix}{place}.{key}.", f"{region_prefix}region{step}.{key}."
        )


def _verdicts(planned: Planned, node: Node) -> Iterator[Verdict]:
    for name, said in planned.claims.items():
        if node in said.shapes:
            yield Verdict(name, True)
        elif (refusal := said.refusals.get(node)) is not None:
            yield Verdict(name, False, refusal.code, refusal.reason, refusal.suggestion)


def _expanded(planned: Planned) -> Iterator[Expanded]:
    for name, said in planned.claims.items():
        for op, reason in said.expanded.items():
            yield Expanded(name, op, reason)
    for _, _, _, body in _bodies(planned):
        yield from _expanded(body)
