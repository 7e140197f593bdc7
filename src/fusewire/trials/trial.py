"""Try candidates in children: a single region as it is, several as one plan."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fusewire.contract.backend import Artifact, Config, Refusal
from fusewire.errors import FusewireError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Graph, HostValue
from fusewire.numerics.scale import bindings_of
from fusewire.plan.fitting import as_compiled
from fusewire.plan.plan import Region
from fusewire.planning.candidates import Candidate
from fusewire.planning.policy import TargetFinder
from fusewire.process.guard import BY_CODE, Answer
from fusewire.process.isolate import Contact, first_contact, rerun, timed
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool, shared_pool
from fusewire.trials.plan_backend import OUTSIDE_SHARE, REFERENCE, plan_config

# A child gets at least so many seconds.
_LEAST_SECONDS = 0.5
# Seconds of calls that are timed quickly, after some that warm up, and the fewest and most of them.
_TIMING, FEWEST_CALLS, _MOST_CALLS = 0.06, 3, 40


@dataclass(frozen=True, eq=False)
class CandidateTrial:
    """A candidate that ran in a child."""

    candidate: Candidate
    contact: Contact
    pool: ChildPool
    limits: ChildLimits

    def run(self, inputs: Sequence[HostValue]) -> list[HostValue]:
        """Run once more; raises EngineError if the engine fails."""
        return _answer_or_raise(rerun(self.contact, inputs, self.limits, pool=self.pool))

    def seconds(self, inputs: Sequence[HostValue], count: int) -> Sequence[float]:
        """Run several times and return the seconds of each run."""
        return _answer_or_raise(timed(self.contact, inputs, count, self.limits, pool=self.pool))

    def quick_seconds(self, inputs: Sequence[HostValue]) -> float:
        """Return the least seconds of a few calls; infinite if one fails.

        The least is what others that use the machine disturb least.
        """
        try:
            seconds = self.seconds(inputs, FEWEST_CALLS)
            once = statistics.median(seconds)
            # What takes long is warm by now, and a budget has few such calls.
            if once <= _TIMING:
                count = round(min(max(_TIMING / once, FEWEST_CALLS), _MOST_CALLS))
                seconds = self.seconds(inputs, count)
            return min(seconds)
        except FusewireError:
            return math.inf

    @property
    def outside_share(self) -> float:
        """The share of the time outside of the targets; 0 if it was not measured."""
        plan = self.candidate.planned.plan
        if plan.is_whole:
            return float(bool(plan.outside([x.name for x in self.candidate.targets])))
        return self.contact.metrics.get(OUTSIDE_SHARE, 0.0)

    def pid(self) -> int | None:
        """Return the id of the process that runs it."""
        return self.pool.pid(self.contact.source.reference)


@dataclass(frozen=True)
class TrialRunner:
    """Tries candidates with one configuration, each engine in a child.

    With ``measures_outside``, trials of plans say which share of the time others than their targets
    take.
    """

    config: Config
    limits: ChildLimits
    reference_of: Callable[[str], str]
    isolate: bool = True
    pools: dict[str, ChildPool] = field(default_factory=dict)
    references: set[str] = field(default_factory=set)
    measures_outside: bool = False

    @classmethod
    def of(
        cls, config: Config, finder: TargetFinder, *, measures_outside: bool = False
    ) -> TrialRunner:
        """Make one that meets engines as a finder of targets does."""
        given = finder.limits, finder.reference_of, finder.isolate
        return cls(config, *given, measures_outside=measures_outside)

    def attempt(
        self,
        candidate: Candidate,
        inputs: Sequence[HostValue],
        seconds: float = math.inf,
        artifact: Artifact | None = None,
        child: str = "",
    ) -> CandidateTrial:
        """Compile a candidate, load it and run it once; raises EngineError if that fails.

        With the name of a ``child``, that one runs it, and holds all of its targets.
        With an ``artifact`` of its one region, that is loaded. BackendHung if it takes longer than
        ``seconds``, or than the limits allow.
        """
        plan = candidate.planned.plan
        is_alone = plan.is_whole and not child
        own = candidate.target_of(plan.steps[0].region) if is_alone else None
        target = own or candidate.target
        config = candidate.config(self.config, target)
        reference, pool = self.reference_of(target.name), shared_pool()
        region = _sized(plan.steps[0].region, inputs, config) if is_alone else plan.graph
        if not is_alone:
            config = self._plan_config(config, candidate)
            # Engines in one process would compete for its cores: each plan has its own child.
            pool = self.pools.setdefault(child or candidate.name, ChildPool())
            reference = REFERENCE
        self.references.add(reference)
        answer = first_contact(
            reference,
            region,
            target.device,
            config,
            inputs,
            self._limits(candidate, seconds),
            file=plan.steps[0].region.file if is_alone else None,
            artifact=artifact,
            isolate=self.isolate,
            pool=pool,
        )
        return CandidateTrial(candidate, _answer_or_raise(answer), pool, self.limits)

    def _plan_config(self, config: Config, candidate: Candidate) -> Config:
        names = [target.name for target in candidate.targets]
        measures = self.measures_outside and bool(candidate.planned.plan.outside(names))
        return plan_config(config, candidate, self.reference_of, measures_outside=measures)

    def _limits(self, candidate: Candidate, seconds: float) -> ChildLimits:
        compiling = sum(x.backend.info.compile_seconds for x in candidate.engines)
        limits = self.limits.with_compiling(compiling)
        return replace(limits, seconds=min(limits.seconds, max(seconds, _LEAST_SECONDS)))

    def close(self) -> None:
        """Close the children of plans, and release the engines of the others."""
        for pool in self.pools.values():
            pool.close()
        # Each child holds an engine and the model; the chosen candidate runs in this process.
        for reference in self.references:
            shared_pool().release(reference)


def _answer_or_raise(answer: Answer | Refusal) -> Answer:
    """Return the answer of a child, or raise its refusal."""
    if isinstance(answer, Refusal):
        raise BY_CODE[answer.code](answer.reason, answer.suggestion)
    return answer


def _sized(region: Region, inputs: Sequence[HostValue], config: Config) -> Graph:
    """Return the graph of a region: with open dims, or with the sizes of these inputs."""
    if as_compiled(region, config).shapes == "dynamic":
        return region.graph
    return bind_symbols(region.graph, dict(bindings_of(region.graph, inputs)))
