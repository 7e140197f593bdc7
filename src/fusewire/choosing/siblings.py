"""What was raced for one model serves another that has the same blocks.

After a race at level 2, each segment of the graph gets a record of how long every candidate took,
for the whole graph, against the best. A model with such segments does not try again what would be
behind even if all the rest of its work took no time: compiling that takes most of a search.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from fusewire.choosing.placing import PlacedSearch
from fusewire.choosing.race import ORDER, RaceResult
from fusewire.ir.hash import structural_hash
from fusewire.planning.candidates import Candidate
from fusewire.planning.segments import weight
from fusewire.records.entries import Records
from fusewire.store.key import Key

# A candidate is left out if the segments in which it was behind take it so many times as long as
# the whole takes the best.
_BEHIND = 1.05


@dataclass(frozen=True, eq=False)
class Siblings:
    """Reads and writes what is recorded about the segments of one graph.

    ``fields`` name what the records depend on besides the segment.
    """

    search: PlacedSearch
    records: Records
    fields: Mapping[str, object]

    @cached_property
    def _shares(self) -> dict[Key, float]:
        """The share of the work of the graph that segments of each kind have."""
        parts = self.search.segments
        works = [sum(weight(node, self.search.sizes) for node in part.nodes) for part in parts]
        found: dict[Key, float] = {}
        for part, work in zip(parts, works, strict=True):
            key = Key.of("measurement", segment=structural_hash(part.graph), **self.fields)
            found[key] = found.get(key, 0.0) + work / (sum(works) or 1.0)
        return found

    @cached_property
    def _known(self) -> dict[Key, dict[str, float]]:
        """How many times as long as the best candidates took, by segment."""
        return {key: self._read(key) for key in self._shares}

    def _read(self, key: Key) -> dict[str, float]:
        payload = self.records.get(key)
        try:
            data = {} if payload is None else json.loads(payload)
            found = {str(name): float(times) for name, times in data.items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            self.records.drop(key)
            return {}
        return found if all(1.0 <= x < math.inf for x in found.values()) else {}

    def far_behind(self, candidate: Candidate, tried: Collection[str]) -> str | None:
        """Say that a candidate was far behind those that were tried; None if it may not be."""
        share, least, best = 0.0, math.inf, ""
        for key, times in self._known.items():
            others = [name for name in tried if name in times]
            if candidate.name in times and others:
                first = min(others, key=lambda name: times[name])
                share += self._shares[key]
                if times[candidate.name] / times[first] < least:
                    least, best = times[candidate.name] / times[first], first
        if not share or share * least < _BEHIND:
            return None
        return (
            f"In another model, which has {share:.0%} of this one's work, it took {least:.2f} "
            f"times as long as {best}."
        )

    def keep(self, result: RaceResult) -> None:
        """Record how long the candidates of a race took against the best."""
        seconds = {
            row.name: row.seconds
            for row in result.tried
            if row.seconds and row.status in ORDER and row.name in result.trials
        }
        best = min(seconds.values(), default=0.0)
        found = {name: taken / best for name, taken in seconds.items()}
        for key in self._shares if len(found) > 1 else ():
            # What was left out because of a record stays in it.
            self.records.put(key, json.dumps({**self._known[key], **found}).encode())
