"""Level 1: try the candidates in children, time them, judge the best, choose the fastest right one.

Recorded verdicts and times are not measured again. Candidates that the budget did not reach are
reported as such. A wrong candidate is never chosen, and its fault is recorded. A doubtful one is
not chosen either, but nothing is recorded: it is judged again on other inputs. One that computes in
less than the model's own dtypes is chosen only if it was judged accurate enough, and is faster than
the best exact one by more than the noise.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from fusewire.choosing.accuracy import AccuracyJudge, shown_error
from fusewire.choosing.blame import wrong_engines
from fusewire.choosing.budget import Coverage, DecisionBudget, left_until
from fusewire.choosing.findings import Findings
from fusewire.choosing.judge import POISON, Judge, Judgement
from fusewire.choosing.measure import CLOSE, Comparison, Contender, Timing, compare
from fusewire.choosing.quiet import CallWatch
from fusewire.choosing.repro import explain_fault
from fusewire.choosing.upcoming import Upcoming
from fusewire.contract.backend import OPEN, RUN_BYTES, SIZES
from fusewire.errors import (
    BackendHung,
    BackendKilled,
    BackendNotStarted,
    BudgetError,
    EngineError,
    EngineOutOfMemory,
    FusewireError,
    NoneRightError,
    RefusedError,
    note,
)
from fusewire.ir.graph import HostValue
from fusewire.ir.live import call_bytes
from fusewire.numerics.deviation import Deviation
from fusewire.plan.finite import LOST_INSIDE
from fusewire.plan.fitting import is_fitted
from fusewire.plan.regions import shape_of
from fusewire.planning.candidates import Candidate, Unfit
from fusewire.planning.target import Target
from fusewire.show.ranks import ORDER, is_below
from fusewire.show.why import Tried
from fusewire.trials.trial import CandidateTrial, TrialRunner

# The share of the budget after which no more candidates are tried: the rest is for timing them. A
# thorough race tries more of them, and so does one that asks for it.
TRYING, TRYING_MORE = 0.5, 0.7
# The reference is slow: it races only where the quickest engine takes less than this per run.
_TINY_SECONDS = 1e-3
# It also races in graphs of so few nodes, each of which may be one loop of NumPy.
_FEW_NODES = 4
# The share of the budget after which a thorough race times what it has tried: verdicts that are
# missing then come after the times.
_JUDGING_FIRST = 0.75
# The share of the remaining budget for timing: the best candidate is judged afterwards.
_COMPARING = 0.6
# The part of that if a candidate in less precision errs too much: mixtures are looked for, too.
_COMPARING_MORE = 0.5
# Timing takes at least this long.
LEAST_SECONDS = 4.0
# Engines that refuse nodes are tried together with others if they take up to so many times as long
# as the quickest, since the reference may be slow; the most of them, and in a thorough race.
_NEAR, _MOST_JOINED, _MOST_JOINED_OF_ALL = 10.0, 2, 4
# On a machine with more noise than this, a lead of this size decides for less precision.
_MOST_NOISE = 0.25
# Compiling the fastest once more, with open sizes, may take so many seconds whatever the budget.
_OPENED = 3.0
# Seconds for timing a candidate that is alone.
_ALONE = 0.5
# Seconds for timing when the budget is used up, and how exact the clock of a deadline is.
_SHORTEST, _CLOCK = 0.5, 0.1
# The most candidates that are judged besides the chosen one since they may be as fast.
_MOST_CLOSE = 2
# The most nodes that a sentence lists.
_LISTED = 4
Progress = Callable[[str, float], None]
# Plans the graph on a target, with others for what it refuses; None if they would not help.
Join = Callable[[Target, Sequence[Target]], Candidate | None]


@dataclass(frozen=True)
class RaceResult:
    """The candidates that were tried, the chosen one first, and notes about the choice.

    ``noise`` is how much a candidate may differ from itself; ``ties`` are as fast as the chosen one
    within the noise. ``is_cut``: with more time, another candidate might have been chosen.
    """

    tried: tuple[Tried, ...]
    chosen: Candidate
    noise: float | None = None
    notes: tuple[str, ...] = ()
    trials: Mapping[str, CandidateTrial] = field(default_factory=dict)
    is_cut: bool = False
    ties: tuple[str, ...] = ()
    # The user's own function serves, and not the chosen candidate.
    is_function: bool = False
    # What the budget left out; None if it left out nothing.
    coverage: Coverage | None = None
    # Right candidates that the race does not tell from the chosen one, the fastest first.
    rivals: tuple[Candidate, ...] = ()
    # The name of what the chosen candidate runs at sizes that it was not compiled for, if any.
    opened: str = ""


class RaceInterrupted(KeyboardInterrupt):
    """Ctrl-C during a race; ``tried`` has what was found so far."""

    def __init__(self, tried: tuple[Tried, ...]) -> None:
        super().__init__()
        self.tried = tried


class Race:
    """Races the candidates of a graph on one set of inputs.

    With ``is_thorough`` every candidate is tried; otherwise software devices only if nothing better
    runs, and so the reference unless ``has_reference``. ``start`` is when the budget began, if that
    was earlier. ``expected`` lists the backends that would come if there was time. Timing may take
    ``least`` seconds whatever the budget. Candidates that take up to ``close`` times as long as the
    best reach the final; the default admits few. Samples that a call overlapped are
    discarded, if there is a ``watch``. With ``join``, engines that refuse nodes are also tried
    together with others. ``accuracy`` judges candidates that compute in less than the model's own
    dtypes. Candidates that hold more than ``memory_limit`` bytes at once are timed, and not chosen;
    those that spend more than ``max_fallback_share`` of their time outside of their targets are
    refused. ``trying`` is the share of the budget after which no more candidates are tried.
    """

    def __init__(
        self,
        inputs: Sequence[HostValue],
        runner: TrialRunner,
        judge: Judge,
        findings: Findings,
        budget: float,
        progress: Progress = lambda what, share: None,
        *,
        is_thorough: bool = False,
        least: float = LEAST_SECONDS,
        close: float = CLOSE,
        start: float | None = None,
        has_reference: bool = False,
        expected: Callable[[], Sequence[str]] = tuple,
        watch: CallWatch | None = None,
        join: Join | None = None,
        accuracy: AccuracyJudge | None = None,
        memory_limit: int | None = None,
        max_fallback_share: float | None = None,
        trying: float | None = None,
    ) -> None:
        self._inputs, self._runner = inputs, runner
        self._judge, self.accuracy, self._findings = judge, accuracy, findings
        begin = time.monotonic() if start is None else start
        self._budget = DecisionBudget(max(budget, 1e-3), begin)
        self._has_reference, self._expected, self._report = has_reference, expected, progress
        self._is_thorough, self._least = is_thorough, least
        self._trying = trying or (TRYING_MORE if is_thorough else TRYING)
        self._watch, self._join, self._close = watch, join, close
        self._memory_limit, self._bytes = memory_limit, dict[str, int]()
        self._most_outside, self._outside = max_fallback_share, dict[str, str]()
        self._fit, self._unfit = list[Candidate](), list[Unfit]()
        self._rows, self._trials = dict[str, Tried](), dict[str, CandidateTrial]()
        self._wrong, self._faults = dict[str, Judgement](), list[str]()
        self._timing, self._samples = "", dict[str, list[float]]()
        # Those that were judged, that the budget did not reach, and what fitted ones are elsewhere.
        self._judged, self._late, self._twins = set[str](), set[str](), dict[str, str]()
        self._learning = threading.Thread(target=judge.prepare, daemon=True)

    def _progress(self, what: str) -> None:
        self._report(what, self._budget.used)

    def run(self, candidates: Iterable[Candidate | Unfit]) -> RaceResult:
        """Try, judge and time the candidates, and choose one."""
        # The reference computes the right answers while engines compile.
        self._learning.start()
        try:
            # What comes after it may ask the oracle: who made the judge stops it.
            return self._run(candidates)
        except NoneRightError:
            raise
        except KeyboardInterrupt as interrupt:
            self._judge.stop()
            raise RaceInterrupted(self._found_so_far()) from interrupt
        except BaseException:
            # The thread would go on for nobody.
            self._judge.stop()
            raise

    def _found_so_far(self) -> tuple[Tried, ...]:
        """Return the rows of an interrupted race, with the times that were taken.

        They include those of a comparison that is under way.
        """
        for name, samples in self._samples.items():
            if self._rows[name].seconds is None:
                timing = Timing(tuple(samples))
                low, high = timing.interval
                row = replace(self._rows[name], seconds=timing.median, low=low, high=high)
                self._rows[name] = row
        return tuple(sorted(self._rows.values(), key=worth))

    def _run(self, candidates: Iterable[Candidate | Unfit]) -> RaceResult:
        self._try_all(candidates)
        self._try_joined()
        if self._is_thorough or any(map(self._is_reduced, self._trials)):
            self._judge.wait_for_given(left_until(self._budget.judging_ends))
        self._check_reduced()
        if self._is_thorough:
            self._check_all(self._budget.end(_JUDGING_FIRST))
        best = self._fastest_right(self._compare())
        if best is None:
            self._last_resort()
            best = self._fastest_right(self._compare())
        if self._is_thorough:
            self._check_rest()
        elif best is not None:
            self._check_close(best)
        return self._result(best)

    def _try_all(self, candidates: Iterable[Candidate | Unfit]) -> None:
        """Try candidates as engines start; those that start too late are not waited for."""
        upcoming = Upcoming(candidates)
        try:
            while (candidate := upcoming.take(self._seconds_for_starting())) is not None:
                if isinstance(candidate, Unfit):
                    self._rows[candidate.name] = unfit(candidate)
                    self._unfit.append(candidate)
                else:
                    self._fit.append(candidate)
                    self._try(candidate)
        finally:
            upcoming.close()
        if not upcoming.is_done:
            for name in self._expected():
                if all(row.backend != name for row in self._rows.values()):
                    reason = "It had not started when the budget was used up. Raise budget_seconds."
                    self._rows[name] = Tried(name, name, "", "native", "not tried", reason)
                    self._late.add(name)

    def _try_joined(self) -> None:
        """Try engines that refuse nodes together with others, which may do better than NumPy."""
        if self._join is None:
            return
        for target in self._worth_joining():
            candidate = self._join(target, self._partners(target))
            if candidate is not None and candidate.name not in self._rows:
                self._fit.append(candidate)
                self._try(candidate)

    def _natives(self) -> list[CandidateTrial]:
        """List the plain candidates of engines that ran, the quickest first."""
        plain = [name for name, trial in self._trials.items() if is_plain(trial.candidate)]
        return [self._trials[name] for name in sorted(plain, key=self._first_run)]

    def _worth_joining(self) -> list[Target]:
        """List the targets whose refusals may be all that keeps them from being the best."""
        most = _MOST_JOINED_OF_ALL if self._is_thorough else _MOST_JOINED
        natives = self._natives()
        if not natives:
            refusing = [x.target for x in self._unfit if x.fault is None]
            return [x for x in refusing if not x.backend.info.is_slow][:most]
        quickest = min(map(self._first_run, self._trials))
        targets = [
            trial.candidate.target
            for trial in natives
            if trial.candidate.planned.fallback_nodes()
            and self._first_run(trial.candidate.name) <= _NEAR * quickest
        ]
        return targets[:most]

    def _partners(self, target: Target) -> list[Target]:
        """List the targets that may run what one refuses, the quickest first; none is emulated."""
        ran = [trial.candidate.target for trial in self._natives()]
        refusing = [x.target for x in self._unfit if x.fault is None and not ran]
        partners: dict[str, Target] = {}
        for other in (*ran, *refusing):
            info = other.backend.info
            if not (info.is_slow or other.device.is_software):
                partners.setdefault(other.name, other)
        partners.pop(target.name, None)
        return list(partners.values())

    def _seconds_for_starting(self) -> float:
        if not self._trials:
            return math.inf
        return max(left_until(self._budget.end(self._trying)), _SHORTEST)

    def _check_reduced(self) -> None:
        """Judge what computes in less precision before timing, which uses up the budget.

        It is never chosen unjudged, and one that is not accurate enough need not be timed.
        """
        reduced = sorted(filter(self._is_reduced, self._trials), key=self._first_run)
        if reduced:
            self._measure_by_the_quickest()
        for name in reduced:
            self._check(name)

    def _measure_by_the_quickest(self) -> None:
        """Have the quickest exact candidate that is right answer for the reference."""
        # The samples of a user may have other sizes.
        exact = [
            name
            for name, trial in self._trials.items()
            if not self._is_reduced(name) and not self._is_fitted(trial.candidate)
        ]
        for name in sorted(exact, key=self._first_run):
            if name not in self._judged:
                self._check(name)
            if self._rows[name].status != "right":
                continue
            assert self.accuracy is not None, "only who accepts less has such candidates"
            try:
                self.accuracy.measure_by(self._trials[name].run)
            except EngineError as error:
                status = failed_status(error)
                self._rows[name] = replace(self._rows[name], status=status, reason=str(error))
                continue
            return

    def _check_all(self, end: float) -> None:
        """Judge candidates until a time: each engine by itself first, and those that ran fastest.

        One is judged in any case.
        """
        trials = self._trials
        order = sorted(
            trials, key=lambda x: (not is_plain(trials[x].candidate), self._first_run(x))
        )
        for name in order:
            if name not in self._judged and (not self._judged or time.monotonic() < end):
                self._check(name)

    def _check_rest(self) -> None:
        """Judge those that were timed before they were judged, while there is time."""
        self._check_all(self._budget.judging_ends)
        for name in self._trials:
            if name not in self._judged:
                reason = "The budget was used up before it was judged. Raise budget_seconds."
                self._rows[name] = replace(self._rows[name], reason=reason)
                self._late.add(name)
            elif self._rows[name].status not in ORDER:
                self._rows[name] = replace(self._rows[name], seconds=None, low=None, high=None)

    def _check_close(self, comparison: Comparison) -> None:
        """Judge the next candidates that may be as fast as the chosen one, while there is time."""
        timings = comparison.timings
        least = timings[comparison.fastest].interval
        close = [n for n in timings if not is_below(least, timings[n].interval)]
        for name in sorted(close, key=lambda name: timings[name].median)[: _MOST_CLOSE + 1]:
            is_due = name not in self._judged and not self._is_fitted(self._trials[name].candidate)
            if is_due and len(timings[name].samples) > 1 and left_until(self._budget.judging_ends):
                self._check(name)

    def _first_run(self, name: str) -> float:
        return self._trials[name].contact.metrics.get("run_seconds", 0.0)

    def rematch(
        self,
        candidates: Iterable[Candidate],
        against: Iterable[str],
        budget: float | None = None,
    ) -> RaceResult:
        """Race further candidates against those named; all others are out.

        The ``budget`` is that of the race and of what comes after it, if they share one.
        """
        names = [*against]
        if budget is not None:
            self._budget = DecisionBudget(budget, self._budget.start)
        self._wrong.clear()
        self._close, self._least = math.inf, LEAST_SECONDS
        for candidate in candidates:
            self._fit.append(candidate)
            self._try(candidate, is_last=True)
            if candidate.name in self._trials:
                self._check(candidate.name)
                names.append(candidate.name)
        self._trials = {name: self._trials[name] for name in names}
        for name in names:
            # The first race had no time to judge it, or no need to.
            if self._rows[name].status == "not judged":
                self._check(name)
        self._rows = {name: replace(row, is_chosen=False) for name, row in self._rows.items()}
        return self._result(self._fastest_right(self._compare()))

    def _fastest_right(self, comparison: Comparison | None) -> Comparison | None:
        """Judge from the fastest on, until one is not wrong: slower ones need no verdict."""
        while comparison is not None:
            is_over = self._is_over(comparison.fastest)
            if comparison.fastest not in self._judged and not is_over:
                self._check(comparison.fastest)
            may_win = self._may_win(comparison.fastest) and not self._gains_nothing(comparison)
            if may_win and self._serves_other_sizes(comparison.fastest):
                return comparison
            comparison = comparison.without(comparison.fastest)
        return None

    def _may_win(self, name: str) -> bool:
        """Tell whether a candidate that was judged may be used; less precision must be right."""
        status = self._rows[name].status
        if self._is_over(name):
            return False
        return status == "right" if self._is_reduced(name) else status in ORDER

    def _serves_other_sizes(self, name: str) -> bool:
        """Tell whether a candidate may be used at sizes that it was not compiled for.

        One that is compiled for the sizes of the race also has to be right with open ones.
        """
        candidate = self._trials[name].candidate
        if name in self._twins or not self._is_fitted(candidate):
            return True
        options = {key: value for key, value in candidate.options.items() if key != SIZES}
        if SIZES in self._runner.config.options:
            options[SIZES] = OPEN
        opened = replace(candidate, options=options)
        took = self._rows[name].compile_seconds or 0.0
        left = max(left_until(self._budget.oracle_ends), _OPENED)
        if opened.name not in self._rows and took < left:
            self._fit.append(opened)
            self._try(opened, is_last=True)
        if opened.name in self._trials and opened.name not in self._judged:
            self._check(opened.name)
        row = self._rows.get(opened.name)
        if row is None and self._rows[name].status == "not judged":
            # There was no time for either, which the notes say, and a longer search makes up for.
            return True
        enough = ("right",) if candidate.is_reduced else ORDER
        if row is not None and row.status in enough and not self._is_over(opened.name):
            self._twins[name] = opened.name
            return True
        found = "not tried." if row is None else f"{row.status}. {row.reason}".rstrip()
        reason = f"Other sizes would run {opened.name}, which is {found}"
        self._rows[name] = replace(self._rows[name], reason=reason, is_barred=True)
        return False

    def _is_fitted(self, candidate: Candidate) -> bool:
        """Tell whether parts of a candidate are compiled for known sizes, and for any."""
        return any(
            target is not None and is_fitted(region, candidate.config(self._runner.config, target))
            for region in candidate.planned.plan.regions()
            for target in [candidate.target_of(region)]
        )

    def _is_over(self, name: str) -> bool:
        """Tell whether a candidate holds more at once than the user allows."""
        return self._memory_limit is not None and self._bytes.get(name, 0) > self._memory_limit

    def _over(self) -> dict[str, int]:
        """Map the candidates that only hold too much to their bytes."""
        rows, over = self._rows, filter(self._is_over, self._trials)
        return {name: self._bytes[name] for name in over if rows[name].status in ORDER}

    def _is_reduced(self, name: str) -> bool:
        return self._trials[name].candidate.is_reduced

    def _gains_nothing(self, comparison: Comparison) -> bool:
        """Tell whether the fastest computes in less precision, and no faster than an exact one."""
        fastest = comparison.fastest
        exact = {
            name: timing
            for name, timing in comparison.timings.items()
            if not self._is_reduced(name) and self._rows[name].status in ORDER
        }
        if not self._is_reduced(fastest) or not exact:
            return False
        best = min(exact, key=lambda name: exact[name].median)
        if comparison.is_faster(fastest, best, _MOST_NOISE):
            return False
        reason = f"It is not faster than {best} by more than the noise, and less accurate."
        self._rows[fastest] = replace(self._rows[fastest], reason=reason)
        return True

    def _try(self, candidate: Candidate, is_last: bool = False) -> None:
        name, row = candidate.name, described(candidate)
        self._findings.reconsider(candidate)
        fault = self._findings.fault(candidate)
        reason = fault or (None if is_last else self._hopeless(candidate))
        if reason is not None:
            status = "quarantined" if fault else "not tried"
            self._rows[name] = replace(row, status=status, reason=reason)
            return
        self._progress(f"trying {name}")
        start = time.monotonic()
        # Without any candidate there is nothing to choose: the first has all the time it needs.
        end = self._budget.attempts_end if self._trials and not is_last else math.inf
        try:
            trial = self._trial(candidate, end - start)
        except (BudgetError, EngineError) as error:
            if isinstance(error, BackendHung) and time.monotonic() >= end - _CLOCK:
                self._late.add(name)
                reason = f"It was still compiling after {time.monotonic() - start:.0f} s."
                self._rows[name] = replace(row, status="not tried", reason=reason)
                return
            self._stop_if_beyond(error)
            if isinstance(error, EngineError):
                self._findings.blame(candidate, error.code, error.reason)
            note(f"{name} is out of the comparison: {error}")
            self._rows[name] = replace(row, status=failed_status(error), reason=str(error))
            return
        if self._is_outside(trial):
            self._rows[name] = replace(row, status="refused", reason=self._outside[name])
            return
        self._trials[name] = trial
        metrics = trial.contact.metrics
        took = sum(metrics.get(f"{phase}_seconds", 0.0) for phase in ("compile", "load"))
        memory = int(metrics["peak_bytes"]) if "peak_bytes" in metrics else None
        reason = LOST_INSIDE if candidate.may_lose_nan(self._runner.config) else ""
        self._rows[name] = replace(row, compile_seconds=took, memory_bytes=memory, reason=reason)
        if self._memory_limit is not None:
            self._weigh(name, trial)

    def _is_outside(self, trial: CandidateTrial) -> bool:
        """Tell whether a candidate spends too much time outside of its targets; keep the reason."""
        most, share = self._most_outside, trial.outside_share
        if most is None or share <= most:
            return False
        candidate = trial.candidate
        self._outside[candidate.name] = (
            f"{candidate.name} would spend {share:.1%} of its time outside of "
            f"{' and '.join(x.name for x in candidate.targets)}, and max_fallback_share={most:g} "
            f"allows {most:.1%}. {nodes_outside(candidate)}"
        )
        return True

    def _weigh(self, name: str, trial: CandidateTrial) -> None:
        """Note the bytes that a candidate holds at once: what its engine planned, or op by op."""
        plan = trial.candidate.planned.plan
        own = trial.contact.metrics.get(RUN_BYTES) if plan.is_whole else None
        by_ops = call_bytes(plan.graph, list(map(shape_of, self._inputs)))
        count = self._bytes[name] = by_ops if own is None else int(own)
        if self._is_over(name):
            reason = (
                f"It holds {count:,} bytes at once, and memory_limit is {self._memory_limit:,}."
            )
            self._rows[name] = replace(self._rows[name], reason=reason, is_barred=True)

    def _trial(self, candidate: Candidate, seconds: float) -> CandidateTrial:
        """Run a candidate in a child; what took long to compile is recorded, and not made again."""
        artifact = self._findings.slow_artifact(candidate)
        if artifact is not None:
            try:
                return self._runner.attempt(candidate, self._inputs, seconds, artifact)
            except EngineError:
                # It ran before, so something has changed since: compile it again.
                self._findings.drop_slow_artifact(candidate)
        trial = self._runner.attempt(candidate, self._inputs, seconds)
        self._findings.keep_slow_artifact(trial)
        return trial

    def _stop_if_beyond(self, error: BudgetError | EngineError) -> None:
        """Raise if neither an engine nor the reference kept to the limits: nobody else will."""
        if not isinstance(error, BudgetError | EngineOutOfMemory | BackendHung) or self._trials:
            return
        self._judge.wait_for_given(self._judge.limits.seconds)
        if self._judge.beyond:
            raise BudgetError(f"No engine kept to the limits. {self._judge.beyond}") from error

    def _hopeless(self, candidate: Candidate) -> str | None:
        """Say why a candidate is not worth the time, or None."""
        if not self._trials:
            return None
        if self._budget.used > self._trying:
            self._late.add(candidate.name)
            return "The budget was used up before its turn. Raise budget_seconds."
        if self._is_thorough:
            return None
        engines = candidate.engines
        info = engines[0].backend.info
        software = [x.device for x in engines if x.device.is_software]
        others = ", ".join(
            n for n, x in self._trials.items() if x.candidate.target != candidate.target
        )
        if not others:
            return None
        if software:
            run = "runs" if len(self._trials) == 1 else "run"
            return f"{software[0].name} is emulated by the processor, where {others} {run} too."
        quickest = min(map(self._first_run, self._trials))
        is_short = len(candidate.planned.plan.graph.nodes) <= _FEW_NODES or self._has_reference
        if info.trusted and quickest > _TINY_SECONDS and not is_short:
            return f"Skipped: it is rarely faster than {others}."
        return None

    def _last_resort(self) -> None:
        """Try the candidates that were passed over, since none of the others is right."""
        for candidate in self._fit:
            if self._rows[candidate.name].status == "not tried":
                self._try(candidate, is_last=True)
                if candidate.name in self._trials:
                    self._check(candidate.name)

    def _check(self, name: str) -> None:
        self._progress(f"checking {name}")
        self._judged.add(name)
        trial = self._trials[name]
        known = self._findings.verdict(trial.candidate)
        try:
            judged = known or self._judged_by(trial)
        except EngineError as error:
            status = failed_status(error)
            self._rows[name] = replace(self._rows[name], status=status, reason=str(error))
            return
        if judged.status == "wrong":
            self._wrong[name] = judged
        engines = self._to_blame(name) if known is None else None
        if known is None:
            self._findings.keep_verdict(trial.candidate, judged, engines)
        blamed = f" Alone, {' and '.join(engines)} is wrong about its part." if engines else ""
        row, reason = self._rows[name], judged.reason + blamed
        # What keeps it from being chosen is said first, whatever the verdict.
        said = f"{row.reason} {reason}".strip() if row.is_barred else reason or row.reason
        self._rows[name] = replace(
            row,
            status=judged.status,
            reason=said,
            error=judged.error if math.isfinite(judged.error) else None,
            unjudged=judged.unjudged,
            judged_on=judged.sets,
            cache="" if known is None else "hit",
            deviations=tuple(map(_finite, judged.errors)),
            expected_error=judged.limit if judged.errors and judged.limit < math.inf else None,
        )

    def _judged_by(self, trial: CandidateTrial) -> Judgement:
        """Judge a candidate: what computes in less precision, by what the user accepts."""
        if not trial.candidate.is_reduced:
            keeps_nan = not trial.candidate.may_lose_nan(self._runner.config)
            return self._judge.judge(trial.run, keeps_nan=keeps_nan)
        assert self.accuracy is not None, "only who accepts less precision has such candidates"
        return self.accuracy.judge(trial.run)

    def _to_blame(self, name: str) -> tuple[str, ...] | None:
        """Find which engines of a wrong candidate are to blame; None if that is not known."""
        judged, candidate = self._wrong.get(name), self._trials[name].candidate
        if judged is None or judged.kind == POISON or len(candidate.engines) == 1:
            return None
        runner, inputs = self._runner, self._inputs_of(judged)
        end = self._budget.oracle_ends
        given = runner.config, runner.limits, runner.reference_of, end
        return wrong_engines(candidate, inputs, *given)

    def _inputs_of(self, judged: Judgement) -> Sequence[HostValue]:
        return next(x.values for x in self._judge.sets if x.kind == judged.kind)

    def _eligible(self) -> dict[str, CandidateTrial]:
        """Return the trials that may win; the fastest of them is judged, if it is not yet."""
        statuses = {name: self._rows[name].status for name in self._trials}
        return {
            name: self._trials[name]
            for name, status in statuses.items()
            if status in ORDER and (name not in self._judged or self._may_win(name))
        }

    def _compare(self) -> Comparison | None:
        while fit := self._eligible():
            candidates = [trial.candidate for trial in fit.values()]
            if (known := self._findings.times(candidates)) is not None:
                return self._record_times(known)
            contenders = {
                n: Contender(partial(self._timed, x), x.pid, self._watch) for n, x in fit.items()
            }
            try:
                with self._judge.paused(self._budget.latest):
                    seconds = self._seconds_for_timing() if len(fit) > 1 else _ALONE
                    comparison = compare(
                        contenders,
                        seconds,
                        lambda name: self._progress(f"timing {name}"),
                        self._close,
                        expected=self._first_run,
                    )
                if comparison.timings.keys() == fit.keys():
                    self._findings.keep_times(candidates, comparison)
                return self._record_times(comparison)
            except EngineError as error:
                # It ran before and fails now: the others race without it.
                name = self._timing
                self._findings.blame(self._trials[name].candidate, error.code, error.reason)
                status = failed_status(error)
                self._rows[name] = replace(self._rows[name], status=status, reason=str(error))
        return None

    def _seconds_for_timing(self) -> float:
        budget = self._budget
        share = _COMPARING
        if any(row.status == "inaccurate" for row in self._rows.values()):
            share *= _COMPARING_MORE
        seconds = max(self._least, share * budget.seconds * (1 - budget.used))
        end = budget.end(0.0, max(budget.seconds, self._least) + 0.5)
        return min(seconds, max(left_until(end), _SHORTEST))

    def _record_times(self, comparison: Comparison) -> Comparison:
        for name, timing in comparison.timings.items():
            low, high = timing.interval
            self._rows[name] = replace(self._rows[name], seconds=timing.median, low=low, high=high)
        return comparison

    def _timed(self, trial: CandidateTrial, count: int) -> Sequence[float]:
        self._timing = trial.candidate.name
        seconds = trial.seconds(self._inputs, count)
        self._samples.setdefault(self._timing, []).append(statistics.median(seconds))
        return seconds

    def _result(self, comparison: Comparison | None) -> RaceResult:
        if comparison is None and (over := self._over()):
            least = min(over, key=lambda name: over[name])
            raise BudgetError(
                f"Every plan holds more than memory_limit={self._memory_limit:,} bytes at once. "
                f"The smallest, {least}, needs {over[least]:,}. Raise memory_limit, or give "
                "smaller inputs."
            )
        if comparison is None and self._outside:
            raise RefusedError(
                f"{' '.join(self._outside.values())} Raise max_fallback_share, or choose another "
                "backend."
            )
        if comparison is None:
            reasons = " ".join(f"{name}: {row.reason}" for name, row in self._rows.items())
            rows = sorted(self._rows.values(), key=worth)
            raise NoneRightError(f"No engine here gives a right answer. {reasons}", rows)
        fastest = comparison.fastest
        self._rows[fastest] = replace(self._rows[fastest], is_chosen=True)
        chosen = next(candidate for candidate in self._fit if candidate.name == fastest)
        rows = sorted(self._rows.values(), key=worth)
        coverage = self._coverage(comparison)
        return RaceResult(
            tuple(rows),
            chosen,
            comparison.noise,
            tuple(self._notes(comparison, coverage)),
            self._trials,
            coverage is not None or self._rows[fastest].status == "not judged",
            comparison.ties,
            coverage=coverage,
            opened=self._twins.get(fastest, ""),
        )

    def _coverage(self, comparison: Comparison) -> Coverage | None:
        """Say what the budget left out: candidates that were not timed, or not judged in time."""
        untimed = self._eligible().keys() - comparison.timings.keys() - {*self._twins.values()}
        left = {name for name in (*self._late, *untimed) if name != comparison.fastest}
        if not left:
            return None
        compared = len(comparison.timings.keys() - left)
        return Coverage.of(compared, len(left), self._budget.seconds)

    def _notes(self, comparison: Comparison, coverage: Coverage | None) -> Iterable[str]:
        fastest = comparison.fastest
        if coverage is not None:
            yield coverage.sentence()
        if comparison.ties:
            tied = (fastest, *comparison.ties)
            is_single = any(len(comparison.timings[name].samples) == 1 for name in tied)
            because = "there is one sample" if is_single else f"the noise is {comparison.noise:.0%}"
            yield f"{', '.join(tied)} cannot be told apart: {because}."
        if (status := self._rows[fastest].status) != "right":
            yield f"Nobody knows whether {fastest} is right ({status})."
        yield from self._memory_notes(fastest)
        if self._is_reduced(fastest):
            row = self._rows[fastest]
            about = " ".join(x for x in (_measured(row), row.reason) if x)
            yield f"{fastest} computes in less than the model's own dtypes. {about}".rstrip()
        for name, row in self._rows.items():
            if row.status == "inaccurate":
                yield f"{name} is not accurate enough: {row.reason}"
            if row.status == "doubtful":
                yield f"{name} is doubtful, and is not used this time: {row.reason}"
        for name, judged in self._wrong.items():
            self._progress(f"looking for what {name} gets wrong")
            # What a NaN makes wrong is said in full already.
            fault = "" if judged.kind == POISON else self._explained(name, judged)
            sentence = f"{name} is wrong, and is not used: {self._rows[name].reason} {fault}"
            self._faults.append(sentence.rstrip())
        yield from self._faults

    def _explained(self, name: str, judged: Judgement) -> str:
        """Look for the node that is wrong, as far as there is time."""
        return explain_fault(
            self._trials[name],
            self._inputs_of(judged),
            self._runner,
            self._findings,
            judged.reason,
            self._budget.oracle_ends,
        )

    def _memory_notes(self, chosen: str) -> Iterable[str]:
        """Say which candidate would have been faster, had it held less."""
        seconds = {name: self._rows[name].seconds or math.inf for name in (chosen, *self._over())}
        fastest = min(seconds, key=lambda name: seconds[name])
        if fastest != chosen:
            yield (
                f"{chosen} is chosen because memory_limit={self._memory_limit:,}: the fastest "
                f"plan, {fastest}, needs {self._bytes[fastest]:,} bytes at once, and {chosen} "
                f"{self._bytes[chosen]:,}."
            )


def _finite(error: Deviation) -> dict[str, Any]:
    """Convert an error to plain data; an infinite one becomes None."""
    row = asdict(error)
    return {key: None if value == math.inf else value for key, value in row.items()}


def _measured(row: Tried) -> str:
    """Say what error was measured, and on which inputs."""
    if not row.deviations:
        return ""
    largest = max((Deviation(**one) for one in row.deviations), key=lambda one: one.relative)
    others = f" 99.9% of other inputs stay within {row.expected_error or 0.0:.1e}."
    judged = f"{shown_error(largest)}, the largest of {len(row.deviations)} sets of inputs."
    return judged + (others if row.expected_error is not None else "")


def is_plain(candidate: Candidate) -> bool:
    """Tell whether a candidate is an engine as it is; what runs in this process is none."""
    is_engine = not candidate.target.backend.info.trusted
    return is_engine and candidate.form == "native" and not candidate.options


def lead(result: RaceResult, before: Candidate) -> float:
    """Return the speedup of the chosen candidate over another; 1 where it may be noise."""
    rows = {row.name: row for row in result.tried}
    old, new = rows[before.name], rows[result.chosen.name]
    pairs = [(old.seconds, new.seconds)]
    if old.low is not None and new.low is not None:
        pairs.append((old.low, new.low))
    found = min(a / b if a and b else 1.0 for a, b in pairs)
    return 1.0 if before.name in result.ties or found <= 1 + (result.noise or 0.0) else found


def unbeaten(rematch: RaceResult, chosen: Candidate) -> RaceResult:
    """Return the result of a rematch with what was chosen before it."""
    rows = tuple(replace(row, is_chosen=row.name == chosen.name) for row in rematch.tried)
    return replace(rematch, tried=rows, chosen=chosen, ties=())


def failed_status(error: FusewireError) -> str:
    """Return the status of a candidate that gave no answer."""
    if isinstance(error, BackendKilled):
        return "killed"
    return "not started" if isinstance(error, BackendNotStarted) else "refused"


def worth(row: Tried) -> tuple[bool, bool, float, str]:
    """Sort rows: the chosen one, then the others by time, then those without an answer."""
    is_out = row.status not in ORDER
    return not row.is_chosen, is_out, row.seconds if row.seconds is not None else math.inf, row.name


def nodes_outside(candidate: Candidate) -> str:
    """Say which nodes of a plan run outside of its targets, and why."""
    plan, reasons = candidate.planned.plan, candidate.planned.fallback_nodes()
    steps = {*plan.outside([target.name for target in candidate.targets])}
    # Nodes on data are what takes time; sizes and control flow come after them.
    left = [node for node, step in candidate.planned.steps.items() if step in steps]
    nodes = [*reasons, *(node for node in left if node not in reasons)]
    listed = [f"{node!r}: {reasons[node]}" if node in reasons else repr(node) for node in nodes]
    rest = f" and {len(nodes) - _LISTED} more" if len(nodes) > _LISTED else ""
    count = "1 node runs" if len(nodes) == 1 else f"{len(nodes)} nodes run"
    return f"{count} there: {' '.join(listed[:_LISTED])}{rest}"


def described(candidate: Candidate) -> Tried:
    """Describe a candidate before it is tried."""
    target, plan = candidate.engines[0], candidate.planned.plan
    refused = candidate.planned.fallback_nodes()
    first = next((f"{node!r}: {reason}" for node, reason in refused.items()), "")
    return Tried(
        candidate.name,
        target.name,
        target.device.id,
        candidate.form,
        "not judged",
        regions=len(plan.regions()),
        elsewhere=len(refused),
        elsewhere_why=first,
        is_software=any(x.device.is_software for x in candidate.engines),
        options=dict(candidate.options),
        engines=tuple(x.name for x in candidate.engines),
        crossings=plan.crossings(),
        is_reduced=candidate.is_reduced,
    )


def unfit(entry: Unfit) -> Tried:
    """Describe a target that cannot run the graph."""
    target = entry.target
    return Tried(
        entry.name,
        target.name,
        target.device.id,
        "native",
        "refused" if entry.fault is None else failed_status(entry.fault),
        entry.reason,
        is_software=target.device.is_software,
    )
