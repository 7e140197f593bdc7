"""What was raced for one model serves another that has the same blocks.

An engine that compiles for half a minute takes most of a search at level 2. So a race notes, for
each segment of its graph, that such an engine was behind, and how much of the graph the segment is.
A model that is made of the same segments, by most of its work and of theirs, does not try that
engine again. Engines that compile quickly are always tried: they may be parts of a split.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from fusewire.choosing.placing import PlacedSearch
from fusewire.choosing.race import RaceResult, is_plain
from fusewire.ir.hash import structural_hash
from fusewire.ir.types import type_symbols
from fusewire.planning.candidates import Candidate
from fusewire.planning.segments import weight
from fusewire.records.entries import Records
from fusewire.runtime.ranks import ORDER
from fusewire.runtime.why import Tried
from fusewire.store.key import Key

# The least share of the work of each of two graphs that is in segments which both have.
_SHARED = 0.8
# An engine is behind if it took at least this many times as long, by more than the noise, and one
# that compiles quickly if it took so many times as long: to try it costs little.
_BEHIND, _FAR_BEHIND = 1.1, 1.25


@dataclass(frozen=True)
class Note:
    """That a candidate took so many times as long as a rival, for a graph with a segment.

    ``graph`` is the structure of that graph, and ``share`` what the segment is of its work.
    """

    graph: str
    share: float
    name: str
    rival: str
    times: float

    @staticmethod
    def read(data: Any) -> Note | None:
        """Read what was recorded; None if it is nothing of the kind."""
        match data:
            case {
                "graph": str(graph),
                "share": float(share),
                "name": str(name),
                "rival": str(rival),
                "times": float(times),
            } if 0 <= share <= 1 and _BEHIND <= times < math.inf:
                return Note(graph, share, name, rival, times)
        return None


@dataclass(frozen=True, eq=False)
class Siblings:
    """Reads and writes notes about the segments of one graph.

    ``fields`` name what a note depends on besides the segment.
    """

    search: PlacedSearch
    records: Records
    fields: Mapping[str, object]

    @cached_property
    def _shares(self) -> dict[str, float]:
        """The share of the work of the graph that segments of each structure have.

        Nothing if that cannot be told: bodies of control flow run as often as values decide.
        """
        graph, sizes = self.search.graph, self.search.sizes
        types = (type_ for node in graph.nodes for type_ in node.types)
        is_told = all(symbol in sizes for type_ in types for symbol in type_symbols(type_))
        if not is_told or any([*node.graphs()] for node in graph.nodes):
            return {}
        works: dict[str, float] = defaultdict(float)
        for part in self.search.segments:
            works[structural_hash(part.graph)] += sum(weight(node, sizes) for node in part.nodes)
        total = sum(works.values())
        return {segment: work / total for segment, work in works.items()} if total else {}

    def _key(self, segment: str) -> Key:
        return Key.of("measurement", segment=segment, **self.fields)

    @cached_property
    def _notes(self) -> dict[str, list[Note]]:
        return {segment: [*self._read(self._key(segment))] for segment in self._shares}

    def _read(self, key: Key) -> Iterator[Note]:
        payload = self.records.get(key)
        try:
            data = [] if payload is None else json.loads(payload)
        except (ValueError, RecursionError):
            data = None
        notes = [Note.read(row) for row in data] if isinstance(data, list) else [None]
        if None in notes:
            self.records.drop(key)
            return
        yield from (note for note in notes if note is not None)

    def behind(self, candidate: Candidate, tried: Collection[str]) -> str | None:
        """Say that a candidate was behind one of those that were tried; None if nobody knows."""
        least = _least_behind(candidate)
        mine: dict[Note, float] = defaultdict(float)
        theirs: dict[Note, float] = defaultdict(float)
        for segment, notes in self._notes.items():
            for note in notes:
                is_about = note.name == candidate.name and note.times >= least
                if is_about and note.rival in tried:
                    # The same of all segments of one graph.
                    about = replace(note, share=0.0)
                    mine[about] += self._shares[segment]
                    theirs[about] += note.share
        shares = {note: min(mine[note], theirs[note]) for note in mine}
        close = [note for note in shares if shares[note] >= _SHARED]
        if not close:
            return None
        best = max(close, key=lambda note: note.times)
        info = candidate.target.backend.info
        long = f", and compiles for about {info.compile_seconds:.0f} s" if info.is_slow else ""
        return (
            f"It took {best.times:.2f} times as long as {best.rival} for a model that shares "
            f"{shares[best]:.0%} of its work with this one{long}. `fusewire bench` tries it all "
            "the same."
        )

    def keep(self, result: RaceResult) -> None:
        """Note which candidates that need not be tried again were behind others."""
        timed = [
            (row, result.trials[row.name].candidate)
            for row in result.tried
            if row.name in result.trials and row.status in ORDER and not row.is_reduced
        ]
        rivals = [row for row, candidate in timed if not candidate.target.backend.info.is_slow]
        behind = [
            (row.name, rival.name, times)
            for row, candidate in timed
            for rival in rivals
            if (times := _times(row, rival)) >= _least_behind(candidate)
        ]
        graph = structural_hash(self.search.graph)
        raced = {row.name for row, candidate in timed if _least_behind(candidate) < math.inf}
        for segment, share in self._shares.items() if raced else ():
            # Those of what was left out this time stay.
            kept = [note for note in self._notes[segment] if note.name not in raced]
            notes = [*kept, *(Note(graph, share, *found) for found in behind)]
            self.records.put(self._key(segment), json.dumps(list(map(asdict, notes))).encode())


def _least_behind(candidate: Candidate) -> float:
    """Say how far behind a candidate must be to be left out; infinite if it is always tried."""
    if candidate.is_reduced:
        return math.inf
    if candidate.target.backend.info.is_slow:
        return _BEHIND
    return math.inf if is_plain(candidate) else _FAR_BEHIND


def _times(row: Tried, other: Tried) -> float:
    """Say how many times as long a candidate took as another; 1 where that may be noise."""
    is_clear = row.low is not None and other.high is not None and row.low > other.high
    return row.seconds / other.seconds if is_clear and row.seconds and other.seconds else 1.0
