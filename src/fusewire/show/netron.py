"""Notes for the nodes of a model file: where each runs and why, as Netron shows metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.errors import visible
from fusewire.show.report import seconds
from fusewire.show.texts import reason_of
from fusewire.show.timeline import Timeline
from fusewire.show.why import NodeWhy, Why

# What a node gets of which the plan has nothing.
GONE = {"fusewire.engine": "none: computed while compiling, or part of another node"}


def node_notes(why: Why, timeline: Timeline | None) -> dict[str, dict[str, str]]:
    """Collect the notes of each node of the file, by the source that nodes of the plan name."""
    times = {} if timeline is None else {span.region: span.median for span in timeline.spans}
    nodes: dict[str, list[NodeWhy]] = {}
    for node in why.nodes:
        nodes.setdefault(node.source, []).append(node)
    return {source: _notes(parts, times) for source, parts in nodes.items() if source}


def _notes(parts: list[NodeWhy], times: Mapping[str, float]) -> dict[str, str]:
    notes = {
        "fusewire.engine": _listed(part.backend for part in parts),
        "fusewire.region": _listed(_region(part, times) for part in parts),
        "fusewire.nodes": _listed(f"{part.place} {part.op}" for part in parts),
    }
    for part in parts:
        for verdict in part.verdicts:
            if reason := reason_of(verdict):
                notes[f"fusewire.not_on.{verdict.backend}"] = reason
    return {key: visible(text) for key, text in notes.items()}


def _region(part: NodeWhy, times: Mapping[str, float]) -> str:
    took = times.get(part.region)
    return part.region if took is None else f"{part.region} ({seconds(took)})"


def _listed(texts: Any) -> str:
    return ", ".join(dict.fromkeys(texts))
