"""Level 1: try the candidates in children, time them, judge the best, choose the fastest right one.

Recorded verdicts and times are not measured again. Candidates that the budget did not reach are
reported as such. A wrong candidate is never chosen, and its fault is recorded. A doubtful one is
not chosen either, but nothing is recorded: it is judged again on other inputs.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fusewire.choosing.findings import Findings
from fusewire.choosing.judge import Judge, Judgement
from fusewire.choosing.measure import Comparison, Contender, compare, interval
from fusewire.choosing.repro import explain_fault
from fusewire.errors import (
    BackendHung,
    BackendKilled,
    BackendNotStarted,
    BudgetError,
    EngineError,
    EngineOutOfMemory,
    FusewireError,
    NoneRightError,
    note,
)
from fusewire.ops.sample import HostValue
from fusewire.planning.candidates import Candidate, Unfit
from fusewire.runtime.why import Tried
from fusewire.trials.trial import CandidateTrial, TrialRunner

# The share of the budget after which no more candidates are tried: the rest is for timing them.
_TRYING = 0.5
# The reference is slow: it races only where the quickest engine takes less than this per run.
_TINY_SECONDS = 1e-3
# It also races in graphs of so few nodes, each of which may be one loop of NumPy.
_FEW_NODES = 4
# The share of the remaining budget for timing: the best candidate is judged afterwards.
_COMPARING = 0.6
# Timing takes at least this long.
LEAST_SECONDS = 4.0
Progress = Callable[[str, float], None]


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


class RaceInterrupted(KeyboardInterrupt):
    """Ctrl-C during a race; ``tried`` has what was found so far."""

    def __init__(self, tried: tuple[Tried, ...]) -> None:
        super().__init__()
        self.tried = tried


class Race:
    """Races the candidates of a graph on one set of inputs.

    With ``is_thorough`` every candidate is tried; otherwise the reference and software devices only
    if nothing better runs. Timing may take ``least`` seconds whatever the budget. Candidates that
    take up to ``close`` times as long as the best reach the final; the default admits few.
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
        close: float | None = None,
    ) -> None:
        self._inputs = inputs
        self._runner = runner
        self._judge = judge
        self._findings = findings
        self._budget = max(budget, 1e-3)
        self._start = time.monotonic()
        self._report = progress
        self._is_thorough = is_thorough
        self._least = least
        self._close = () if close is None else (close,)
        # The winner of the first race, which takes part in a rematch in any case.
        self._before = ""
        self._fit: list[Candidate] = []
        self._rows: dict[str, Tried] = {}
        self._trials: dict[str, CandidateTrial] = {}
        self._judged: set[str] = set()
        self._wrong: dict[str, Judgement] = {}
        self._faults: list[str] = []
        self._timing = ""
        # What an interrupt would lose: the times of a comparison that is under way.
        self._samples: dict[str, list[float]] = {}
        self._is_cut = False
        self._learning = threading.Thread(target=judge.prepare, daemon=True)

    @property
    def _used(self) -> float:
        return (time.monotonic() - self._start) / self._budget

    def _progress(self, what: str) -> None:
        self._report(what, self._used)

    def run(self, candidates: Iterable[Candidate | Unfit]) -> RaceResult:
        """Try, judge and time the candidates, and choose one."""
        # The reference computes the right answers while engines compile.
        self._learning.start()
        try:
            return self._run(candidates)
        except KeyboardInterrupt as interrupt:
            self._judge.stop()
            raise RaceInterrupted(self._found_so_far()) from interrupt
        except BaseException:
            # The thread would go on for nobody.
            self._judge.stop()
            raise

    def _found_so_far(self) -> tuple[Tried, ...]:
        """Return the rows of an interrupted race, with the times that were taken."""
        for name, samples in self._samples.items():
            if self._rows[name].seconds is None:
                low, high = interval(samples)
                median = statistics.median(samples)
                self._rows[name] = replace(self._rows[name], seconds=median, low=low, high=high)
        return tuple(sorted(self._rows.values(), key=worth))

    def _run(self, candidates: Iterable[Candidate | Unfit]) -> RaceResult:
        for candidate in candidates:
            if isinstance(candidate, Unfit):
                self._rows[candidate.name] = unfit(candidate)
            else:
                self._fit.append(candidate)
                self._try(candidate)
        self._learning.join()
        if self._is_thorough:
            for name in list(self._trials):
                self._check(name)
        best = self._fastest_right(self._compare())
        if best is None:
            self._last_resort()
            best = self._fastest_right(self._compare())
        return self._result(best)

    def rematch(self, candidates: Iterable[Candidate], against: Iterable[str]) -> RaceResult:
        """Race further candidates against those named; all others are out."""
        names = [*against]
        self._before = names[0]
        self._wrong.clear()
        self._close, self._least = (math.inf,), LEAST_SECONDS
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
            if comparison.fastest not in self._judged:
                self._check(comparison.fastest)
            if self._rows[comparison.fastest].status in ORDER:
                return comparison
            comparison = comparison.without(comparison.fastest)
        return None

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
        try:
            trial = self._runner.attempt(candidate, self._inputs)
        except (BudgetError, EngineError) as error:
            self._stop_if_beyond(error)
            if isinstance(error, EngineError):
                self._findings.blame(candidate, error.code, error.reason)
            note(f"{name} is out of the comparison: {error}")
            self._rows[name] = replace(row, status=failed_status(error), reason=str(error))
            return
        self._trials[name] = trial
        metrics = trial.contact.metrics
        took = sum(metrics.get(f"{phase}_seconds", 0.0) for phase in ("compile", "load"))
        memory = int(metrics["peak_bytes"]) if "peak_bytes" in metrics else None
        self._rows[name] = replace(row, compile_seconds=took, memory_bytes=memory)

    def _stop_if_beyond(self, error: BudgetError | EngineError) -> None:
        """Raise if neither an engine nor the reference kept to the limits: nobody else will."""
        if not isinstance(error, BudgetError | EngineOutOfMemory | BackendHung) or self._trials:
            return
        if self._learning.is_alive():
            self._learning.join(self._judge.limits.seconds)
        if self._judge.beyond:
            raise BudgetError(f"No engine kept to the limits. {self._judge.beyond}") from error

    def _hopeless(self, candidate: Candidate) -> str | None:
        """Say why a candidate is not worth the time, or None."""
        if not self._trials or self._is_thorough:
            return None
        if self._used > _TRYING:
            self._is_cut = True
            return "The budget was used up before its turn. Raise budget_seconds."
        device, info = candidate.target.device, candidate.target.backend.info
        others = ", ".join(
            n for n, x in self._trials.items() if x.candidate.target != candidate.target
        )
        if not others:
            return None
        if device.is_software:
            return f"{device.name} is emulated by the processor, and {others} runs there."
        quickest = min(x.contact.metrics.get("run_seconds", 0.0) for x in self._trials.values())
        is_short = len(candidate.planned.plan.graph.nodes) <= _FEW_NODES
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
            judged = known or self._judge.judge(trial.run)
        except EngineError as error:
            status = failed_status(error)
            self._rows[name] = replace(self._rows[name], status=status, reason=str(error))
            return
        if judged.status == "wrong":
            self._wrong[name] = judged
        if known is None:
            self._findings.keep_verdict(trial.candidate, judged)
        self._rows[name] = replace(
            self._rows[name],
            status=judged.status,
            reason=judged.reason,
            error=judged.error if math.isfinite(judged.error) else None,
            unjudged=judged.unjudged,
            judged_on=judged.sets,
            cache="" if known is None else "hit",
        )

    def _eligible(self) -> dict[str, CandidateTrial]:
        """Return the trials that may win: judged ones, or all that ran if none was judged."""
        ranks = {
            name: ORDER[row.status]
            for name, row in self._rows.items()
            if name in self._trials and row.status in ORDER
        }
        worst = max(min(ranks.values(), default=0), ranks.get(self._before, 0))
        return {name: self._trials[name] for name, rank in ranks.items() if rank <= worst}

    def _compare(self) -> Comparison | None:
        while fit := self._eligible():
            candidates = [trial.candidate for trial in fit.values()]
            if (known := self._findings.times(candidates)) is not None:
                return self._record_times(known)
            contenders = {n: Contender(partial(self._timed, x), x.pid) for n, x in fit.items()}
            seconds = max(self._least, _COMPARING * self._budget * (1 - self._used))
            try:
                comparison = compare(
                    contenders, seconds, lambda name: self._progress(f"timing {name}"), *self._close
                )
                self._findings.keep_times(candidates, comparison)
                return self._record_times(comparison)
            except EngineError as error:
                # It ran before and fails now: the others race without it.
                name = self._timing
                self._findings.blame(self._trials[name].candidate, error.code, error.reason)
                status = failed_status(error)
                self._rows[name] = replace(self._rows[name], status=status, reason=str(error))
        return None

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
        if comparison is None:
            reasons = " ".join(f"{name}: {row.reason}" for name, row in self._rows.items())
            rows = sorted(self._rows.values(), key=worth)
            raise NoneRightError(f"No engine here gives a right answer. {reasons}", rows)
        fastest = comparison.fastest
        self._rows[fastest] = replace(self._rows[fastest], is_chosen=True)
        chosen = next(candidate for candidate in self._fit if candidate.name == fastest)
        rows = sorted(self._rows.values(), key=worth)
        is_cut = self._is_cut or self._rows[fastest].status == "not judged"
        notes = tuple(self._notes(comparison))
        noise, ties = comparison.noise, comparison.ties
        return RaceResult(tuple(rows), chosen, noise, notes, self._trials, is_cut, ties)

    def _notes(self, comparison: Comparison) -> Iterable[str]:
        fastest = comparison.fastest
        if comparison.ties:
            names = ", ".join((fastest, *comparison.ties))
            yield f"{names} cannot be told apart: the noise is {comparison.noise:.0%}."
        if (status := self._rows[fastest].status) != "right":
            yield f"Nobody knows whether {fastest} is right ({status})."
        for name, row in self._rows.items():
            if row.status == "doubtful":
                yield f"{name} is doubtful, and is not used this time: {row.reason}"
        for name, judged in self._wrong.items():
            self._progress(f"looking for what {name} gets wrong")
            inputs = next(x.values for x in self._judge.sets if x.kind == judged.kind)
            # A thorough race may take longer, to find the fault as well.
            deadline = self._start + self._budget * (2 if self._is_thorough else 1)
            fault = explain_fault(
                self._trials[name],
                inputs,
                self._runner,
                self._findings,
                judged.reason,
                deadline,
            )
            sentence = f"{name} is wrong, and is not used: {judged.reason} {fault}"
            self._faults.append(sentence.rstrip())
        yield from self._faults


# Judged answers come before unjudged ones; any other status means that there is no answer.
ORDER = {"right": 0, "cannot say": 0, "not judged": 1}


def failed_status(error: FusewireError) -> str:
    """Return the status of a candidate that gave no answer."""
    if isinstance(error, BackendKilled):
        return "killed"
    return "not started" if isinstance(error, BackendNotStarted) else "refused"


def worth(row: Tried) -> tuple[bool, bool, float, str]:
    """Sort rows: the chosen one, then the others by time, then those without an answer."""
    is_out = row.status not in ORDER
    return not row.is_chosen, is_out, row.seconds if row.seconds is not None else math.inf, row.name


def described(candidate: Candidate) -> Tried:
    """Describe a candidate before it is tried."""
    target, plan = candidate.target, candidate.planned.plan
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
        is_software=target.device.is_software,
        options=dict(candidate.options),
    )


def unfit(entry: Unfit) -> Tried:
    """Describe a target that cannot run the graph."""
    target = entry.target
    return Tried(
        entry.name,
        target.name,
        target.device.id,
        "native",
        "refused",
        entry.reason,
        is_software=target.device.is_software,
    )
