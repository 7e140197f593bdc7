"""What the page shows, as data small enough to be part of it.

Nodes refer to engines, regions and verdicts by number: thousands of nodes share a few of each.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from fusewire.errors import visible
from fusewire.show.changes import PlanChange, engines_of
from fusewire.show.grouping import grouping
from fusewire.show.palette import colours, text_colour
from fusewire.show.report import summary
from fusewire.show.texts import by_use, reason_of, sources_of
from fusewire.show.timeline import Timeline
from fusewire.show.why import NodeVerdict, NodeWhy, PortWhy, Tried, Why

_Item = TypeVar("_Item", bound=Hashable)


class _Numbers(Generic[_Item]):
    """Numbers items in the order in which they are first met."""

    def __init__(self) -> None:
        self.items: dict[_Item, int] = {}

    def of(self, item: _Item) -> int:
        return self.items.setdefault(item, len(self.items))


class _Rows:
    """The nodes as rows of numbers, and what the numbers stand for."""

    def __init__(self, why: Why) -> None:
        self.engines, self.regions, self.texts = _Numbers[str](), _Numbers[str](), _Numbers[str]()
        self.verdicts = _Numbers[tuple[NodeVerdict, ...]]()
        for backend in by_use(why):
            self.engines.of(backend)
        self.places = {node.place: number for number, node in enumerate(why.nodes)}
        self.places |= {f"input {port.name}": -1 - i for i, port in enumerate(why.inputs)}
        self.nodes = [self._row(node) for node in why.nodes]

    def _row(self, node: NodeWhy) -> list[Any]:
        return [
            node.place,
            self.texts.of(node.op),
            self.texts.of(", ".join(node.types)),
            self.texts.of(node.source),
            self.engines.of(node.backend),
            self.regions.of(node.region),
            self.verdicts.of(node.verdicts),
            self.texts.of(node.work),
            [self.places[source] for source in sources_of(node) if source in self.places],
        ]

    def output(self, port: PortWhy) -> list[Any]:
        """Say what an output is called, and which node or input it is."""
        return [port.name, port.type, self.places.get(port.operand.partition(":")[0])]


def page_data(
    name: str, why: Why, timeline: Timeline | None, changes: Sequence[PlanChange]
) -> dict[str, Any]:
    """Collect everything that the page shows; texts of strangers have no control characters."""
    rows = _Rows(why)
    data = {
        "name": name,
        "summary": summary(why),
        "texts": [*rows.texts.items],
        "nodes": rows.nodes,
        "verdicts": [[_verdict(verdict) for verdict in row] for row in rows.verdicts.items],
        "regions": _regions(why, timeline, [*rows.regions.items], rows.engines),
        "engines": _engines(why, rows.engines.items),
        "groupings": _groupings(why.nodes),
        "inputs": [[port.name, port.type] for port in why.inputs],
        "outputs": [rows.output(port) for port in why.outputs],
        "race": [_candidate(row) for row in why.tried],
        "changes": [_change(change) for change in changes],
        "timeline": None if timeline is None else asdict(timeline),
        "notes": [*why.notes],
        "guards": len(why.guards),
        "crossings": why.crossings,
    }
    shown: dict[str, Any] = _visible(data)
    return shown


def _engines(why: Why, names: dict[str, int]) -> list[dict[str, Any]]:
    others = [engine for row in why.tried for engine in engines_of(row)]
    known = [*dict.fromkeys([*names, *others])]
    counts = {name: sum(node.backend == name for node in why.nodes) for name in known}
    return [
        {"name": name, "colour": colour, "ink": text_colour(colour), "nodes": counts[name]}
        for name, colour in colours(known).items()
    ]


def _regions(
    why: Why, timeline: Timeline | None, names: Sequence[str], engines: _Numbers[str]
) -> list[dict[str, Any]]:
    about = {region.name: region for region in why.regions}
    contacts = {contact.region: contact for contact in why.contacts}
    spans = {span.region: span for span in timeline.spans} if timeline is not None else {}
    rows = []
    for name in dict.fromkeys([*names, *about]):
        region, contact, span = about.get(name), contacts.get(name), spans.get(name)
        metrics = {} if contact is None else contact.metrics
        rows.append(
            {
                "name": name,
                "engine": engines.of(region.backend) if region is not None else -1,
                "device": "" if region is None else region.device,
                "nodes": 0 if region is None else region.nodes,
                "outcome": "" if contact is None else contact.outcome,
                "reason": "" if contact is None else contact.reason,
                "compile": metrics.get("compile_seconds"),
                "median": span and span.median,
                "low": span and span.low,
                "high": span and span.high,
            }
        )
    return rows


def _groupings(nodes: Sequence[NodeWhy]) -> dict[str, Any]:
    made = {
        "region": grouping(nodes, by_region=True),
        "block": grouping(nodes, by_region=False),
    }
    return {
        name: {
            "groups": [[group.label, group.kind, group.parent] for group in grouped.groups],
            "of": [*grouped.of_node],
        }
        for name, grouped in made.items()
    }


def _verdict(verdict: NodeVerdict) -> list[Any]:
    said = "takes it" if verdict.is_offered else verdict.code or "refused"
    times = verdict.seconds, verdict.error
    return [verdict.backend, said, verdict.status, *times, reason_of(verdict)]


def _candidate(row: Tried) -> dict[str, Any]:
    kept = ("name", "status", "reason", "seconds", "low", "high", "error", "compile_seconds")
    more = ("is_chosen", "is_reduced", "expected_error", "elsewhere_why", "cache")
    fields = {field: getattr(row, field) for field in (*kept, *more)}
    return {**fields, "engines": [*engines_of(row)]}


def _change(change: PlanChange) -> dict[str, Any]:
    return {
        **asdict(change),
        "sentence": change.sentence(),
        "is_within_noise": change.is_within_noise,
        "is_judged": change.is_judged,
    }


def _visible(data: Any) -> Any:
    """Replace characters that steer how text is shown, in everything that is text."""
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, dict):
        return {key: _visible(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [_visible(item) for item in data]
    # JSON has no infinity, which an error may be.
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
