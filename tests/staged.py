"""Staged parts for races at their edges: a clock, and trials that take as long as they are told.

``StagedRunner`` takes the place of children: a trial of a candidate takes what is set for its name
on the staged clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from fusewire.choosing.findings import Findings
from fusewire.choosing.judge import Judgement
from fusewire.choosing.race import Race
from fusewire.contract.backend import Config, Device
from fusewire.errors import CompileTimeout, EngineError, EngineRaised
from fusewire.ir.graph import Graph, HostValue
from fusewire.ops.interpret import interpret
from fusewire.planning.candidates import Candidate, candidates
from fusewire.planning.target import Target
from fusewire.records.entries import Records
from tests.toy import ToyBackend

ONE, TWO = Device("cpu:1", "the first"), Device("cpu:2", "the second")
EMULATED = Device("gpu", "an emulated one", is_software=True)
TWO_DEVICES = ToyBackend("staged", devices=(ONE, TWO))


def two_devices() -> ToyBackend:
    """Return the one whose notes tests read, for a reference to it."""
    return TWO_DEVICES


@dataclass
class Clock:
    """A clock that moves when somebody lets time pass; stands for the module ``time``."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class Contacted:
    """What is known of the first contact."""

    metrics: Mapping[str, float]


@dataclass
class StagedTrial:
    """A candidate that takes so many seconds a run, by the staged clock."""

    candidate: Candidate
    contact: Contacted
    clock: Clock
    run_seconds: float
    calls: int = 0
    outside_share: float = 0.0

    def run(self, inputs: Sequence[HostValue]) -> list[HostValue]:
        return interpret(self.candidate.planned.plan.graph, inputs)

    def seconds(self, inputs: Sequence[HostValue], count: int) -> Sequence[float]:
        self.calls += count
        self.clock.sleep(self.run_seconds * count)
        return [self.run_seconds] * count

    def pid(self) -> int | None:
        return None


@dataclass
class StagedRunner:
    """Tries candidates by what is set for their names: seconds to compile, seconds to run."""

    clock: Clock
    compile_seconds: Mapping[str, float] = field(default_factory=dict)
    run_seconds: Mapping[str, float] = field(default_factory=dict)
    failing: Sequence[str] = ()
    config: Config = field(default_factory=Config)
    error: type[EngineError] = EngineRaised
    tried: list[str] = field(default_factory=list)
    trials: dict[str, StagedTrial] = field(default_factory=dict)

    def attempt(
        self, candidate: Candidate, inputs: Sequence[HostValue], seconds: float = math.inf
    ) -> StagedTrial:
        name = candidate.name
        self.tried.append(name)
        compiling, run = self.compile_seconds.get(name, 0.0), self.run_seconds.get(name, 1e-3)
        self.clock.sleep(min(compiling, seconds))
        if compiling > seconds:
            raise CompileTimeout(f"{name} takes long.")
        if name in self.failing:
            raise self.error(f"{name} fails.")
        metrics = {"compile_seconds": compiling, "load_seconds": 0.5, "run_seconds": run}
        self.trials[name] = StagedTrial(candidate, Contacted(metrics), self.clock, run)
        return self.trials[name]


@dataclass
class StagedJudge:
    """Finds the candidates wrong that it is told to, in turn of their being judged."""

    verdicts: Sequence[str] = ()
    judged: int = 0
    sets: Sequence[Any] = ()
    is_stopped: bool = False

    def prepare(self) -> None:
        """Have the answers."""

    def wait_for_given(self, seconds: float | None) -> None:
        """Have them at once."""

    def stop(self) -> None:
        self.is_stopped = True

    def paused(self, latest: float) -> AbstractContextManager[None]:
        return nullcontext()

    def judge(
        self, run: Callable[[Sequence[HostValue]], list[HostValue]], *, keeps_nan: bool = False
    ) -> Judgement:
        verdicts: Sequence[Any] = self.verdicts
        status: Any = verdicts[self.judged] if self.judged < len(verdicts) else "right"
        self.judged += 1
        if status == "raises":
            raise EngineRaised("It fails when it is judged.")
        return Judgement(status, reason=f"It is {status}.", sets=("given",))


@dataclass
class Stage:
    """A race of the candidates of one graph on targets."""

    graph: Graph
    inputs: Sequence[HostValue]
    targets: Sequence[Target]
    fallback: Target
    runner: StagedRunner
    judge: StagedJudge = field(default_factory=StagedJudge)
    records: Records = field(default_factory=lambda: Records(None))
    config: Config = field(default_factory=Config)

    def race(self, budget: float, **options: Any) -> Race:
        findings = Findings(self.graph, self.inputs, self.records, self.config, 60.0)
        # Staged parts stand in for children and the oracle.
        runner: Any = self.runner
        judge: Any = self.judge
        return Race(self.inputs, runner, judge, findings, budget, **options)

    def candidates(self) -> Iterator[Any]:
        return candidates(self.graph, self.targets, self.fallback, self.config, may_fall_back=False)
