"""Level 1: try the candidates in children, time them, judge the best, take the fastest right one.

What is known from an earlier comparison is not found out again. What is left over when the budget
is used up says so; a wrong engine is never taken, and the fact is remembered.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fusewire.choosing.findings import Findings
from fusewire.choosing.judge import Judge, Judgement
from fusewire.choosing.measure import Comparison, Contender, compare
from fusewire.choosing.repro import inquire
from fusewire.errors import EngineError, NoneRightError
from fusewire.ops.sample import HostValue
from fusewire.planning.candidates import Candidate, Unfit
from fusewire.runtime.why import Tried
from fusewire.trials.trial import CandidateTrial, TrialRunner

# The share of the budget after which no more candidates are tried: it takes time to compare them.
_TRYING = 0.5
# The reference is there to be right: it is compared where a run takes less than this elsewhere.
_TINY_SECONDS = 1e-3
# It is also compared where there are so few nodes that each may be one loop of NumPy's.
_FEW_NODES = 4
# The share of what is left then that comparing may take: the best is judged after it.
_COMPARING = 0.6
# Less than this is no comparison.
LEAST_SECONDS = 4.0
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class RaceResult:
    """The ways that were tried, the chosen one first, and what is to be said about it.

    ``noise`` is that of the comparison: by so much a way may differ from itself; ``ties`` cannot be
    told from the chosen one. ``is_cut``: with more time something else might have been chosen.
    """

    tried: tuple[Tried, ...]
    chosen: Candidate
    noise: float | None = None
    notes: tuple[str, ...] = ()
    trials: Mapping[str, CandidateTrial] = field(default_factory=dict)
    is_cut: bool = False
    ties: tuple[str, ...] = ()


class Race:
    """One comparison of candidates on one set of inputs.

    With ``is_thorough`` all are tried, whatever the chances; otherwise the reference and software
    devices only where nothing better runs. Comparing may take ``least`` seconds in any case. All
    that take up to ``close`` times as long as the best come to the final, few unless it is given.
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
        self._say = progress
        self._is_thorough = is_thorough
        self._least = least
        self._close = () if close is None else (close,)
        # What was chosen before: nothing is taken instead that was not timed beside it.
        self._before = ""
        self._fit: list[Candidate] = []
        self._rows: dict[str, Tried] = {}
        self._trials: dict[str, CandidateTrial] = {}
        self._judged: set[str] = set()
        self._wrong: dict[str, Judgement] = {}
        self._faults: list[str] = []
        self._timing = ""
        self._is_cut = False

    @property
    def _used(self) -> float:
        return (time.monotonic() - self._start) / self._budget

    def _progress(self, what: str) -> None:
        self._say(what, self._used)

    def run(self, found: Iterable[Candidate | Unfit]) -> RaceResult:
        """Try, judge, compare, choose."""
        # The reference works out what is right while engines compile.
        learning = threading.Thread(target=self._judge.prepare, daemon=True)
        learning.start()
        for candidate in found:
            if isinstance(candidate, Unfit):
                self._rows[candidate.name] = unfit(candidate)
            else:
                self._fit.append(candidate)
                self._try(candidate)
        learning.join()
        if self._is_thorough:
            for name in list(self._trials):
                self._check(name)
        best = self._right(self._compared())
        if best is None:
            self._last_resort()
            best = self._right(self._compared())
        return self._decided(best)

    def rematch(self, found: Iterable[Candidate], against: Iterable[str]) -> RaceResult:
        """Try further ways, judge them, and time them anew beside those named: all else is out."""
        names = [*against]
        self._before = names[0]
        self._wrong.clear()
        self._close, self._least = (math.inf,), LEAST_SECONDS
        for candidate in found:
            self._fit.append(candidate)
            self._try(candidate, is_last=True)
            if candidate.name in self._trials:
                self._check(candidate.name)
                names.append(candidate.name)
        self._trials = {name: self._trials[name] for name in names}
        for name in names:
            # There was no time for it, or no need: the others would win without a race.
            if self._rows[name].status == "not judged":
                self._check(name)
        self._rows = {name: replace(row, is_chosen=False) for name, row in self._rows.items()}
        return self._decided(self._right(self._compared()))

    def _right(self, found: Comparison | None) -> Comparison | None:
        """Judge from the fastest on, until one is not wrong: those behind it need no verdict."""
        while found is not None:
            if found.fastest not in self._judged:
                self._check(found.fastest)
            if self._rows[found.fastest].status in ORDER:
                return found
            found = found.without(found.fastest)
        return None

    def _try(self, candidate: Candidate, is_last: bool = False) -> None:
        name, row = candidate.name, described(candidate)
        fault = self._findings.fault(candidate)
        reason = fault or (None if is_last else self._hopeless(candidate))
        if reason is not None:
            status = "quarantined" if fault else "not tried"
            self._rows[name] = replace(row, status=status, reason=reason)
            return
        self._progress(f"trying {name}")
        try:
            trial = self._runner.place(candidate, self._inputs)
        except EngineError as error:
            self._findings.blame(candidate, error.code, error.reason)
            self._rows[name] = replace(row, status="refused", reason=str(error))
            return
        self._trials[name] = trial
        metrics = trial.contact.metrics
        took = sum(metrics.get(f"{phase}_seconds", 0.0) for phase in ("compile", "load"))
        memory = int(metrics["peak_bytes"]) if "peak_bytes" in metrics else None
        self._rows[name] = replace(row, compile_seconds=took, memory_bytes=memory)

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
            return f"It is there to be right; {others} is there to be fast."
        return None

    def _last_resort(self) -> None:
        """Try those that were passed over: none of the others is right."""
        for candidate in self._fit:
            if candidate.name not in self._trials:
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
            self._rows[name] = replace(self._rows[name], status="refused", reason=str(error))
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
        """Keep those that may be taken: judged ones, or those that ran, if one of them was."""
        ranks = {
            name: ORDER[row.status]
            for name, row in self._rows.items()
            if name in self._trials and row.status in ORDER
        }
        worst = max(min(ranks.values(), default=0), ranks.get(self._before, 0))
        return {name: self._trials[name] for name, rank in ranks.items() if rank <= worst}

    def _compared(self) -> Comparison | None:
        while fit := self._eligible():
            contestants = [trial.candidate for trial in fit.values()]
            if (known := self._findings.times(contestants)) is not None:
                return self._noted(known)
            ways = {n: Contender(partial(self._timed, x), x.pid) for n, x in fit.items()}
            seconds = max(self._least, _COMPARING * self._budget * (1 - self._used))
            try:
                found = compare(
                    ways, seconds, lambda name: self._progress(f"timing {name}"), *self._close
                )
                self._findings.keep_times(contestants, found)
                return self._noted(found)
            except EngineError as error:
                # It ran before, and does no longer: the others are compared without it.
                name = self._timing
                self._findings.blame(self._trials[name].candidate, error.code, error.reason)
                self._rows[name] = replace(self._rows[name], status="refused", reason=str(error))
        return None

    def _noted(self, found: Comparison) -> Comparison:
        for name, timing in found.timings.items():
            low, high = timing.interval
            self._rows[name] = replace(self._rows[name], seconds=timing.median, low=low, high=high)
        return found

    def _timed(self, trial: CandidateTrial, count: int) -> Sequence[float]:
        self._timing = trial.candidate.name
        return trial.seconds(self._inputs, count)

    def _decided(self, found: Comparison | None) -> RaceResult:
        if found is None:
            reasons = " ".join(f"{name}: {row.reason}" for name, row in self._rows.items())
            rows = sorted(self._rows.values(), key=worth)
            raise NoneRightError(f"No engine here gives a right answer. {reasons}", rows)
        self._rows[found.fastest] = replace(self._rows[found.fastest], is_chosen=True)
        chosen = next(candidate for candidate in self._fit if candidate.name == found.fastest)
        rows = sorted(self._rows.values(), key=worth)
        is_cut = self._is_cut or self._rows[found.fastest].status == "not judged"
        notes = tuple(self._notes(found))
        return RaceResult(tuple(rows), chosen, found.noise, notes, self._trials, is_cut, found.ties)

    def _notes(self, found: Comparison) -> Iterable[str]:
        if found.ties:
            names = ", ".join((found.fastest, *found.ties))
            yield f"{names} cannot be told apart: the noise is {found.noise:.0%}."
        if self._rows[found.fastest].status != "right":
            status = self._rows[found.fastest].status
            yield f"Nobody knows whether {found.fastest} is right ({status})."
        for name, judged in self._wrong.items():
            self._progress(f"looking for what {name} gets wrong")
            inputs = next(x.values for x in self._judge.sets if x.kind == judged.kind)
            # Who asks for all of it waits for that as well.
            deadline = self._start + self._budget * (2 if self._is_thorough else 1)
            given = (
                self._trials[name],
                inputs,
                self._runner,
                self._findings,
                judged.reason,
                deadline,
            )
            said = f"{name} is wrong, and is not used: {judged.reason} {inquire(*given)}"
            self._faults.append(said.rstrip())
        yield from self._faults


# An answer that was judged comes before one that was not; whatever else there is, is no answer.
ORDER = {"right": 0, "cannot say": 0, "not judged": 1}


def worth(row: Tried) -> tuple[bool, bool, float, str]:
    """Sort rows: the chosen one, then the others by their time, then what gave no answer."""
    is_out = row.status not in ORDER
    return not row.is_chosen, is_out, row.seconds if row.seconds is not None else math.inf, row.name


def described(candidate: Candidate) -> Tried:
    """Say what a candidate is, before anything is known about it."""
    target, plan = candidate.target, candidate.planned.plan
    left = candidate.planned.left_over()
    first = next((f"{node!r}: {reason}" for node, reason in left.items()), "")
    return Tried(
        candidate.name,
        target.name,
        target.device.id,
        candidate.form,
        "not judged",
        regions=len(plan.regions()),
        elsewhere=len(left),
        elsewhere_why=first,
        is_software=target.device.is_software,
        options=dict(candidate.options),
    )


def unfit(found: Unfit) -> Tried:
    """Say why a backend is no candidate."""
    target = found.target
    return Tried(
        found.name,
        target.name,
        target.device.id,
        "native",
        "refused",
        found.reason,
        is_software=target.device.is_software,
    )
