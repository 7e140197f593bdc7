"""Mixed precision: compute nodes of a region in less, where all of them in less err too much.

A candidate in less precision that is fast and errs too much runs again with only one part of its
nodes in less, for each part. That shows what the part adds to the error, and what it gains. Errors
of parts are taken to add up as independent ones do. The parts that together gain most within the
bound are raced against the best candidate so far: a mixture is kept only if it leads by more than
the noise, and is judged accurate enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations

from fusewire.choosing.accuracy import AccuracyJudge
from fusewire.choosing.budget import left_until
from fusewire.choosing.race import Race, RaceResult, lead, unbeaten
from fusewire.choosing.searching import SearchSetup
from fusewire.errors import FusewireError, NoneRightError
from fusewire.numerics.scale import bindings_of
from fusewire.planning.candidates import Candidate
from fusewire.planning.parts import Parts
from fusewire.trials.trial import FEWEST_CALLS, CandidateTrial

# Less precision that gains less than this is not worth a mixture, and a mixture not worth a race.
_GAIN = 1.05
# The share of the budget after which no further part is measured, and the seconds of each.
_ENDS, _MEASURING = 0.9, 2.0
# Mixtures are raced whose error is expected to be within these shares of the bound: errors may add
# up to more than independent ones do.
_SHARES = (0.9, 0.6)


def improve(setup: SearchSetup, race: Race, result: RaceResult) -> RaceResult:
    """Race mixtures against the best candidate so far, where an error has a numeric bound."""
    if not isinstance(setup.accuracy, int | float) or race.accuracy is None:
        return result
    return Mixing(setup, race.accuracy, setup.accuracy).improve(race, result)


@dataclass(frozen=True)
class MeasuredPart:
    """What a part adds to the relative error, and the seconds that it gains."""

    number: int
    error: float
    gain: float


@dataclass
class Mixing:
    """Looks for mixtures within a bound on the relative error."""

    setup: SearchSetup
    accuracy: AccuracyJudge
    bound: float
    is_cut: bool = False
    notes: list[str] = field(default_factory=list)

    def improve(self, race: Race, result: RaceResult) -> RaceResult:
        """Race mixtures of one candidate that errs too much against the best one so far."""
        chosen, rematch = result.chosen, result
        if mixtures := self._mixtures(result):
            try:
                rematch = race.rematch(mixtures, [chosen.name], self.setup.budget.seconds)
                rematch = self._better(rematch, chosen)
            except NoneRightError as error:
                self.notes.append(f"No mixture is right, and {chosen.name} is kept. {error}")
        notes = tuple(dict.fromkeys((*rematch.notes, *self.notes)))
        is_cut = rematch.is_cut or result.is_cut or self.is_cut
        return replace(rematch, notes=notes, is_cut=is_cut)

    def _better(self, rematch: RaceResult, before: Candidate) -> RaceResult:
        """Keep a mixture only if it leads by more than the noise."""
        if rematch.chosen is not before and (gain := lead(rematch, before)) > 1.0:
            name = rematch.chosen.name
            self.notes.append(f"{name} is {gain:.2f} times as fast as {before.name}.")
            return rematch
        self.notes.append(f"No mixture of precisions beats {before.name} by more than the noise.")
        return unbeaten(rematch, before)

    def _mixtures(self, result: RaceResult) -> list[Candidate]:
        """Plan the mixtures that promise most."""
        trials = _inaccurate(result)
        if not trials or not self._has_time(len(trials), result):
            return []
        inputs, best_trial = self.setup.inputs, result.trials[result.chosen.name]
        best = best_trial.quick_seconds(inputs)
        trial = self._fastest(trials, best)
        if trial is None:
            return []
        sizes = dict(bindings_of(self.setup.graph, inputs))
        name, parts = trial.candidate.name, Parts.of(trial.candidate, sizes)
        if not parts.count:
            self.notes.append(f"{name} errs too much, and has no parts to leave exact.")
            return []
        exact = exact_trial(trial.candidate, result) or best_trial
        measured = self._measured(parts, exact)
        # All of it in less was judged already.
        sets = [best_set(measured, share * self.bound, parts.count - 1) for share in _SHARES]
        seconds = exact.quick_seconds(inputs)
        worth = [x for x in sets if x and (seconds - sum(y.gain for y in x)) * _GAIN <= best]
        self.notes.append(_promise(name, parts.count, worth, measured))
        numbers = dict.fromkeys(frozenset(part.number for part in chosen) for chosen in worth)
        return [parts.mixture(chosen) for chosen in numbers]

    def _has_time(self, count: int, result: RaceResult) -> bool:
        """Tell whether so many candidates can be timed, the best one and the exact one, too."""
        seconds = next((row.seconds for row in result.tried if row.is_chosen), None) or 0.0
        if FEWEST_CALLS * seconds * (count + 2) < self.seconds_left():
            return True
        self.is_cut = True
        self.notes.append("No time was left to mix precisions. Raise budget_seconds.")
        return False

    def _fastest(self, trials: Sequence[CandidateTrial], best: float) -> CandidateTrial | None:
        """Find the fastest of those that err too much; None if it gains nothing."""
        seconds = {x.candidate.name: x.quick_seconds(self.setup.inputs) for x in trials}
        fastest = min(trials, key=lambda trial: seconds[trial.candidate.name])
        name = fastest.candidate.name
        if seconds[name] * _GAIN <= best:
            return fastest
        self.notes.append(f"{name} errs too much, and is not faster: no part of it is used.")
        return None

    def _measured(self, parts: Parts, exact: CandidateTrial) -> list[MeasuredPart]:
        """Measure the parts, one in less at a time, while there is time; what fails is left out."""
        measured, inputs = list[MeasuredPart](), self.setup.inputs
        for number in range(parts.count):
            if self.seconds_left() <= 0:
                self.is_cut = True
                so_far = f"after {number} of {parts.count} parts"
                self.notes.append(f"The budget was used up {so_far}. Raise budget_seconds.")
                break
            what = f"measuring part {number + 1} of {parts.count} in less precision"
            self.setup.progress(what, self.setup.budget.used)
            candidate, left = parts.mixture([number]), self.seconds_left()
            try:
                trial = self.setup.runner.attempt(candidate, inputs, left)
                # One right after the other: others use the machine, too.
                gain = exact.quick_seconds(inputs) - trial.quick_seconds(inputs)
                seconds = min(self.seconds_left(), _MEASURING)
                measured.append(MeasuredPart(number, self.accuracy.error(trial.run, seconds), gain))
            except FusewireError:
                continue
        return measured

    def seconds_left(self) -> float:
        """Return the seconds until no further part is measured."""
        return left_until(self.setup.budget.end(_ENDS))


def _inaccurate(result: RaceResult) -> list[CandidateTrial]:
    """List the candidates in less that err too much."""
    names = [row.name for row in result.tried if row.is_reduced and row.status == "inaccurate"]
    trials = [result.trials[name] for name in names if name in result.trials]
    # Parts are those of our graph, and not of what an engine reads by itself.
    return [trial for trial in trials if trial.candidate.form == "native"]


def exact_trial(candidate: Candidate, result: RaceResult) -> CandidateTrial | None:
    """Find the same engine with everything exact."""
    for trial in result.trials.values():
        own = trial.candidate
        if own.form == "native" and not own.options and own.target == candidate.target:
            return trial
    return None


def best_set(measured: Sequence[MeasuredPart], bound: float, most: int) -> tuple[MeasuredPart, ...]:
    """Choose up to so many parts that gain most within a bound on the error; none if none does."""
    gaining = [part for part in measured if part.gain > 0 and part.error <= bound]
    counts = range(1, min(len(gaining), most) + 1)
    sets = chain.from_iterable(combinations(gaining, count) for count in counts)
    fitting = [x for x in sets if math.hypot(*(part.error for part in x)) <= bound]
    return max(fitting, key=lambda x: sum(part.gain for part in x), default=())


def _promise(
    name: str,
    count: int,
    worth: Sequence[Sequence[MeasuredPart]],
    measured: Sequence[MeasuredPart],
) -> str:
    """Say what is expected of the best mixture, and what each part adds and gains."""
    rows = [f"{part.number + 1}: {part.error:.1e}, {1e3 * part.gain:.3g} ms" for part in measured]
    shown = f"Error and gain of the parts: {'; '.join(rows)}." if rows else ""
    if not worth:
        return (
            f"No mixture of {count} parts of {name} with exact ones promises to be faster within "
            f"the bound. {shown}"
        )
    error = math.hypot(*(part.error for part in worth[0]))
    return (
        f"{name} errs too much. With {len(worth[0])} of its {count} parts in less and the others "
        f"exact, an error of {error:.1e} was expected. {shown}"
    )
