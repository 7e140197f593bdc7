"""Run independent regions at the same time, where that is faster than one after the other.

What was chosen may have such regions; level 2 also places the branches of a graph on two engines.
Both ways are timed in one process, in turns, and with fewer threads for each engine, since two
engines with all cores each fight for them. What runs at the same time is kept only if it leads by
more than the noise, is judged right, and is also faster than what was chosen before.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fusewire.choosing.measure import Comparison, Contender, compare
from fusewire.choosing.placing import PlacedSearch
from fusewire.choosing.race import Race, RaceResult, lead, unbeaten
from fusewire.errors import FusewireError, NoneRightError, RefusedError
from fusewire.numerics.scale import bindings_of
from fusewire.planning.branches import forks
from fusewire.planning.candidates import Candidate, plan_choice
from fusewire.planning.target import Target
from fusewire.runtime.concurrent import is_worth_asking
from fusewire.runtime.plan import INTERPRETED
from fusewire.system.hardware import usable_cores
from fusewire.trials.trial import CandidateTrial

# The most forks whose branches are placed on engines, and the most engines to place them on.
_FORKS, _ENGINES = 8, 2
# Seconds for comparing both ways, and the share of what is left of the budget.
_LEAST_SECONDS, _MOST_SECONDS, _SHARE = 1.5, 4.0, 0.4
# Seconds that a candidate has to compile when the budget is used up.
_COMPILING = 5.0
# Calls that show which of several placings is the best, after one that warms up.
_CALLS = 5
# The child that runs both ways.
_CHILD = "at the same time"


@dataclass
class Overlap:
    """Looks for regions that may run at the same time."""

    search: PlacedSearch
    notes: list[str] = field(default_factory=list)

    def improve(self, result: RaceResult, race: Race, engines: Sequence[Target] = ()) -> RaceResult:
        """Race the best concurrent candidate against what was chosen.

        With ``engines``, the branches of the graph are placed on the first of them, too.
        """
        if self.search.config.memory_limit is not None:
            # Two regions at once hold more than one, and the limit is meant for all of it.
            return result
        fastest = self._fastest([result.chosen, *self._branched(engines)])
        if fastest is None:
            return self._noted(result)
        try:
            rematch = race.rematch([fastest], [result.chosen.name])
        except NoneRightError as error:
            self.notes.append(f"{fastest.name} is not used. {error}")
            return self._noted(result)
        if rematch.chosen.is_concurrent and lead(rematch, result.chosen) > 1.0:
            return self._noted(rematch)
        self.notes.append(
            f"{fastest.name} does not beat {result.chosen.name} by more than the noise."
        )
        return self._noted(unbeaten(rematch, result.chosen))

    def _noted(self, result: RaceResult) -> RaceResult:
        return replace(result, notes=tuple(dict.fromkeys((*result.notes, *self.notes))))

    def _branched(self, engines: Sequence[Target]) -> Iterator[Candidate]:
        """Place branches on two engines, either way round, and on one twice if it allows that."""
        engines = engines[:_ENGINES]
        if not engines:
            return
        sizes = dict(bindings_of(self.search.graph, self.search.inputs))
        second = {node for fork in forks(self.search.graph, sizes)[:_FORKS] for node in fork.second}
        if not second:
            return
        numbers = [int(node in second) for node in self.search.graph.nodes]
        pairs = [(x, y) for x in engines for y in engines if x is not y or _is_twice(x)]
        for first, other in pairs:
            candidate = self.search.placed(self.search.graph, [first, other], numbers)
            if candidate is not None and len(candidate.engines) > 1:
                yield candidate

    def _fastest(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the candidate that is faster at the same time than one after the other."""
        pairs = [(x, self._concurrent(x)) for x in candidates]
        ready = [(x, y) for x, y in pairs if y is not None and self._is_allowed(y)]
        if not ready:
            return None
        count = max(1, (self.search.config.threads or usable_cores()) // 2)
        few = {x.name: replace(y, threads=count) for x, y in ready}
        if len(ready) > 1:
            seconds = {x.name: self._quick(few[x.name]) for x, _ in ready}
            ready.sort(key=lambda pair: seconds[pair[0].name])
        for sequential, concurrent in ready:
            trials = self._trials([sequential, concurrent, few[sequential.name]])
            if sequential.name in trials and len(trials) > 1:
                return self._compared(sequential, trials)
        return None

    def _concurrent(self, candidate: Candidate) -> Candidate | None:
        """Plan a candidate so that independent regions run at the same time."""
        if len(candidate.engines) < 2 or candidate.form != "native":
            return None
        choice = replace(candidate.choice(), is_concurrent=True)
        graph, fallback = self.search.graph, self.search.fallback
        may_fall_back = self.search.may_fall_back
        try:
            planned = plan_choice(choice, graph, candidate.targets, fallback, may_fall_back)
        except RefusedError:
            return None
        return replace(candidate, planned=planned, is_concurrent=True)

    def _is_allowed(self, candidate: Candidate) -> bool:
        is_worth = is_worth_asking(candidate.planned.plan, INTERPRETED)
        return is_worth and self.search.hands_over_few(candidate)

    def _quick(self, candidate: Candidate) -> float:
        """Time a few calls; infinite if it fails."""
        trial = self._trials([candidate]).get(candidate.name)
        if trial is None:
            return float("inf")
        try:
            return statistics.median(trial.seconds(self.search.inputs, _CALLS + 1)[1:])
        except FusewireError:
            return float("inf")

    def _trials(self, candidates: Sequence[Candidate]) -> dict[str, CandidateTrial]:
        """Run candidates in one process; those that fail there are left out."""
        trials: dict[str, CandidateTrial] = {}
        runner, inputs = self.search.runner, self.search.inputs
        for candidate in candidates:
            self.search.tell(f"trying {candidate.name}")
            seconds = max(self.search.seconds_left(), _COMPILING)
            try:
                trial = runner.attempt(candidate, inputs, seconds, child=_CHILD)
                # The first run is always one step after the other.
                trial.run(inputs)
            except FusewireError:
                continue
            trials[candidate.name] = trial
        return trials

    def _compared(
        self, sequential: Candidate, trials: Mapping[str, CandidateTrial]
    ) -> Candidate | None:
        """Time both ways in turns; None if running at the same time does not lead."""
        contenders = {
            name: Contender(partial(trial.seconds, self.search.inputs), trial.pid)
            for name, trial in trials.items()
        }
        seconds = min(max(_SHARE * self.search.seconds_left(), _LEAST_SECONDS), _MOST_SECONDS)
        try:
            comparison = compare(contenders, seconds, close=float("inf"))
        except FusewireError as error:
            self.notes.append(f"Nothing runs at the same time: {error}")
            return None
        timings, name = comparison.timings, sequential.name
        if timings.keys() != trials.keys():
            self.notes.append("Nothing runs at the same time: the budget was used up before.")
            return None
        best = min((x for x in timings if x != name), key=lambda x: timings[x].median)
        is_faster = leads(comparison, best, name)
        # What is kept comes first.
        ways = [(_shown(trials[best].candidate), best), ("one after the other", name)]
        (kept, first), (other, second) = ways if is_faster else reversed(ways)
        self.notes.append(
            f"Independent regions of {sequential.engine_names} run {kept}: "
            f"{1e3 * timings[first].median:.3g} ms, against {1e3 * timings[second].median:.3g} ms "
            f"{other} (noise {comparison.noise:.0%})."
        )
        return trials[best].candidate if is_faster else None


def leads(comparison: Comparison, name: str, other: str) -> bool:
    """Tell whether one is faster than another by more than the noise, and does not tie with it."""
    timings = comparison.timings
    is_ahead = timings[other].median / timings[name].median > 1 + comparison.noise
    return is_ahead and not {name, other} <= {comparison.fastest, *comparison.ties}


def _shown(candidate: Candidate) -> str:
    count = candidate.threads
    threads = f" with {count} thread{'s' * (count > 1)} each" if count else ""
    return f"at the same time{threads}"


def _is_twice(target: Target) -> bool:
    """Tell whether an engine may run two regions at once; they are told apart by its options."""
    is_safe = target.backend.info.runs_beside_itself
    return is_safe and bool(target.backend.beside_others(target.device))
