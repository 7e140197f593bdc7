"""The user's own function as a candidate: judged as all are, timed against their winner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fusewire.choosing.duel import meet
from fusewire.choosing.judge import Judge
from fusewire.choosing.measure import Comparison
from fusewire.errors import EngineError, FusewireError
from fusewire.ir.graph import HostValue
from fusewire.plan.function import FunctionRunner
from fusewire.plan.plan import FUNCTION
from fusewire.plan.runner import Runner
from fusewire.planning.candidates import Candidate
from fusewire.show.why import Tried


@dataclass(frozen=True, eq=False)
class FunctionAnswer:
    """What the function returned, and its row; the row has the reason if it returned nothing."""

    row: Tried
    outputs: list[HostValue] | None = None


@dataclass(frozen=True, eq=False)
class Baseline:
    """The function, and what makes a runner of a candidate in this process.

    ``problem`` says why there is no runner of the function. ``may_serve`` is false if the user
    asked for a backend by name: then the function is timed, and not used. ``title`` names it.
    """

    runner: FunctionRunner | None
    build: Callable[[Candidate], Runner]
    problem: str = ""
    may_serve: bool = True
    title: str = "your function"

    def attempt(self, inputs: Sequence[HostValue]) -> FunctionAnswer:
        """Run the function once."""
        row = Tried(
            self.title, FUNCTION, "cpu", FUNCTION, "not judged", is_barred=not self.may_serve
        )
        if self.runner is None:
            return FunctionAnswer(replace(row, status="refused", reason=self.problem))
        try:
            return FunctionAnswer(row, self.runner.attempt(inputs))
        except (EngineError, FusewireError) as error:
            return FunctionAnswer(replace(row, status="refused", reason=str(error)))

    def judged(self, answer: FunctionAnswer, judge: Judge) -> Tried:
        """Judge the answer to the given inputs."""
        if answer.outputs is None:
            return answer.row
        verdict = judge.judge_given(answer.outputs)
        if isinstance(verdict, str):
            return replace(answer.row, reason=verdict)
        reason = verdict.reason
        if verdict.status == "wrong":
            reason = f"It does not return what its trace does: {reason}"
        return replace(answer.row, status=verdict.status, reason=reason, judged_on=("given",))

    def meet(
        self, row: Tried, rivals: Sequence[Candidate], inputs: Sequence[HostValue], left: float
    ) -> tuple[Comparison | None, str]:
        """Time the function against the best of the race; return the times, and who serves.

        If it may not serve, it meets the winner only. ``left`` is how many seconds of the budget
        are left.
        """
        winner, runner = rivals[0], self.runner
        if runner is None or not is_usable(row):
            return None, winner.name
        builds = {x.name: partial(self._opponent, runner, x) for x in rivals}
        if not self.may_serve:
            builds = {winner.name: builds[winner.name]}
        comparison, best = meet(self.title, runner, builds, inputs, left=left)
        return comparison, best if self.may_serve else winner.name

    def _opponent(self, runner: FunctionRunner, candidate: Candidate) -> Runner:
        return runner.opponent(self.build(candidate))


def is_usable(row: Tried) -> bool:
    """Tell whether a function with such a result can serve: it runs, and is not wrong."""
    return row.status not in ("refused", "wrong")
