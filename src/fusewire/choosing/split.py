"""Level 2: split a graph over engines, where that is faster than the best of them alone.

The graph is cut into segments where few tensors cross. Each is timed on each engine, in a process
that holds all of them, and its time is recorded by its structure, so that another model with the
same block does not time it again. The cheapest ways through the segments, by number of changes from
one engine to another, are then raced as whole plans against the best single engine: a split is kept
only if it leads by more than the noise.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from fusewire.choosing.findings import Findings
from fusewire.choosing.measure import Comparison, Timing
from fusewire.choosing.race import ORDER, Progress, Race, RaceResult, is_plain, lead, unbeaten
from fusewire.choosing.tune import drawn
from fusewire.contract.backend import Config
from fusewire.errors import FusewireError, NoneRightError
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.hash import structural_hash
from fusewire.numerics.scale import bindings_of
from fusewire.ops.sample import HostValue
from fusewire.planning.candidates import Candidate, placed_candidate, placing_of
from fusewire.planning.claims import ask_safely
from fusewire.planning.segments import Segment, segments
from fusewire.planning.target import Target
from fusewire.planning.work import works
from fusewire.records.entries import Records
from fusewire.trials.trial import TrialRunner

# The most segments, engines, and plans that are raced whole.
_SEGMENTS, _ENGINES, _FINALISTS = 12, 3, 3
# An engine that takes more than this many times as long as the best is not part of a split.
_HOPELESS = 10.0
# A split that is expected to gain less than this is not worth a race.
_GAIN = 1.02
# The share of the budget after which no further segment is timed.
_ENDS = 0.75
# Seconds of timed runs of a segment, after one that warms it up, and the fewest and most of them.
_TIMING, _FEWEST, _MOST = 0.06, 3, 40
# The child that holds all engines.
_CHILD = "segments"


@dataclass
class Splitting:
    """Splits the graph of one race, which began at ``start`` on the monotonic clock."""

    graph: Graph
    inputs: Sequence[HostValue]
    runner: TrialRunner
    records: Records
    config: Config
    fallback: Target
    start: float
    budget: float
    may_fall_back: bool = True
    max_crossings: int | None = None
    progress: Progress = lambda what, share: None
    seed: int = 0
    is_cut: bool = False
    notes: list[str] = field(default_factory=list)

    def improve(self, result: RaceResult, race: Race) -> RaceResult:
        """Race the most promising splits against the best candidate so far."""
        splits = self._splits(result)
        if not splits:
            return self._kept(result, result)
        try:
            rematch = race.rematch(splits, [result.chosen.name])
        except NoneRightError as error:
            self.notes.append(f"No split is right, and {result.chosen.name} is kept. {error}")
            return self._kept(result, result)
        if not rematch.chosen.placing:
            return self._kept(rematch, result)
        gain = lead(rematch, result.chosen)
        if gain > 1.0:
            self.notes.append(f"The split is {gain:.2f} times as fast as {result.chosen.name}.")
            return self._kept(rematch, result)
        self.notes.append(f"No split beats {result.chosen.name} by more than the noise.")
        return self._kept(unbeaten(rematch, result.chosen), result)

    def _kept(self, result: RaceResult, first: RaceResult) -> RaceResult:
        notes = tuple(dict.fromkeys((*result.notes, *self.notes)))
        is_cut = result.is_cut or first.is_cut or self.is_cut
        return replace(result, notes=notes, is_cut=is_cut)

    def _splits(self, result: RaceResult) -> list[Candidate]:
        """Make the plans of the cheapest ways to split the graph."""
        whole = whole_seconds(result)[:_ENGINES]
        engines = [engine for engine, _ in whole]
        sizes = dict(bindings_of(self.graph, self.inputs))
        parts = segments(self.graph, sizes, _SEGMENTS) if len(engines) > 1 else []
        if not parts:
            self.notes.append("It is not split: one engine runs it, or there is no place to cut.")
            return []
        times = self._times(parts, engines)
        ways = cheapest_ways(times, [seconds for _, seconds in whole])
        best = min(row.seconds or math.inf for row in result.tried if row.is_chosen)
        worth = [way for way in ways if best / way.seconds >= _GAIN]
        if not worth:
            least = min((way.seconds for way in ways), default=math.inf)
            about = f", of {best / least:.2f}," if math.isfinite(least) else ""
            self.notes.append(
                f"No split of {len(parts)} segments promises a gain{about} that is worth a race."
            )
        return self._plans(parts, engines, worth)

    def _plans(
        self, parts: Sequence[Segment], engines: Sequence[Target], ways: Sequence[Way]
    ) -> list[Candidate]:
        places = {node: place for place, part in enumerate(parts) for node in part.nodes}
        found: dict[str, Candidate] = {}
        for way in ways:
            used = list(dict.fromkeys(way.engines))
            numbers = [used.index(way.engines[places[node]]) for node in self.graph.nodes]
            candidate = self._placed(self.graph, [engines[x] for x in used], numbers)
            if candidate is None or len(candidate.engines) < 2:
                continue
            crossings = candidate.planned.plan.crossings()
            if self.max_crossings is None or crossings <= self.max_crossings:
                found.setdefault(candidate.name, candidate)
        return list(found.values())[:_FINALISTS]

    def _placed(
        self, graph: Graph, engines: Sequence[Target], numbers: Sequence[int]
    ) -> Candidate | None:
        """Plan a graph on engines that leave each other the cores; numbers place its nodes."""
        own = [engine.backend.beside_others(engine.device) for engine in engines]
        first, *others = engines
        beside = [replace(x, options=options) for x, options in zip(others, own[1:], strict=True)]
        return placed_candidate(
            graph,
            [first, *beside],
            placing_of(numbers),
            self.fallback,
            options=own[0],
            may_fall_back=self.may_fall_back,
        )

    def _times(self, parts: Sequence[Segment], engines: Sequence[Target]) -> list[list[float]]:
        """Time every segment on every engine: infinite where an engine refuses it."""
        refused = [self._refused(engine) for engine in engines]
        known: dict[tuple[str, int], float] = {}
        times: list[list[float]] = []
        for number, part in enumerate(parts):
            row = []
            for at, engine in enumerate(engines):
                share = (time.monotonic() - self.start) / max(self.budget, 1e-3)
                self.progress(f"timing part {number + 1} of {len(parts)} on {engine.name}", share)
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
        claimed = ask_safely(engine, self.graph)
        kinds = works(claimed.graph)
        return {claimed.origin(node) for node in claimed.refusals if kinds[node] == "data"}

    def _seconds(self, part: Segment, engines: Sequence[Target]) -> float:
        """Time a segment on the first engine, beside the others; infinite if it does not run."""
        candidate = self._placed(part.graph, engines, [0] * len(part.nodes))
        if candidate is None:
            return math.inf
        pairs = zip(part.takes, part.graph.inputs, strict=True)
        inputs = [self._input(taken, own) for taken, own in pairs]
        findings = Findings(part.graph, inputs, self.records, self.config, 0.0)
        recalled = findings.times([candidate])
        if recalled is None:
            left = self.start + _ENDS * self.budget - time.monotonic()
            if left <= 0:
                self.is_cut = True
                return math.inf
            try:
                trial = self.runner.attempt(candidate, inputs, left, child=_CHILD)
                once = statistics.median(trial.seconds(inputs, _FEWEST))
                count = round(min(max(_TIMING / once, _FEWEST), _MOST))
                timing = Timing(tuple(trial.seconds(inputs, count)))
            except FusewireError:
                # What does not run alone is not split off.
                return math.inf
            recalled = Comparison({candidate.name: timing}, candidate.name, (), 0.0, 1)
            findings.keep_times([candidate], recalled)
        return recalled.timings[candidate.name].median

    def _input(self, taken: Value, own: Value) -> HostValue:
        """Give what a segment takes: an input of the graph as it is, anything else drawn."""
        if taken in self.graph.inputs:
            return self.inputs[self.graph.inputs.index(taken)]
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


@dataclass(frozen=True)
class Way:
    """An engine for each segment, by number, and the seconds that this is expected to take."""

    engines: tuple[int, ...]
    seconds: float


def cheapest_ways(times: Sequence[Sequence[float]], whole: Sequence[float]) -> list[Way]:
    """Find the cheapest way through the segments for each number of changes, the best first.

    ``times`` has a row for each segment, with the seconds on each engine, and ``whole`` the seconds
    of the whole graph. An engine gains by running neighbours together: what the sum of its segments
    is more than the whole is shared out among the boundaries that are no change, in proportion to
    the seconds on either side.
    """
    gains = [_gains([row[at] for row in times], whole[at]) for at in range(len(whole))]
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
    finite = [way for way in split if math.isfinite(way.seconds)]
    return sorted(finite, key=lambda way: way.seconds)


def _gains(alone: Sequence[float], whole: float) -> list[float]:
    """Say what an engine gains at each boundary between segments that it runs together."""
    sides = [left + right for left, right in pairwise(alone)]
    saved = sum(alone) - whole
    if not math.isfinite(saved) or saved <= 0:
        return [0.0] * len(sides)
    return [saved * side / sum(sides) for side in sides]
