"""Score every candidate of a graph on a user's own samples, against the reference in float64.

Nothing is chosen and nothing is recorded: this shows what less precision costs on real data.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewire.choosing.accuracy import as_declared
from fusewire.choosing.decide import Question
from fusewire.choosing.race import failed_status
from fusewire.errors import BudgetError, EngineError
from fusewire.ir.graph import HostValue
from fusewire.numerics.deviation import deviations, worst
from fusewire.numerics.metrics import Metric
from fusewire.ops.interpret import Interpreter
from fusewire.ops.limits import limited
from fusewire.planning.candidates import Candidate, Unfit
from fusewire.planning.policy import TargetFinder
from fusewire.trials.trial import CandidateTrial, TrialRunner

# Runs that are timed.
_TIMED = 5

Sample = Sequence[HostValue]


@dataclass(frozen=True)
class Evaluated:
    """The scores of a candidate over all samples, or why it has none.

    ``error`` is the largest relative error of an output, and ``element`` the largest error of an
    element over the largest exact one. ``seconds`` is the median of a few runs.
    """

    name: str
    backend: str
    status: str
    reason: str = ""
    is_reduced: bool = False
    mean: float | None = None
    least: float | None = None
    largest: float | None = None
    error: float | None = None
    element: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores candidates; exact answers are computed once for each sample."""

    question: Question
    samples: Sequence[Sample]
    metric: Metric
    exact: Sequence[list[HostValue]]

    @staticmethod
    def of(
        question: Question, samples: Sequence[Sample], metric: Metric, finder: TargetFinder
    ) -> Evaluation:
        """Compute the exact answers; what the reference raises passes through."""
        exact = []
        for number, sample in enumerate(samples):
            question.progress(f"sample {number + 1} of {len(samples)} in float64", 0.0)
            with limited(finder.limits.run_limits):
                exact.append(Interpreter(question.graph, wide=True)(sample))
        return Evaluation(question, samples, metric, exact)

    def rows(self, finder: TargetFinder) -> Iterator[Evaluated]:
        """Yield the scores of every candidate; those after the budget are not tried."""
        runner = TrialRunner.of(self.question.config, finder)
        start, has_any = time.monotonic(), False
        try:
            for candidate in self.question.candidates():
                used = (time.monotonic() - start) / max(self.question.budget, 1e-3)
                if isinstance(candidate, Unfit):
                    reason = candidate.reason
                    yield Evaluated(candidate.name, candidate.target.name, "refused", reason)
                elif used > 1 and has_any:
                    reason = "The budget was used up before its turn. Raise budget_seconds."
                    yield _described(candidate, "not tried", reason)
                else:
                    self.question.progress(f"scoring {candidate.name}", used)
                    row = self._row(candidate, runner)
                    has_any |= row.mean is not None
                    yield row
        finally:
            runner.close()

    def _row(self, candidate: Candidate, runner: TrialRunner) -> Evaluated:
        try:
            trial = runner.attempt(candidate, self.samples[0])
            return self._scored(candidate, trial)
        except (BudgetError, EngineError) as error:
            return _described(candidate, failed_status(error), str(error))

    def _scored(self, candidate: Candidate, trial: CandidateTrial) -> Evaluated:
        graph = self.question.graph
        scores, errors = [], []
        for sample, exact in zip(self.samples, self.exact, strict=True):
            outputs = trial.run(sample)
            scores.append(float(self.metric(as_declared(graph, exact), outputs)))
            errors += deviations(graph, exact, outputs)
        largest = worst(errors)
        return Evaluated(
            candidate.name,
            candidate.target.name,
            "scored",
            is_reduced=candidate.is_reduced,
            mean=statistics.fmean(scores),
            least=min(scores),
            largest=max(scores),
            error=_finite(largest.relative if largest else 0.0),
            element=_finite(max((one.element for one in errors), default=0.0)),
            seconds=statistics.median(trial.seconds(self.samples[0], _TIMED)),
        )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _described(candidate: Candidate, status: str, reason: str) -> Evaluated:
    reduced = candidate.is_reduced
    return Evaluated(candidate.name, candidate.target.name, status, reason, reduced)
