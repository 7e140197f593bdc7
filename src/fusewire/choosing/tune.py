"""Level 3: choose a configuration for each kernel of a candidate, and race tuned against untuned.

Kernels are timed one by one, in a child, by the device's own clock where it has one, and judged
like any candidate. Each tuned kernel has a record of its own, so another model with the same kernel
does not time it again. Finally the tuned candidates race the untuned ones, so that tuning never
makes a program slower.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from fusewire.choosing.findings import Findings
from fusewire.choosing.judge import Judge
from fusewire.choosing.measure import CLOSE
from fusewire.choosing.race import Progress, Race, RaceResult, lead
from fusewire.choosing.searching import SearchSetup
from fusewire.contract.backend import Config, Fact
from fusewire.contract.tuning import TUNED, Piece, Tuner, written
from fusewire.errors import FusewireError, NoneRightError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Graph, HostValue, Value
from fusewire.ir.types import tensor_of
from fusewire.numerics.scale import bindings_of
from fusewire.ops.sample import Draw
from fusewire.planning.candidates import Candidate
from fusewire.planning.planner import make_plan
from fusewire.planning.target import Target
from fusewire.process.guard import described, guarded
from fusewire.records.entries import Records
from fusewire.records.tunings import TunedKernel, keep, recall
from fusewire.show.ranks import ORDER
from fusewire.show.why import Tried
from fusewire.trials.trial import TrialRunner

# A candidate that takes more than this many times as long as the fastest is not worth tuning.
_HOPELESS = 4.0
# Kernels that take less than this share of the time are not tuned.
_SHARE = 0.01
# The least and the most seconds for choosing on one axis, and the least for timing within them. The
# most grows with a large budget, so that a kernel cut short by one budget completes with a larger.
_SHORTEST, _LONGEST, _LEAST_SECONDS = 3.0, 15.0, 1.0
_LARGEST = 0.125
# The shares of the budget between which kernels are tuned: whole candidates race before, and tuned
# against untuned ones after.
_BEGINS, _ENDS = 0.5, 0.85
# A smaller speedup does not justify another configuration.
_LEAD = 1.03
# Runs of the reference to judge a kernel, and timed runs to weigh it.
_RUNS, _WEIGHING = 8, 3


def improve(setup: SearchSetup, race: Race, result: RaceResult) -> RaceResult:
    """Tune the kernels of the best candidates, and race those as well, if that is asked for."""
    if not setup.tunes:
        return result
    tuning = Tuning(
        setup.runner,
        setup.records,
        setup.config,
        setup.inputs,
        setup.budget.start,
        setup.budget.seconds,
        setup.progress,
        setup.seed,
        setup.is_thorough,
    )
    return tuning.improve(result, race)


@dataclass
class Tuning:
    """Tunes the candidates of one race, which began at ``start`` on the monotonic clock."""

    runner: TrialRunner
    records: Records
    config: Config
    inputs: Sequence[HostValue]
    start: float
    budget: float
    progress: Progress = lambda what, share: None
    seed: int = 0
    is_thorough: bool = False
    is_cut: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def deadline(self) -> float:
        """The time after which no further kernel is tuned."""
        return self.start + _ENDS * self.budget

    def report(self, what: str) -> None:
        """Report progress."""
        self.progress(what, (time.monotonic() - self.start) / max(self.budget, 1e-3))

    def improve(self, result: RaceResult, race: Race) -> RaceResult:
        """Tune the best candidate of each backend that allows it, and race those as well."""
        tuned: dict[str, tuple[Candidate, list[TunedKernel]]] = {}
        against = [result.chosen.name]
        for candidate in self._worthy(result):
            kernels = self.tune_kernels(candidate)
            chosen = {kernel.key: kernel.chosen for kernel in kernels if kernel.is_other}
            if chosen:
                better = replace(candidate, options={**candidate.options, TUNED: written(chosen)})
                tuned[better.name] = better, kernels
                against = list(dict.fromkeys([*against, candidate.name]))
        if not tuned:
            notes = (*result.notes, *self.notes)
            return replace(result, notes=notes, is_cut=result.is_cut or self.is_cut)
        try:
            rematch = race.rematch((better for better, _ in tuned.values()), against)
        except NoneRightError as error:
            return self._as_before(result, error)
        rows = tuple(_with_kernels(row, tuned.get(row.name)) for row in rematch.tried)
        return replace(
            rematch,
            tried=rows,
            notes=(*rematch.notes, *self.notes),
            is_cut=rematch.is_cut or result.is_cut or self.is_cut,
        )

    def _as_before(self, result: RaceResult, error: NoneRightError) -> RaceResult:
        """Keep the result of the first race, since its candidates failed in the rematch."""
        rows = {row.name: row for row in error.tried}
        name = result.chosen.name
        if rows[name].status in ("doubtful", "wrong"):
            raise error
        note = f"{name} failed in the race against tuned kernels, and stays as it was: "
        notes = (*result.notes, *self.notes, note + rows[name].reason)
        return replace(result, notes=notes, is_cut=True)

    def _worthy(self, result: RaceResult) -> Iterator[Candidate]:
        """Yield the fastest candidate of each device whose backend can be tuned."""
        rows = [row for row in result.tried if row.name in result.trials]
        timed = [row for row in rows if row.seconds is not None and row.status in ORDER]
        seen: set[tuple[str, str]] = set()
        least = min((row.seconds or 0.0 for row in timed), default=0.0)
        for row in sorted(timed, key=lambda row: row.seconds or 0.0):
            candidate = result.trials[row.name].candidate
            device = candidate.target.name, candidate.target.device.id
            if device in seen or not isinstance(candidate.target.backend, Tuner):
                continue
            seen.add(device)
            if self.is_thorough or (row.seconds or 0.0) <= _HOPELESS * least:
                yield candidate
            else:
                ratio = (row.seconds or 0.0) / least
                self.notes.append(
                    f"{candidate.name} takes {ratio:.1f} times as long as the fastest, and is not "
                    "tuned."
                )

    def tune_kernels(self, candidate: Candidate) -> list[TunedKernel]:
        """Choose the configurations of a candidate's kernels, the heaviest first."""
        target = candidate.target
        known = {
            piece.key: (piece, recall(self.records, target.backend, target.device, piece))
            for piece in self._pieces(candidate)
        }
        kernels = [kernel for _, kernel in known.values() if kernel is not None]
        new = [piece for piece, kernel in known.values() if kernel is None]
        weights = self._weights(target, new)
        late = [piece for piece in new if piece.key not in weights]
        least = _SHARE * sum(weights.values())
        heavy = [piece for piece in new if weights.get(piece.key, 0.0) > least]
        heavy.sort(key=lambda piece: -weights[piece.key])
        for number, piece in enumerate(heavy):
            # The remaining time is shared in proportion to the remaining work.
            share = weights[piece.key] / sum(weights[rest.key] for rest in heavy[number:])
            seconds = (self.deadline - time.monotonic()) * share / (len(piece.axes) + 1)
            most = max(_LONGEST, _LARGEST * self.budget)
            about = f"tuning kernel {number + 1} of {len(heavy)}"
            kernel = self._tune(target, piece, about, min(max(seconds, _SHORTEST), most))
            if kernel is not None:
                kernels.append(kernel)
                if not kernel.is_late:
                    keep(self.records, target.backend, target.device, piece, kernel)
            if (time.monotonic() > self.deadline) if kernel is None else kernel.is_late:
                late.append(piece)
        self._note(candidate, kernels, late)
        return kernels

    def _note(
        self, candidate: Candidate, kernels: Sequence[TunedKernel], late: Sequence[Piece]
    ) -> None:
        others = sum(kernel.is_other for kernel in kernels)
        before = sum(kernel.cache == "hit" for kernel in kernels)
        parts = [f"{others} of {len(kernels)} tuned kernels have another configuration"]
        parts *= bool(kernels)
        parts += [f"{before} were known"] * bool(before)
        if late:
            self.is_cut = True
            some = sum(kernel.is_late for kernel in kernels)
            # The least that choosing takes, divided by the share of the budget for it.
            takes = _SHORTEST * sum(len(piece.axes) + 1 for piece in late) / (_ENDS - _BEGINS)
            enough = math.ceil(max(takes, 2 * self.budget) / 10) * 10
            parts += [f"{some} were tuned in part"] * bool(some)
            parts += [f"{len(late) - some} were not tuned"] * (len(late) > some)
            parts[-1] += f": the budget was used up. Try budget_seconds={enough}"
        text = "; ".join(parts) or "it has no kernels to tune"
        self.notes.append(f"{candidate.name}: {text}.")

    def _pieces(self, candidate: Candidate) -> list[Piece]:
        target, plan = candidate.target, candidate.planned.plan
        backend, config = target.backend, candidate.config(self.config)
        assert isinstance(backend, Tuner)
        sizes, pieces = dict(bindings_of(plan.graph, self.inputs)), dict[str, Piece]()
        for region in plan.regions():
            if region.backend != target.name:
                continue
            graph = bind_symbols(region.graph, sizes)
            asked = graph, target.device, config
            for piece in guarded(target.name, "claim", described(graph), backend.pieces, *asked):
                other = pieces.get(piece.key)
                count = piece.count + (0 if other is None else other.count)
                pieces[piece.key] = replace(piece, count=count)
        return list(pieces.values())

    def _weights(self, target: Target, pieces: Sequence[Piece]) -> dict[str, float]:
        """Time the kernels, by key, as far as the budget allows: seconds per run of the graph."""
        weights: dict[str, float] = {}
        for number, piece in enumerate(pieces):
            self.report(f"weighing kernel {number + 1} of {len(pieces)}")
            if time.monotonic() > self.deadline:
                break
            inputs = generated_inputs(piece.graph, self.seed)
            try:
                trial = self.runner.attempt(self._candidate(target, piece, piece.untuned), inputs)
                seconds = min(trial.seconds(inputs, _WEIGHING))
            except FusewireError:
                # A kernel that does not run alone is not tuned.
                seconds = 0.0
            weights[piece.key] = seconds * piece.count
        return weights

    def _candidate(self, target: Target, piece: Piece, chosen: Mapping[str, Fact]) -> Candidate:
        assert isinstance(target.backend, Tuner)
        options = {**target.backend.clock(target.device), **chosen}
        return Candidate(target, make_plan(piece.graph, [target]), options=options)

    def _tune(self, target: Target, piece: Piece, about: str, seconds: float) -> TunedKernel | None:
        """Choose the values of one kernel, axis by axis; None if none is right, or time is up."""
        chosen, gain, is_late = piece.untuned, 1.0, False
        race = self._races(piece, about)
        try:
            for number, (axis, values) in enumerate(piece.axes.items()):
                if time.monotonic() > self.deadline:
                    if number == 0:
                        return None
                    is_late = True
                    break
                candidates = [
                    self._candidate(target, piece, {**chosen, axis: value}) for value in values
                ]
                result = race(candidates, seconds)
                is_late |= result.is_cut
                if lead(result, candidates[0]) > _LEAD:
                    chosen[axis] = result.chosen.options[axis]
            if chosen != piece.untuned:
                # The best of many is biased towards luck: it races the untuned kernel once more.
                candidates = [
                    self._candidate(target, piece, choice) for choice in (piece.untuned, chosen)
                ]
                left = max(self.deadline - time.monotonic(), _LEAST_SECONDS)
                result = race(candidates, min(seconds, left), is_last=True)
                is_late |= result.is_cut
                gain = lead(result, candidates[0])
        except FusewireError:
            return None
        if gain <= _LEAD:
            chosen, gain = piece.untuned, 1.0
        is_other = chosen != piece.untuned
        return TunedKernel(
            piece.key, piece.name, piece.count, chosen, gain, is_other, is_late=is_late
        )

    def _races(self, piece: Piece, about: str) -> Callable[..., RaceResult]:
        """Return a function that races candidates for one kernel; ``is_last`` tries all of them."""
        inputs = generated_inputs(piece.graph, self.seed)
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
                lambda what, share: self.report(about),
                is_thorough=is_last,
                least=_LEAST_SECONDS,
                close=math.inf if len(candidates) == 2 else CLOSE,
            )
            return race.run(candidates)

        return race


def generated_inputs(graph: Graph, seed: int) -> list[HostValue]:
    """Generate inputs: fractions of either sign, zeros and ones."""
    rng = np.random.default_rng(seed)
    return [drawn(value, rng) for value in graph.inputs]


def drawn(value: Value, rng: np.random.Generator) -> HostValue:
    """Generate an array for a tensor of known sizes."""
    type_ = tensor_of(value.type)
    shape = tuple(dim for dim in type_.shape if isinstance(dim, int))
    low = -1.0 if type_.dtype.is_float else 0.0
    return Draw(shape, low=low, high=1.0).make(type_.dtype, rng)


def _with_kernels(row: Tried, tuned: tuple[Candidate, list[TunedKernel]] | None) -> Tried:
    return row if tuned is None else replace(row, tuned=tuple(map(asdict, tuned[1])))
