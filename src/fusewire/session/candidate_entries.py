"""Make entries of plans: of a candidate that was chosen, or at level 0 of the preferred targets.

The plan is saved for warm starts, and the canary watches its engine where the options ask for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fusewire.choosing.explain import Explanation
from fusewire.contract.backend import Config
from fusewire.contract.frontend import Reading, Structure
from fusewire.errors import warn_outside
from fusewire.ir.graph import Graph, is_current
from fusewire.options import EXACT, FALLBACK
from fusewire.plan.execute import PlanRunner
from fusewire.plan.plan import Plan
from fusewire.plan.runner import Runner
from fusewire.program.entry import Entry
from fusewire.records.keys import body_key
from fusewire.records.plans import SavedPlan, SavedTarget
from fusewire.records.recall import keep_host_graphs
from fusewire.session.context import CompileContext, reference_target
from fusewire.show.why import Tried
from fusewire.store.key import Key
from fusewire.trials.build import BuildTarget, PlanBuilder

if TYPE_CHECKING:
    from fusewire.numerics.judge import Verdict
    from fusewire.planning.candidates import Candidate
    from fusewire.planning.planner import Planned
    from fusewire.planning.target import Target
    from fusewire.registry import Registry


@dataclass(frozen=True)
class Compared:
    """What a comparison showed, which is saved with the plan; empty if there was none.

    ``cut_at`` is the budget in seconds that ended it early, or None; ``shapes`` are those of its
    inputs, None for what is no tensor.
    """

    notes: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    cut_at: float | None = None
    shapes: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(frozen=True, eq=False)
class CandidateEntries:
    """Makes the entries of candidates.

    ``choose_again`` makes the entry of a graph whose engine the canary found wrong, where engines
    are compared; it is told whether to compute in the model's own dtypes.
    """

    context: CompileContext
    choose_again: Callable[[Reading, Graph, Sequence[Any], bool], Entry] | None = None

    def planned_entry(self, reading: Reading, graph: Graph, key: Key | None) -> Entry:
        """Plan on the preferred targets, without measuring."""
        notes: list[str] = []
        candidate = self.preferred_candidate(graph, notes)
        # A target that is missing now may be there next time: a plan with notes is not saved.
        return self.ready_entry(reading, candidate, None if notes else key, Compared(tuple(notes)))

    def preferred_candidate(
        self, graph: Graph, notes: list[str], *, is_first: bool = False
    ) -> Candidate:
        """Plan on the requested targets, as far as the limits allow."""
        targets = self.preferred_targets(graph, notes, is_first=is_first)
        return self.plan_within_limits(graph, targets, notes)

    def preferred_targets(
        self, graph: Graph, notes: list[str], *, is_first: bool = False
    ) -> list[Target]:
        """Find the requested targets; if none has a device, the fallback where that is allowed.

        One that only serves first need not be the best: it is one that can answer soon.
        """
        from fusewire.errors import UnavailableError
        from fusewire.planning.policy import choose, listed, soonest

        options, finder = self.context.options, self.context.finder
        if isinstance(options.backend, tuple):
            absent: list[str] | None = None if options.fallback == "error" else []
            targets = listed(options.backend, options.device, finder, absent)
            for sentence in absent or ():
                rest = ", ".join(target.name for target in targets)
                self.context.warn(notes, f"{sentence} It runs on {rest}.")
            return targets
        # The rest of a graph goes to the fallback, as far as that is allowed.
        may_split = options.fallback != "error" and options.max_crossings is None
        find = soonest if is_first and may_split else choose
        try:
            return [find(options.backend, options.device, graph, finder)]
        except UnavailableError as error:
            if options.fallback == "error":
                raise
            self.context.warn(notes, f"{error} All of it runs on {FALLBACK}.")
            return [reference_target()]

    def plan_within_limits(
        self, graph: Graph, targets: Sequence[Target], notes: list[str]
    ) -> Candidate:
        """Plan on the targets; without the first ones where they hand over too many tensors.

        If all do, the fallback runs everything.
        """
        from fusewire.errors import RefusedError
        from fusewire.planning.candidates import Candidate
        from fusewire.planning.planner import make_plan

        options = self.context.options
        problems: list[str] = []
        for number in range(len(targets)):
            target, *others = targets[number:]
            try:
                planned = self.plan(graph, targets[number:])
            except RefusedError:
                if not problems:
                    raise
                break
            crossings = planned.plan.crossings() if options.max_crossings is not None else 0
            if crossings <= (options.max_crossings or 0):
                candidate = Candidate(target, planned, others=tuple(others))
                if problems:
                    problem = f"{' '.join(problems)} It runs on {candidate.engine_names}."
                    self.context.warn(notes, problem)
                return candidate
            names = " and ".join(x.name for x in (target, *others))
            would = f"{names} would hand over {crossings} tensors, and {options.max_crossings}"
            problems.append(f"{would} are allowed.")
        if options.fallback == "error":
            advice = "Raise max_crossings, or choose another backend."
            raise RefusedError(f"{' '.join(problems)} {advice}")
        self.context.warn(notes, f"{' '.join(problems)} All of it runs on {FALLBACK}.")
        return Candidate(targets[0], make_plan(graph, [reference_target()]))

    def plan(self, graph: Graph, targets: Sequence[Target]) -> Planned:
        """Plan a graph on targets; the fallback takes the nodes that all refuse, if allowed."""
        from fusewire.planning.candidates import allowed
        from fusewire.planning.planner import make_plan

        fallback = reference_target()
        may_fall_back = self.context.options.fallback != "error"
        return make_plan(graph, allowed(targets, fallback, may_fall_back), fallback)

    def ready_entry(
        self,
        reading: Reading,
        candidate: Candidate,
        key: Key | None,
        compared: Compared = Compared(),
        built: tuple[PlanBuilder, Runner] | None = None,
    ) -> Entry:
        """Make the entry of a candidate, and save its plan under the key."""
        options, plan = self.context.options, candidate.planned.plan
        warnings = candidate.planned.warnings() if options.fallback == "warn" else []
        for sentence in warnings:
            warn_outside(sentence)
        key = key if self.may_save(candidate) else None
        if key is not None:
            self.save(key, reading, candidate, compared, warnings)
        builder, runner = built or self.built(candidate, key)
        if options.canary and candidate.engines[0].name != FALLBACK:
            runner = self._watched(runner, reading, candidate)
        return Entry(
            plan.graph.inputs,
            runner,
            reading.arguments,
            reading.results,
            candidate.engine_names,
            len(plan.graph.nodes),
            Explanation(
                candidate.planned,
                builder,
                compared.notes,
                compared.tried,
                partial(self.saved_plan, reading.results, candidate, compared, warnings),
            ),
            updates=reading.updates,
        )

    def built(
        self, candidate: Candidate, key: Key | None, *, is_first: bool = False
    ) -> tuple[PlanBuilder, Runner]:
        """Make the runner of a candidate; its bodies are planned under the key.

        One that only serves first is built in the quickest way.
        """
        config = self.context.options.config
        first, *others = (BuildTarget.of(x, candidate.config(config, x)) for x in candidate.targets)
        builder = self.context.builder(
            first,
            BuildTarget.of(reference_target(), Config()),
            BodyPlanner(self, candidate.targets, key).plan,
            others=others,
            is_first=is_first,
        )
        return builder, PlanRunner(candidate.planned.plan, builder)

    def may_save(self, candidate: Candidate) -> bool:
        """Tell whether the plan may be saved: backends of other packages may change unnoticed."""
        backends = self.context.registry.backends
        names = (*(target.name for target in candidate.targets), FALLBACK)
        is_ours = all(backends.describe(x).distribution == "fusewire" for x in names)
        return is_ours and not self.context.options.canary

    def save(
        self,
        key: Key,
        reading: Reading,
        candidate: Candidate,
        compared: Compared,
        warnings: Sequence[str],
    ) -> None:
        """Save the plan of a model for a warm start of another process."""
        if not is_current(reading.graph):
            # Parts of the plan may come of what was there before, others of what is there now.
            return
        plan, fallback = candidate.planned.plan, reference_target()
        keep_host_graphs(self.context.records, plan, fallback.backend, fallback.device, Config())
        saved = self.saved_plan(reading.results, candidate, compared, warnings)
        self.context.records.keep_saved_plan(key, saved)

    def saved_plan(
        self,
        results: Structure,
        candidate: Candidate,
        compared: Compared,
        warnings: Sequence[str] = (),
    ) -> SavedPlan:
        """Return the plan of a candidate with all that a warm start needs."""
        plan, config = candidate.planned.plan, self.context.options.config
        registry = self.context.registry
        targets = {FALLBACK: _saved_target(registry, reference_target(), Config())}
        for target in candidate.targets:
            own = candidate.config(config, target)
            targets[target.name] = _saved_target(registry, target, own)
        return SavedPlan(
            plan,
            tuple((value.name or "", value.type) for value in plan.graph.inputs),
            results.names,
            results.tree is Structure.LEAF,
            len(plan.graph.nodes),
            targets,
            candidate.choice(),
            [asdict(row) for row in compared.tried],
            compared.cut_at,
            tuple(warnings),
            compared.notes,
            compared.shapes,
        )

    def _watched(self, runner: Runner, reading: Reading, candidate: Candidate) -> Runner:
        from fusewire.choosing.canary import Watched

        graph, every = candidate.planned.plan.graph, self.context.options.canary
        remake = partial(self._without_wrong_engine, reading, candidate)
        limits = self.context.options.run_limits
        accuracy = self.context.options.accuracy if candidate.is_reduced else EXACT
        return Watched(runner, graph, every, candidate.name, remake, limits, accuracy)

    def engines_to_blame(
        self, candidate: Candidate, inputs: Sequence[Any]
    ) -> tuple[str, ...] | None:
        """Find which engines of a wrong candidate are to blame; None if that is not known."""
        from fusewire.choosing.blame import wrong_engines

        options, finder = self.context.options, self.context.finder
        end = time.monotonic() + options.deadline
        given = options.config, options.limits, finder.reference_of, end
        return wrong_engines(candidate, inputs, *given)

    def _without_wrong_engine(
        self, reading: Reading, candidate: Candidate, inputs: Sequence[Any], verdict: Verdict
    ) -> Runner:
        """Make a runner without the engine that the canary found wrong."""
        from fusewire.choosing.findings import Findings
        from fusewire.errors import RefusedError
        from fusewire.planning.candidates import Candidate
        from fusewire.planning.planner import make_plan
        from fusewire.records.quarantine import Fact
        from fusewire.rewrite.pipeline import run_pipeline

        graph, options = run_pipeline(reading.graph).graph, self.context.options
        findings = Findings(graph, inputs, self.context.records, options.config, options.deadline)
        if not candidate.is_reduced:
            engines = self.engines_to_blame(candidate, inputs)
            findings.quarantine(candidate, Fact("wrong", verdict.reason), engines)
        if self.choose_again is not None and self.context.level:
            return self.choose_again(reading, graph, inputs, candidate.is_reduced).runner
        if options.fallback == "error":
            raise RefusedError(
                f"{candidate.name} gave a wrong answer, and fallback is not allowed: "
                f"{verdict.reason}"
            )
        fallback = reference_target()
        rest = Candidate(fallback, make_plan(graph, [fallback]))
        return self.ready_entry(reading, rest, None).runner


@dataclass(frozen=True, eq=False)
class BodyPlanner:
    """Plans bodies of control flow once their sizes are known, and records the plans."""

    entries: CandidateEntries
    targets: Sequence[Target]
    key: Key | None

    def plan(self, body: Graph) -> Plan:
        """Plan a body, and record its plan if there is a key."""
        plan = self.entries.plan(body, self.targets).plan
        if self.key is not None:
            records, fallback = self.entries.context.records, reference_target()
            keep_host_graphs(records, plan, fallback.backend, fallback.device, Config())
            records.keep_plan(body_key(self.key, body), plan)
        return plan


def _saved_target(registry: Registry, target: Target, config: Config) -> SavedTarget:
    reference = registry.backends.describe(target.name).reference
    return SavedTarget.of(target.backend, reference, target.device, config)
