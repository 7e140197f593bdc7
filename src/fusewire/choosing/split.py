"""Level 2: split a graph over engines, where that is faster than the best of them alone.

The graph is cut into segments where few tensors cross. Each is timed on each engine, in a process
that holds all of them, and its time is recorded by its structure, so that another model with the
same block does not time it again. The cheapest ways through the segments, by number of changes from
one engine to another, are then raced as whole plans against the best single engine: a split is kept
only if it leads by more than the noise. While there is time, the cuts of the best one are moved by
a segment, where that is faster in turn: what an engine gains by neighbours is only estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from fusewire.choosing.findings import Findings
from fusewire.choosing.measure import Comparison, Timing
from fusewire.choosing.placing import PlacedSearch
from fusewire.choosing.race import Race, RaceResult, is_plain, lead, unbeaten
from fusewire.choosing.tune import drawn
from fusewire.errors import FusewireError, NoneRightError
from fusewire.ir.graph import HostValue, Node, Value
from fusewire.ir.hash import structural_hash
from fusewire.planning.candidates import Candidate
from fusewire.planning.claims import ask_safely
from fusewire.planning.segments import Segment
from fusewire.planning.target import Target
from fusewire.planning.work import works
from fusewire.records.entries import Records
from fusewire.runtime.ranks import ORDER

# The most engines, and plans that are raced whole.
_ENGINES, _FINALISTS = 3, 3
# An engine that takes more than this many times as long as the best is not part of a split.
_HOPELESS = 10.0
# A split that is expected to gain less than this is not worth a race.
_GAIN = 1.02
# The shares of the budget after which no further segment is timed, no split is raced, and no cut is
# moved.
_ENDS, _RACED, _MOVED = 0.75, 0.85, 0.95
# Cuts of a split that takes more than this many times as long as the best candidate stay.
_NEAR = 1.1
# The child that holds all engines.
_CHILD = "segments"


@dataclass
class Splitting:
    """Splits the graph of one race."""

    search: PlacedSearch
    records: Records
    seed: int = 0
    is_cut: bool = False
    notes: list[str] = field(default_factory=list)

    def improve(self, result: RaceResult, race: Race) -> RaceResult:
        """Race the most promising splits against the best candidate so far, and move their cuts."""
        known = self._segment_times(result)
        splits = {} if known is None else self._splits(known, result)
        if known is None or not splits:
            return self._kept(result, result)
        chosen, end = result.chosen, _RACED * self.search.budget
        try:
            rematch = race.rematch([x for x, _ in splits.values()], [chosen.name], end)
        except NoneRightError as error:
            self.notes.append(f"No split is right, and {chosen.name} is kept. {error}")
            return self._kept(result, result)
        gain = lead(rematch, chosen) if rematch.chosen.placing else 1.0
        if gain <= 1.0:
            rematch = unbeaten(rematch, chosen)
        if (way := _fastest_way(rematch, splits)) is not None:
            rematch = self._moved(rematch, race, known, way)
            gain = lead(rematch, chosen) if rematch.chosen.placing else 1.0
        if gain > 1.0:
            self.notes.append(f"The split is {gain:.2f} times as fast as {chosen.name}.")
        else:
            self.notes.append(f"No split beats {chosen.name} by more than the noise.")
        return self._kept(rematch, result)

    def _kept(self, result: RaceResult, first: RaceResult) -> RaceResult:
        notes = tuple(dict.fromkeys((*result.notes, *self.notes)))
        is_cut = result.is_cut or first.is_cut or self.is_cut
        return replace(result, notes=notes, is_cut=is_cut)

    def _segment_times(self, result: RaceResult) -> SegmentTimes | None:
        """Cut the graph and time its segments; None if it cannot be cut, or has one engine."""
        whole = whole_seconds(result)[:_ENGINES]
        engines = [engine for engine, _ in whole]
        parts = self.search.segments if len(engines) > 1 else []
        if not parts:
            self.notes.append("It is not split: one engine runs it, or there is no place to cut.")
            return None
        times = self._times(parts, engines)
        return SegmentTimes(parts, engines, times, [seconds for _, seconds in whole])

    def _splits(self, known: SegmentTimes, result: RaceResult) -> dict[str, tuple[Candidate, Way]]:
        """Plan the cheapest ways to split the graph, by the names of the plans."""
        ways = cheapest_ways(known.times, known.whole)
        best = min(row.seconds or math.inf for row in result.tried if row.is_chosen)
        worth = [way for way in ways if best / way.seconds >= _GAIN]
        if not worth:
            least = min((way.seconds for way in ways), default=math.inf)
            about = f", of {best / least:.2f}," if math.isfinite(least) else ""
            count = len(known.parts)
            self.notes.append(
                f"No split of {count} segments promises a gain{about} that is worth a race."
            )
        planned = [(self._plan(known, way), way) for way in worth]
        found = {x.name: (x, way) for x, way in reversed(planned) if x is not None}
        return dict(list(reversed(found.items()))[:_FINALISTS])

    def _plan(self, known: SegmentTimes, way: Way) -> Candidate | None:
        """Plan a way through the segments; None if that is not possible, or is no split."""
        used = list(dict.fromkeys(way.engines))
        numbers = [
            used.index(engine)
            for engine, part in zip(way.engines, known.parts, strict=True)
            for _ in part.nodes
        ]
        engines = [known.engines[x] for x in used]
        candidate = self.search.placed(self.search.graph, engines, numbers)
        if candidate is None or len(candidate.engines) < 2:
            return None
        return candidate if self.search.hands_over_few(candidate) else None

    def _moved(self, result: RaceResult, race: Race, known: SegmentTimes, way: Way) -> RaceResult:
        """Give one segment to the engine of its neighbour, as long as that leads."""
        tried, moves, found = {way.engines}, 0, Move(result, way)
        while found.way is not None and self.search.seconds_left(_MOVED) > 0:
            way = found.way
            found = self._move(found.result, race, known, way, tried)
            moves += found.way is not None
        if (count := len(tried) - 1) > 0:
            kept = f"{moves} kept" if moves else "none is faster"
            self.notes.append(f"Cuts were moved by one segment: {count} tried, {kept}.")
        return found.result

    def _move(
        self,
        result: RaceResult,
        race: Race,
        known: SegmentTimes,
        way: Way,
        tried: set[tuple[int, ...]],
    ) -> Move:
        """Race what is one move away, until one leads."""
        chosen = result.chosen
        best = self._quick(chosen)
        for other in known.neighbours(way):
            if other.engines in tried:
                continue
            if self.search.seconds_left(_MOVED) <= 0:
                self.is_cut = True
                break
            tried.add(other.engines)
            candidate = self._plan(known, other)
            if candidate is None or self._quick(candidate) * _GAIN > best:
                continue
            try:
                rematch = race.rematch([candidate], [chosen.name], self.search.budget)
            except NoneRightError:
                continue
            if rematch.chosen is candidate and lead(rematch, chosen) > 1.0:
                return Move(rematch, other)
            result = unbeaten(rematch, chosen)
        return Move(result, None)

    def _quick(self, candidate: Candidate) -> float:
        """Time a whole plan in the child that has all engines; infinite if it fails."""
        self.search.tell(f"trying {candidate.name}")
        try:
            left, inputs = self.search.seconds_left(), self.search.inputs
            trial = self.search.runner.attempt(candidate, inputs, left, child=_CHILD)
        except FusewireError:
            return math.inf
        return self.search.quick_seconds(trial)

    def _times(self, parts: Sequence[Segment], engines: Sequence[Target]) -> list[list[float]]:
        """Time every segment on every engine: infinite where an engine refuses it."""
        refused = [self._refused(engine) for engine in engines]
        known: dict[tuple[str, int], float] = {}
        times: list[list[float]] = []
        for number, part in enumerate(parts):
            row = []
            for at, engine in enumerate(engines):
                self.search.tell(f"timing part {number + 1} of {len(parts)} on {engine.name}")
                key = structural_hash(part.graph), at
                if refused[at] & set(part.nodes):
                    row.append(math.inf)
                    continue
                if key not in known:
                    order = [engine, *(x for x in engines if x is not engine)]
                    known[key] = self._seconds(part, order)
                row.append(known[key])
            times.append(row)
        return times

    def _refused(self, engine: Target) -> set[Node]:
        """List the nodes on data that an engine would leave to others."""
        claimed = ask_safely(engine, self.search.graph)
        kinds = works(claimed.graph)
        return {claimed.origin(node) for node in claimed.refusals if kinds[node] == "data"}

    def _seconds(self, part: Segment, engines: Sequence[Target]) -> float:
        """Time a segment on the first engine, beside the others; infinite if it does not run.

        It is recorded whichever the others are: none of them runs meanwhile.
        """
        numbers = [0] * len(part.nodes)
        candidate = self.search.placed(part.graph, engines, numbers)
        if candidate is None or len(candidate.engines) > 1:
            return math.inf
        alone = self.search.placed(part.graph, engines[:1], numbers) or candidate
        pairs = zip(part.takes, part.graph.inputs, strict=True)
        inputs = [self._input(taken, own) for taken, own in pairs]
        findings = Findings(part.graph, inputs, self.records, self.search.config, 0.0)
        recalled = findings.times([alone])
        if recalled is None:
            left = self.search.seconds_left(_ENDS)
            if left <= 0:
                self.is_cut = True
                return math.inf
            try:
                trial = self.search.runner.attempt(candidate, inputs, left, child=_CHILD)
                timing = Timing(self.search.samples(trial, inputs))
            except FusewireError:
                # What does not run alone is not split off.
                return math.inf
            recalled = Comparison({alone.name: timing}, alone.name, (), 0.0, 1)
            findings.keep_times([alone], recalled)
        return recalled.timings[alone.name].median

    def _input(self, taken: Value, own: Value) -> HostValue:
        """Give what a segment takes: an input of the graph as it is, anything else drawn."""
        if taken in self.search.graph.inputs:
            return self.search.inputs[self.search.graph.inputs.index(taken)]
        return drawn(own, np.random.default_rng(self.seed))


def whole_seconds(result: RaceResult) -> list[tuple[Target, float]]:
    """List engines that may take part, the fastest first, with seconds for the whole graph."""
    found: dict[str, tuple[Target, float]] = {}
    rows = [row for row in result.tried if row.name in result.trials and row.status in ORDER]
    for row in sorted(rows, key=lambda row: row.seconds or math.inf):
        candidate = result.trials[row.name].candidate
        target, info = candidate.target, candidate.target.backend.info
        is_odd = info.is_slow or target.device.is_software or not is_plain(candidate)
        if row.seconds is not None and not is_odd:
            found.setdefault(target.name, (target, row.seconds))
    least = min((seconds for _, seconds in found.values()), default=0.0)
    return [pair for pair in found.values() if pair[1] <= _HOPELESS * least]


def _fastest_way(result: RaceResult, splits: Mapping[str, tuple[Candidate, Way]]) -> Way | None:
    """Return the way of the fastest split; None if it is far from the best candidate."""
    rows = {row.name: row.seconds or math.inf for row in result.tried if row.status in ORDER}
    timed = [name for name in splits if name in rows]
    fastest = min(timed, key=lambda name: rows[name], default="")
    if not fastest or rows[fastest] > _NEAR * rows.get(result.chosen.name, math.inf):
        return None
    return splits[fastest][1]


@dataclass(frozen=True)
class Way:
    """An engine for each segment, by number, and the seconds that this is expected to take."""

    engines: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Move:
    """What a race led to, and the way that was kept; None if nothing led."""

    result: RaceResult
    way: Way | None


@dataclass(frozen=True)
class SegmentTimes:
    """Segments of a graph with their seconds on each engine, and those of the whole graph."""

    parts: Sequence[Segment]
    engines: Sequence[Target]
    times: Sequence[Sequence[float]]
    whole: Sequence[float]

    def neighbours(self, way: Way) -> list[Way]:
        """List the ways with one segment on the engine of a segment beside it, cheapest first."""
        moved = set()
        for at, (left, right) in enumerate(pairwise(way.engines)):
            if left != right:
                moved.add((*way.engines[:at], right, *way.engines[at + 1 :]))
                moved.add((*way.engines[: at + 1], left, *way.engines[at + 2 :]))
        ways = [Way(engines, self._seconds(engines)) for engines in sorted(moved)]
        return sorted(filter(_is_possible, ways), key=lambda way: way.seconds)

    def _seconds(self, engines: Sequence[int]) -> float:
        gains = _all_gains(self.times, self.whole)
        alone = sum(row[at] for row, at in zip(self.times, engines, strict=True))
        steps = enumerate(pairwise(engines))
        return alone - sum(gains[x][at] for at, (x, y) in steps if x == y)


def _is_possible(way: Way) -> bool:
    return math.isfinite(way.seconds)


def cheapest_ways(times: Sequence[Sequence[float]], whole: Sequence[float]) -> list[Way]:
    """Find the cheapest way through the segments for each number of changes, the best first.

    ``times`` has a row for each segment, with the seconds on each engine, and ``whole`` the seconds
    of the whole graph. An engine gains by running neighbours together: what the sum of its segments
    is more than the whole is shared out among the boundaries that are no change, in proportion to
    the seconds on either side.
    """
    gains = _all_gains(times, whole)
    # By engine and number of changes so far: the seconds, and the engines up to here.
    best = {(at, 0): Way((at,), times[0][at]) for at in range(len(whole))}
    for number, row in enumerate(times[1:]):
        following: dict[tuple[int, int], Way] = {}
        for (last, changes), way in best.items():
            for at, seconds in enumerate(row):
                is_change = at != last
                cost = way.seconds + seconds - (0.0 if is_change else gains[at][number])
                key = at, changes + is_change
                if key not in following or cost < following[key].seconds:
                    following[key] = Way((*way.engines, at), cost)
        best = following
    split = [way for (_, changes), way in best.items() if changes]
    return sorted(filter(_is_possible, split), key=lambda way: way.seconds)


def _all_gains(times: Sequence[Sequence[float]], whole: Sequence[float]) -> list[list[float]]:
    return [_gains([row[at] for row in times], whole[at]) for at in range(len(whole))]


def _gains(alone: Sequence[float], whole: float) -> list[float]:
    """Say what an engine gains at each boundary between segments that it runs together."""
    sides = [left + right for left, right in pairwise(alone)]
    saved = sum(alone) - whole
    if not math.isfinite(saved) or saved <= 0:
        return [0.0] * len(sides)
    return [saved * side / sum(sides) for side in sides]
