"""Mixed precision: compute parts of a graph in less, where all of it in less errs too much.

A candidate in less precision that is fast and errs too much runs again with only one part of the
graph in less, for each part. That shows what the part adds to the error, and what it gains. Errors
of parts are taken to add up as independent ones do. The parts that together gain most within the
bound are raced against the best candidate so far: a mixture is kept only if it leads by more than
the noise, and is judged accurate enough.

The parts are nodes that an engine can leave exact within one region, or else segments, of which one
engine runs some in less and the others exactly.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import final

from fusewire.choosing.accuracy import AccuracyJudge
from fusewire.choosing.placing import PlacedSearch
from fusewire.choosing.race import Race, RaceResult, lead, unbeaten
from fusewire.contract.backend import EXACT_NODES
from fusewire.contract.region import written_places
from fusewire.errors import FusewireError, NoneRightError
from fusewire.numerics.scale import bindings_of
from fusewire.planning.candidates import Candidate
from fusewire.planning.segments import Segment, joined, segments
from fusewire.trials.trial import CandidateTrial

# The most parts.
_PARTS = 8
# Less precision that gains less than this is not worth a mixture, and a mixture not worth a race.
_GAIN = 1.05
# The share of the budget after which no further part is measured, and the seconds of each.
_ENDS, _MEASURING = 0.9, 2.0
# Mixtures are raced whose error is expected to be within these shares of the bound: errors may add
# up to more than independent ones do.
_SHARES = (0.9, 0.6)
# The child that runs mixtures of several regions.
_CHILD = "mixtures"


class Parts(abc.ABC):
    """Parts of a graph that may be computed in less, each by itself."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many there are."""

    @abc.abstractmethod
    def mixture(self, reduced: Collection[int]) -> Candidate | None:
        """Plan the graph with some parts in less, by number, and all others exact."""


@final
@dataclass(frozen=True)
class NodeParts(Parts):
    """Nodes that an engine leaves exact within its one region; ``groups`` has their places."""

    reduced: Candidate
    groups: Sequence[Sequence[int]]

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.groups)

    def mixture(self, reduced: Collection[int]) -> Candidate | None:
        """Name the other nodes in the options."""
        places = [place for group in self.groups for place in group]
        exact = {x for at, group in enumerate(self.groups) if at not in reduced for x in group}
        options = {**self.reduced.options, EXACT_NODES: written_places(places, exact)}
        return replace(self.reduced, options=options)


@final
@dataclass(frozen=True)
class SegmentParts(Parts):
    """Segments that one engine runs in less or exactly; ``places`` are those that may be in less.

    ``plan`` plans the graph by whether each of its nodes is in less.
    """

    plan: Callable[[Sequence[bool]], Candidate | None]
    segments: Sequence[Segment]
    places: Sequence[int]

    @property
    def count(self) -> int:
        """The number of segments that may be in less."""
        return len(self.places)

    def mixture(self, reduced: Collection[int]) -> Candidate | None:
        """Place the nodes of those segments on the engine in less."""
        chosen = {self.places[number] for number in reduced}
        return self.plan(
            [at in chosen for at, part in enumerate(self.segments) for _ in part.nodes]
        )


@dataclass(frozen=True)
class MeasuredPart:
    """What a part adds to the relative error, and the seconds that it gains."""

    number: int
    error: float
    gain: float


@dataclass
class Mixing:
    """Looks for mixtures within a bound on the relative error."""

    search: PlacedSearch
    accuracy: AccuracyJudge
    bound: float
    is_cut: bool = False
    notes: list[str] = field(default_factory=list)

    def improve(self, result: RaceResult, race: Race, first: RaceResult) -> RaceResult:
        """Race mixtures against the best candidate so far.

        ``first`` is the result of the first race, with candidates that err too much.
        """
        chosen = result.chosen
        mixtures = self._mixtures(result, first)
        if not mixtures:
            return self._kept(result, result)
        try:
            rematch = race.rematch(mixtures, [chosen.name], self.search.budget)
        except NoneRightError as error:
            self.notes.append(f"No mixture is right, and {chosen.name} is kept. {error}")
            return self._kept(result, result)
        gain = lead(rematch, chosen) if rematch.chosen is not chosen else 1.0
        if gain > 1.0:
            name = rematch.chosen.name
            self.notes.append(f"{name} is {gain:.2f} times as fast as {chosen.name}.")
            return self._kept(rematch, result)
        self.notes.append(f"No mixture of precisions beats {chosen.name} by more than the noise.")
        return self._kept(unbeaten(rematch, chosen), result)

    def _kept(self, result: RaceResult, before: RaceResult) -> RaceResult:
        notes = tuple(dict.fromkeys((*result.notes, *self.notes)))
        return replace(result, notes=notes, is_cut=result.is_cut or before.is_cut or self.is_cut)

    def _mixtures(self, result: RaceResult, first: RaceResult) -> list[Candidate]:
        """Plan the mixtures that promise most."""
        trials = _inaccurate(first)
        if not trials or not self._has_time(len(trials), result):
            return []
        best = self.search.quick_seconds(result.trials[result.chosen.name])
        trial = self._fastest(trials, best)
        if trial is None:
            return []
        candidate = trial.candidate
        parts = self._node_parts(candidate) or self._segment_parts(candidate)
        if parts is None:
            self.notes.append(f"{candidate.name} errs too much, and has no parts to leave exact.")
            return []
        exact = exact_trial(candidate, first) or result.trials[result.chosen.name]
        measured = self._measured(parts, exact)
        # All of it in less was judged already.
        most = parts.count - 1
        sets = [found for x in _SHARES if (found := best_set(measured, x * self.bound, most))]
        seconds = self.search.quick_seconds(exact)
        worth = [x for x in sets if (seconds - sum(part.gain for part in x)) * _GAIN <= best]
        count = parts.count
        if not worth:
            self.notes.append(
                f"No mixture of {count} parts of {candidate.name} with exact ones promises to be "
                f"faster within the bound. {_shown(measured)}"
            )
        for chosen in worth[:1]:
            error = math.hypot(*(part.error for part in chosen))
            self.notes.append(
                f"{candidate.name} errs too much. With {len(chosen)} of its {count} parts in less "
                f"and the others exact, an error of {error:.1e} was expected. {_shown(measured)}"
            )
        planned = [parts.mixture([part.number for part in chosen]) for chosen in worth]
        return list({x.name: x for x in planned if x is not None}.values())

    def _has_time(self, count: int, result: RaceResult) -> bool:
        """Tell whether so many candidates can be timed, the best one and the exact one, too."""
        about = next((row.seconds for row in result.tried if row.is_chosen), None) or 0.0
        if self.search.has_time(about, count + 2, _ENDS):
            return True
        self.is_cut = True
        self.notes.append("No time was left to mix precisions. Raise budget_seconds.")
        return False

    def _fastest(self, trials: Sequence[CandidateTrial], best: float) -> CandidateTrial | None:
        """Find the fastest of those that err too much; None if it gains nothing."""
        seconds = {trial.candidate.name: self.search.quick_seconds(trial) for trial in trials}
        fastest = min(trials, key=lambda trial: seconds[trial.candidate.name])
        name = fastest.candidate.name
        if seconds[name] * _GAIN <= best:
            return fastest
        self.notes.append(f"{name} errs too much, and is not faster: no part of it is used.")
        return None

    def _node_parts(self, candidate: Candidate) -> NodeParts | None:
        """Group the nodes that the engine can leave exact; None if it cannot."""
        plan, target = candidate.planned.plan, candidate.target
        if not plan.is_whole or plan.steps[0].region.backend != target.name:
            return None
        region = plan.steps[0].region.graph
        places = target.backend.reduced_nodes(region, target.device, candidate.options)
        if len(places) < 2:
            return None
        numbers = {region.nodes[place]: place for place in sorted(places)}
        sizes = dict(bindings_of(self.search.graph, self.search.inputs))
        groups = joined([[node] for node in numbers], sizes, _PARTS)
        return NodeParts(candidate, [[numbers[node] for node in group] for group in groups])

    def _segment_parts(self, candidate: Candidate) -> SegmentParts | None:
        """Cut the graph into segments; None if fewer than two would differ."""
        sizes = dict(bindings_of(self.search.graph, self.search.inputs))
        cut, target = segments(self.search.graph, sizes, _PARTS), candidate.target
        options = dict(candidate.options)
        places = [
            place
            for place, part in enumerate(cut)
            if options in map(dict, target.backend.reduced(part.graph, target.device))
        ]
        reduced = replace(target, options={**self.search.config.options, **options})

        def plan(is_reduced: Sequence[bool]) -> Candidate | None:
            placed = self.search.placed(
                self.search.graph, [target, reduced], list(map(int, is_reduced))
            )
            if placed is None or len(placed.engines) < 2 or not self.search.hands_over_few(placed):
                return None
            return replace(placed, is_reduced=True)

        return SegmentParts(plan, cut, places) if len(places) > 1 else None

    def _measured(self, parts: Parts, exact: CandidateTrial) -> list[MeasuredPart]:
        """Measure the parts, one in less at a time, while there is time."""
        measured: list[MeasuredPart] = []
        for number in range(parts.count):
            if self.search.seconds_left(_ENDS) <= 0:
                self.is_cut = True
                self.notes.append(
                    f"The budget was used up after {number} of {parts.count} parts. Raise "
                    "budget_seconds."
                )
                break
            self.search.tell(f"measuring part {number + 1} of {parts.count} in less precision")
            mixture = parts.mixture([number])
            part = None if mixture is None else self._part(number, mixture, exact)
            measured += [] if part is None else [part]
        return measured

    def _part(self, number: int, mixture: Candidate, exact: CandidateTrial) -> MeasuredPart | None:
        """Run the graph with one part in less; None if that fails."""
        child = "" if mixture.planned.plan.is_whole else _CHILD
        try:
            trial = self.search.runner.attempt(
                mixture, self.search.inputs, self.search.seconds_left(_ENDS), child=child
            )
            # One right after the other: others use the machine, too.
            gain = self.search.quick_seconds(exact) - self.search.quick_seconds(trial)
            seconds = min(self.search.seconds_left(_ENDS), _MEASURING)
            return MeasuredPart(number, self.accuracy.error(trial.run, seconds), gain)
        except FusewireError:
            # What does not run is left exact.
            return None


def _inaccurate(first: RaceResult) -> list[CandidateTrial]:
    """List the candidates in less that err too much."""
    names = [row.name for row in first.tried if row.is_reduced and row.status == "inaccurate"]
    trials = [first.trials[name] for name in names if name in first.trials]
    # Parts are those of our graph, and not of what an engine reads by itself.
    return [trial for trial in trials if trial.candidate.form == "native"]


def exact_trial(candidate: Candidate, first: RaceResult) -> CandidateTrial | None:
    """Find the same engine with everything exact."""
    for trial in first.trials.values():
        own = trial.candidate
        is_plain = own.form == "native" and not own.options and not own.placing
        if is_plain and own.target == candidate.target:
            return trial
    return None


def best_set(measured: Sequence[MeasuredPart], bound: float, most: int) -> tuple[MeasuredPart, ...]:
    """Choose up to so many parts that gain most within a bound on the error; none if none does.

    >>> parts = [MeasuredPart(0, 0.03, 2.0), MeasuredPart(1, 0.04, 1.0), MeasuredPart(2, 0.2, 9.0)]
    >>> [part.number for part in best_set(parts, 0.05, 2)]
    [0, 1]
    """
    gaining = [part for part in measured if part.gain > 0 and part.error <= bound]
    sets = _subsets(gaining, most)
    fitting = [x for x in sets if math.hypot(*(part.error for part in x)) <= bound]
    return max(fitting, key=lambda x: sum(part.gain for part in x), default=())


def _subsets(parts: Sequence[MeasuredPart], most: int) -> Iterator[tuple[MeasuredPart, ...]]:
    for count in range(1, min(len(parts), most) + 1):
        yield from combinations(parts, count)


def _shown(measured: Sequence[MeasuredPart]) -> str:
    """Say what each part adds, and gains."""
    rows = [f"{part.number + 1}: {part.error:.1e}, {1e3 * part.gain:.3g} ms" for part in measured]
    return f"Error and gain of the parts: {'; '.join(rows)}." if rows else ""
