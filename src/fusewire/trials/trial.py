"""Where candidates are tried: in children, a region as it is, a plan of several as a rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fusewire.contract.backend import Config, Refusal
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Graph
from fusewire.numerics.bound import bindings_of
from fusewire.ops.sample import HostValue
from fusewire.planning.candidates import Candidate
from fusewire.process.guard import BY_CODE, Answer
from fusewire.process.isolate import Contact, first_contact, rerun, timed
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool, shared_pool
from fusewire.runtime.plan import Region
from fusewire.trials.plan_backend import REFERENCE, configured

# Runs what a backend refuses.
FALLBACK = "reference"


@dataclass(frozen=True, eq=False)
class CandidateTrial:
    """A candidate that ran in a child."""

    candidate: Candidate
    contact: Contact
    pool: ChildPool
    limits: ChildLimits

    def run(self, inputs: Sequence[HostValue]) -> list[HostValue]:
        """Run once more; EngineError if it does not."""
        return _made(rerun(self.contact, inputs, self.limits, pool=self.pool))

    def seconds(self, inputs: Sequence[HostValue], count: int) -> Sequence[float]:
        """Run several times and give the seconds of each."""
        return _made(timed(self.contact, inputs, count, self.limits, pool=self.pool))

    def pid(self) -> int | None:
        """Tell the process that runs it."""
        return self.pool.pid(self.contact.source.reference)


@dataclass(frozen=True)
class TrialRunner:
    """Where candidates are tried, and with which settings."""

    config: Config
    limits: ChildLimits
    reference_of: Callable[[str], str]
    isolate: bool = True
    pools: dict[str, ChildPool] = field(default_factory=dict)
    trial: set[str] = field(default_factory=set)

    def place(self, candidate: Candidate, inputs: Sequence[HostValue]) -> CandidateTrial:
        """Have a candidate compiled, loaded and run once; EngineError says why it was not."""
        target, plan = candidate.target, candidate.planned.plan
        config = candidate.config(self.config)
        reference, pool = self.reference_of(target.name), shared_pool()
        region = _sized(plan.steps[0].region, inputs) if plan.is_whole else plan.graph
        if not plan.is_whole:
            config = configured(config, target, reference, self.reference_of(FALLBACK))
            # Engines that meet in one process fight for its cores: each plan has its own.
            pool = self.pools.setdefault(candidate.name, ChildPool())
            reference = REFERENCE
        else:
            self.trial.add(reference)
        made = first_contact(
            reference,
            region,
            target.device,
            config,
            inputs,
            self.limits,
            isolate=self.isolate,
            pool=pool,
        )
        return CandidateTrial(candidate, _made(made), pool, self.limits)

    def close(self) -> None:
        """End what was started for plans."""
        for pool in self.pools.values():
            pool.close()
        # Each holds an engine and the model; what is chosen runs in this process.
        for reference in self.trial:
            shared_pool().release(reference)


def _made(found: Answer | Refusal) -> Answer:
    """Give what a child made, or raise why it made nothing."""
    if isinstance(found, Refusal):
        raise BY_CODE[found.code](found.reason, found.suggestion)
    return found


def _sized(region: Region, inputs: Sequence[HostValue]) -> Graph:
    """Give a region as its engine takes it: with open dims, or with the sizes of these inputs."""
    if region.shapes == "dynamic":
        return region.graph
    return bind_symbols(region.graph, dict(bindings_of(region.graph, inputs)))
