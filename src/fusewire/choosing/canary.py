"""A check at run time: the oracle judges one call in so many.

An engine that was right at first may be wrong later: for other inputs, other sizes, or in one call
of a thousand. The checked call takes as much longer as a few runs of the reference.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from fusewire.choosing.accuracy import accuracy_problem
from fusewire.contract.backend import Held
from fusewire.errors import FusewireError, MiscompileWarning, warn_outside
from fusewire.ir.graph import Graph, HostValue
from fusewire.numerics.judge import Verdict
from fusewire.numerics.oracle import Oracle
from fusewire.ops.interpret import Interpreter
from fusewire.ops.limits import RunLimits, limited
from fusewire.options import EXACT, Accuracy
from fusewire.plan.runner import Runner
from fusewire.plan.transfer import to_host

# After so many doubtful answers in a row the program says so.
_DOUBTS = 3
# What the reference raises if it has no answer for some inputs.
_UNFIT = (FusewireError, ValueError, LookupError, ArithmeticError)


@dataclass(frozen=True, eq=False)
class Canary:
    """Watches the calls of one graph, from any thread.

    ``graph`` defines the right answers, and ``name`` is the candidate that gives them. A wrong
    answer calls ``replan`` with the inputs, which quarantines the engine and plans again. It tells
    whether to raise the alarm: of several calls that find out at the same time, one raises it.
    After a doubtful answer the next call is checked as well. ``limits`` are those of a check. What
    computes in less than the model's own dtypes is checked by the ``accuracy`` that the user asked
    for.
    """

    graph: Graph
    every: int
    name: str
    replan: Callable[[Sequence[HostValue], Verdict], bool]
    limits: RunLimits = field(default_factory=RunLimits)
    runs: int = 4
    calls: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    # The reasons of doubtful answers since the last one that was not, up to a few.
    doubts: list[str] = field(default_factory=list)
    accuracy: Accuracy = EXACT

    def watch(self, inputs: Sequence[HostValue], outputs: Sequence[HostValue]) -> Verdict | None:
        """Watch a call with its inputs and outputs; return the verdict if it was checked."""
        call = next(self.calls)
        is_in_doubt = 0 < len(self.doubts) < _DOUBTS
        if not self.every or (call % self.every and not is_in_doubt):
            return None
        try:
            with limited(self.limits):
                verdict = self._verdict(call, inputs, outputs)
        except _UNFIT as error:
            return Verdict("cannot say", 0.0, 1.0, f"The reference has no answer: {error}")
        if verdict.status == "wrong":
            self._handle_wrong(call, inputs, verdict)
        elif verdict.status == "doubtful":
            self._note_doubt(verdict)
        else:
            self.doubts.clear()
        return verdict

    def _verdict(
        self, call: int, inputs: Sequence[HostValue], outputs: Sequence[HostValue]
    ) -> Verdict:
        if isinstance(self.accuracy, str):
            oracle = Oracle(self.graph, inputs, runs=self.runs, seed=call)
            return oracle.verdict(outputs)
        exact = Interpreter(self.graph, wide=True)(inputs)
        problem = accuracy_problem(self.graph, self.accuracy, exact, outputs)
        return Verdict("wrong" if problem else "right", reason=problem)

    def _note_doubt(self, verdict: Verdict) -> None:
        self.doubts.append(verdict.reason)
        if len(self.doubts) == _DOUBTS:
            warn_outside(
                f"The last {_DOUBTS} checked answers of {self.name} for {self.graph.name} are "
                f"doubtful: {verdict.reason} The program uses it all the same.",
                MiscompileWarning,
            )

    def _handle_wrong(self, call: int, inputs: Sequence[HostValue], verdict: Verdict) -> None:
        # Before the warning, which the user may have turned into an error.
        if not self.replan(inputs, verdict):
            return
        if not isinstance(self.accuracy, str):
            warn_outside(
                f"{self.name} gave an answer beyond the accuracy asked for in call {call:,} of "
                f"{self.graph.name}: {verdict.reason} The program computes in the model's own "
                "dtypes from now on.",
                MiscompileWarning,
            )
            return
        warn_outside(
            f"{self.name} gave a wrong answer in call {call:,} of {self.graph.name}: "
            f"{verdict.reason} Answers since the last check, {self.every:,} calls before, may be "
            "wrong too. The program no longer uses it, and is planned again.",
            MiscompileWarning,
        )


@final
class Watched:
    """A runner whose calls are watched; another one replaces it after a wrong answer.

    ``remake`` gets the inputs of the wrong call and makes the runner that repeats it.
    """

    def __init__(
        self,
        runner: Runner,
        graph: Graph,
        every: int,
        name: str,
        remake: Callable[[Sequence[HostValue], Verdict], Runner],
        limits: RunLimits = RunLimits(),
        accuracy: Accuracy = EXACT,
    ) -> None:
        self._runner = runner
        self._remake = remake
        self._lock = threading.Lock()
        self._canary: Canary | None = Canary(
            graph, every, name, self._replace, limits, accuracy=accuracy
        )

    def call(self, inputs: Sequence[Held]) -> list[Any]:
        """Run, and watch the call."""
        # Read first: once it is gone, the runner is already the new one.
        canary = self._canary
        outputs = self._runner.call(inputs)
        if canary is None:
            return outputs
        arrays: list[Any] = [to_host(x) for x in inputs]
        verdict = canary.watch(arrays, outputs)
        if verdict is None or verdict.status != "wrong":
            return outputs
        return self._runner.call(inputs)

    def _replace(self, inputs: Sequence[HostValue], verdict: Verdict) -> bool:
        """Put another runner in place of the wrong one; False where another call did."""
        with self._lock:
            if self._canary is None:
                return False
            self._runner = self._remake(inputs, verdict)
            self._canary = None
            return True

    def close(self) -> None:
        """Close the runner."""
        self._runner.close()
