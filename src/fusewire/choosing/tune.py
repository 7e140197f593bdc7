"""Level 3: choose a configuration for each kernel of a candidate, and race tuned against untuned.

Kernels are timed one by one, in a child, by the device's own clock where it has one, and judged as
any candidate is. What is found of a kernel is remembered by itself: another model that has it does
not time it again. In the end tuned and untuned meet anew, so that tuning never makes slower.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from fusewire.choosing.findings import Findings
from fusewire.choosing.judge import Judge
from fusewire.choosing.race import ORDER, Progress, Race, RaceResult
from fusewire.contract.backend import Config, Fact
from fusewire.contract.tuning import TUNED, Piece, Tuner, written
from fusewire.errors import FusewireError, NoneRightError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Graph
from fusewire.ir.types import tensor_of
from fusewire.numerics.bound import bindings_of
from fusewire.ops.sample import Draw, HostValue
from fusewire.planning.candidates import Candidate
from fusewire.planning.planner import make_plan
from fusewire.planning.target import Target
from fusewire.process.guard import described, guarded
from fusewire.records.entries import Records
from fusewire.records.tunings import Cut, keep, recall
from fusewire.runtime.why import Tried
from fusewire.trials.trial import TrialRunner

# A candidate that takes more than this many times as long as the fastest is not worth tuning.
_HOPELESS = 4.0
# Kernels with less than this share of the time are left as they are.
_SHARE = 0.01
# The least and the most seconds that one choice may take, and those of its comparison in any case;
# of a large budget it is a share, so that whatever did not end in time does with a larger one.
_SHORTEST, _LONGEST, _LEAST_SECONDS = 3.0, 15.0, 1.0
_LARGEST = 0.125
# The shares of the budget between which kernels are tuned: engines are compared before, and tuned
# and untuned meet after.
_BEGINS, _ENDS = 0.5, 0.85
# Less than this is not worth another cut.
_LEAD = 1.03
# Runs of the reference for a kernel, as many as for a whole, and those that tell how it weighs.
_RUNS, _WEIGHING = 8, 3


@dataclass
class Tuning:
    """Tunes the candidates of one race, which began at ``start`` on the monotonic clock."""

    runner: TrialRunner
    records: Records
    config: Config
    inputs: Sequence[HostValue]
    start: float
    budget: float
    say: Progress = lambda what, share: None
    seed: int = 0
    is_thorough: bool = False
    is_cut: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def deadline(self) -> float:
        """When the last kernel is tuned."""
        return self.start + _ENDS * self.budget

    def tell(self, what: str) -> None:
        """Say what is being done."""
        self.say(what, (time.monotonic() - self.start) / max(self.budget, 1e-3))

    def improve(self, decision: RaceResult, race: Race) -> RaceResult:
        """Tune the best candidate of each backend that can be, and decide again with those."""
        found: dict[str, tuple[Candidate, list[Cut]]] = {}
        against = [decision.chosen.name]
        for candidate in self._worthy(decision):
            cuts = self._cuts(candidate)
            if kept := {cut.key: cut.chosen for cut in cuts if cut.is_other}:
                better = replace(candidate, options={**candidate.options, TUNED: written(kept)})
                found[better.name] = better, cuts
                against = list(dict.fromkeys([*against, candidate.name]))
        if not found:
            notes = (*decision.notes, *self.notes)
            return replace(decision, notes=notes, is_cut=decision.is_cut or self.is_cut)
        try:
            made = race.rematch((better for better, _ in found.values()), against)
        except NoneRightError as error:
            return self._as_before(decision, error)
        rows = tuple(_with(row, found.get(row.name)) for row in made.tried)
        return replace(
            made,
            tried=rows,
            notes=(*made.notes, *self.notes),
            is_cut=made.is_cut or decision.is_cut or self.is_cut,
        )

    def _as_before(self, decision: RaceResult, error: NoneRightError) -> RaceResult:
        """Keep the result of the first race: candidates that ran in it failed in the second."""
        rows = {row.name: row for row in error.tried}
        if rows[decision.chosen.name].status == "wrong":
            raise error
        reason = rows[decision.chosen.name].reason
        said = (
            f"{decision.chosen.name} failed when it met what was tuned, and is as before: {reason}"
        )
        return replace(decision, notes=(*decision.notes, *self.notes, said), is_cut=True)

    def _worthy(self, decision: RaceResult) -> Iterator[Candidate]:
        """Yield the fastest candidate of each device whose backend can be tuned."""
        rows = [row for row in decision.tried if row.name in decision.trials]
        timed = [row for row in rows if row.seconds is not None and row.status in ORDER]
        seen: set[tuple[str, str]] = set()
        least = min((row.seconds or 0.0 for row in timed), default=0.0)
        for row in sorted(timed, key=lambda row: row.seconds or 0.0):
            candidate = decision.trials[row.name].candidate
            at = candidate.target.name, candidate.target.device.id
            if at in seen or not isinstance(candidate.target.backend, Tuner):
                continue
            seen.add(at)
            if self.is_thorough or (row.seconds or 0.0) <= _HOPELESS * least:
                yield candidate
            else:
                times = f"takes {(row.seconds or 0.0) / least:.1f} times as long as the fastest"
                self.notes.append(f"{candidate.name} {times}, and is not tuned.")

    def _cuts(self, candidate: Candidate) -> list[Cut]:
        """Find how the kernels of a candidate are best cut, the heaviest first."""
        target = candidate.target
        known = {
            piece.key: (piece, recall(self.records, target.backend, target.device, piece))
            for piece in self._pieces(candidate)
        }
        found = [cut for _, cut in known.values() if cut is not None]
        new = [piece for piece, cut in known.values() if cut is None]
        weights = self._weights(target, new)
        late = [piece for piece in new if piece.key not in weights]
        least = _SHARE * sum(weights.values())
        heavy = [piece for piece in new if weights.get(piece.key, 0.0) > least]
        heavy.sort(key=lambda piece: -weights[piece.key])
        for number, piece in enumerate(heavy):
            # A kernel has as much of the time that is left as it has of the work that is.
            share = weights[piece.key] / sum(weights[rest.key] for rest in heavy[number:])
            seconds = (self.deadline - time.monotonic()) * share / (len(piece.axes) + 1)
            most = max(_LONGEST, _LARGEST * self.budget)
            about = f"tuning kernel {number + 1} of {len(heavy)}"
            cut = self._tuned(target, piece, about, min(max(seconds, _SHORTEST), most))
            if cut is not None:
                found.append(cut)
                if not cut.is_late:
                    keep(self.records, target.backend, target.device, piece, cut)
            if (time.monotonic() > self.deadline) if cut is None else cut.is_late:
                late.append(piece)
        self._note(candidate, found, late)
        return found

    def _note(self, candidate: Candidate, found: Sequence[Cut], late: Sequence[Piece]) -> None:
        others = sum(cut.is_other for cut in found)
        before = sum(cut.cache == "hit" for cut in found)
        said = [f"{others} of {len(found)} kernels that were tuned are cut otherwise"] * bool(found)
        said += [f"{before} were known"] * bool(before)
        if late:
            self.is_cut = True
            some = sum(cut.is_late for cut in found)
            # What choosing takes at the least, in the share of a budget that it has.
            takes = _SHORTEST * sum(len(piece.axes) + 1 for piece in late) / (_ENDS - _BEGINS)
            enough = math.ceil(max(takes, 2 * self.budget) / 10) * 10
            said += [f"{some} were not tuned to the end"] * bool(some)
            said += [f"{len(late) - some} were not tuned"] * (len(late) > some)
            said[-1] += f": the budget was used up. Try budget_seconds={enough}"
        text = "; ".join(said) or "it has no kernels to tune"
        self.notes.append(f"{candidate.name}: {text}.")

    def _pieces(self, candidate: Candidate) -> list[Piece]:
        target, plan = candidate.target, candidate.planned.plan
        backend, config = target.backend, candidate.config(self.config)
        assert isinstance(backend, Tuner)
        sizes, found = dict(bindings_of(plan.graph, self.inputs)), dict[str, Piece]()
        for region in plan.regions():
            if region.backend != target.name:
                continue
            graph = bind_symbols(region.graph, sizes)
            given = graph, target.device, config
            for piece in guarded(target.name, "claim", described(graph), backend.pieces, *given):
                other = found.get(piece.key)
                count = piece.count + (0 if other is None else other.count)
                found[piece.key] = replace(piece, count=count)
        return list(found.values())

    def _weights(self, target: Target, pieces: Sequence[Piece]) -> dict[str, float]:
        """Tell what kernels take of a run, by their keys, as far as there is time."""
        weights: dict[str, float] = {}
        for number, piece in enumerate(pieces):
            self.tell(f"weighing kernel {number + 1} of {len(pieces)}")
            if time.monotonic() > self.deadline:
                break
            inputs = _inputs(piece.graph, self.seed)
            try:
                trial = self.runner.place(self._way(target, piece, piece.untuned), inputs)
                taken = min(trial.seconds(inputs, _WEIGHING))
            except FusewireError:
                # What does not run alone is left as it is.
                taken = 0.0
            weights[piece.key] = taken * piece.count
        return weights

    def _way(self, target: Target, piece: Piece, chosen: Mapping[str, Fact]) -> Candidate:
        assert isinstance(target.backend, Tuner)
        options = {**target.backend.clock(target.device), **chosen}
        return Candidate(target, make_plan(piece.graph, [target]), options=options)

    def _tuned(self, target: Target, piece: Piece, about: str, seconds: float) -> Cut | None:
        """Choose for one kernel, one thing after another; None where none is right, or too late."""
        chosen, gain, is_late = piece.untuned, 1.0, False
        race = self._races(piece, about)
        try:
            for number, (axis, values) in enumerate(piece.axes.items()):
                if time.monotonic() > self.deadline:
                    if number == 0:
                        return None
                    is_late = True
                    break
                candidates = [self._way(target, piece, {**chosen, axis: value}) for value in values]
                decision = race(candidates, seconds)
                is_late |= decision.is_cut
                if _lead(decision, candidates[0]) > _LEAD:
                    chosen[axis] = decision.chosen.options[axis]
            if chosen != piece.untuned:
                # The best of many flatters itself: it meets what it has untuned once more, alone.
                candidates = [
                    self._way(target, piece, choice) for choice in (piece.untuned, chosen)
                ]
                left = max(self.deadline - time.monotonic(), _LEAST_SECONDS)
                decision = race(candidates, min(seconds, left), is_last=True)
                is_late |= decision.is_cut
                gain = _lead(decision, candidates[0])
        except FusewireError:
            return None
        if gain <= _LEAD:
            chosen, gain = piece.untuned, 1.0
        is_other = chosen != piece.untuned
        return Cut(piece.key, piece.name, piece.count, chosen, gain, is_other, is_late=is_late)

    def _races(self, piece: Piece, about: str) -> Callable[..., RaceResult]:
        """Give a function that races candidates for one kernel; ``is_last`` races all of them."""
        inputs = _inputs(piece.graph, self.seed)
        findings = Findings(
            piece.graph, inputs, self.records, self.config, self.runner.limits.seconds
        )
        judge = Judge(piece.graph, inputs, seed=self.seed, runs=_RUNS, deadline=self.deadline)

        def race(
            candidates: list[Candidate], seconds: float, *, is_last: bool = False
        ) -> RaceResult:
            race = Race(
                inputs,
                self.runner,
                judge,
                findings,
                seconds,
                lambda what, share: self.tell(about),
                is_thorough=is_last,
                least=_LEAST_SECONDS,
                close=math.inf if len(candidates) == 2 else None,
            )
            return race.run(candidates)

        return race


def _lead(decision: RaceResult, before: Candidate) -> float:
    """Tell how many times as fast as before the chosen one is; 1 where that may be noise."""
    rows = {row.name: row for row in decision.tried}
    old, new = rows[before.name], rows[decision.chosen.name]
    pairs = ((old.seconds, new.seconds), (old.low, new.low))
    lead = min(a / b if a and b else 1.0 for a, b in pairs)
    return 1.0 if before.name in decision.ties or lead <= 1 + (decision.noise or 0.0) else lead


def _inputs(graph: Graph, seed: int) -> list[HostValue]:
    """Make inputs up: fractions of either sign, zeros and ones."""
    rng, found = np.random.default_rng(seed), list[HostValue]()
    for value in graph.inputs:
        of = tensor_of(value.type)
        shape = tuple(dim for dim in of.shape if isinstance(dim, int))
        low = -1.0 if of.dtype.is_float else 0.0
        found.append(Draw(shape, low=low, high=1.0).make(of.dtype, rng))
    return found


def _with(row: Tried, found: tuple[Candidate, list[Cut]] | None) -> Tried:
    return row if found is None else replace(row, tuned=tuple(map(asdict, found[1])))
