"""Decide which engine serves a graph, at the levels that measure, and what serves it first.

An entry is that of the winner of a race, of what an earlier race decided, or of the user's own
function where no engine beats it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.contract.frontend import Reading
from fusewire.errors import note
from fusewire.ir.graph import Graph, HostValue
from fusewire.ir.hash import exact_hash
from fusewire.ir.live import call_bytes
from fusewire.options import EXACT, FALLBACK, LATE_BUDGET, Fallback, Options
from fusewire.plan.finite import is_finite
from fusewire.plan.plan import FUNCTION
from fusewire.plan.regions import shape_of
from fusewire.plan.runner import Runner
from fusewire.plan.transfer import to_host
from fusewire.program.arguments import plain
from fusewire.program.entry import Entry
from fusewire.program.serving import OpenDecision
from fusewire.records.entries import Records
from fusewire.records.keys import decision_fields, decision_key
from fusewire.session.candidate_entries import CandidateEntries, Compared
from fusewire.session.context import CompileContext, reference_target
from fusewire.store.disk import Store
from fusewire.store.key import Key
from fusewire.trials.build import PlanBuilder

if TYPE_CHECKING:
    from fusewire.background.first_plan import FirstPlan
    from fusewire.background.search import Proposal
    from fusewire.choosing.baseline import Baseline
    from fusewire.choosing.calibrate import Calibrating
    from fusewire.choosing.decide import Decision, Question
    from fusewire.contract.model_file import ModelFile
    from fusewire.plan.function import FunctionRunner
    from fusewire.planning.candidates import Candidate
    from fusewire.planning.target import Target
    from fusewire.registry import Registry

# Operations that the reference does sooner than an engine starts.
_LITTLE_WORK = 2e7


@dataclass(frozen=True, eq=False)
class Decider:
    """Races the candidates of a graph, before the first answer or behind it."""

    context: CompileContext

    @property
    def options(self) -> Options:
        """The options of the session."""
        return self.context.options

    @property
    def registry(self) -> Registry:
        """The backends of the session."""
        return self.context.registry

    @property
    def records(self) -> Records:
        """The records of the session."""
        return self.context.records

    @cached_property
    def entries(self) -> CandidateEntries:
        """Makes the entry of what is decided."""
        return CandidateEntries(self.context, self._choose_again)

    def _choose_again(
        self, reading: Reading, graph: Graph, inputs: Sequence[Any], is_exact: bool
    ) -> Entry:
        options = self.options
        if is_exact:
            options = replace(options, accuracy=EXACT, calibrate=None)
        again = Decider(replace(self.context, options=options))
        again.records.model = self.records.model
        return again.chosen_entry(reading, graph, None, inputs)

    def with_store(self, store: Store) -> Decider:
        """Return the same with records in another store."""
        if store is self.records.store:
            return self
        return Decider(replace(self.context, store=store))

    def with_long_budget(self) -> Decider | None:
        """Return the same with time for engines that are left out; None if none is."""
        options = replace(self.options, budget_seconds=LATE_BUDGET)
        longer = Decider(replace(self.context, options=options))
        left_out = self._left_out()
        if self.options.level not in (None, 1) or left_out == longer._left_out():
            return None
        longer.records.model = self.records.model
        return longer

    def first_plan(self, reading: Reading, graph: Graph, inputs: Sequence[HostValue]) -> FirstPlan:
        """Make the entry that is quickest to start, which serves until engines are compared."""
        from fusewire.background.first_plan import FirstPlan
        from fusewire.planning.candidates import Candidate

        options, function = self.options, self._own_function(reading)
        if not isinstance(function, str) and self._function_may_serve and options.device is None:
            target = reference_target()
            candidate = Candidate(target, self.entries.plan(graph, [target]))
            engines = EngineRunners(self.entries)
            entry = self._function_entry(reading, graph, candidate, Compared(), function, engines)
            return FirstPlan(entry, candidate, function.title, is_function=True)
        # Warnings would be about a plan that is not kept.
        silent: Fallback = "allow" if options.fallback == "warn" else options.fallback
        quiet = Decider(replace(self.context, options=replace(options, fallback=silent)))
        quiet.records.model = self.records.model
        candidate = quiet._first_candidate(graph, inputs)
        built = quiet.entries.built(candidate, None, is_first=True)
        entry = quiet.entries.ready_entry(reading, candidate, None, built=built)
        return FirstPlan(entry, candidate, candidate.name)

    def _first_candidate(self, graph: Graph, inputs: Sequence[HostValue]) -> Candidate:
        """Return the reference where it has little to do, else the preferred engine."""
        from fusewire.numerics.scale import bindings_of, work_of
        from fusewire.planning.candidates import Candidate

        options = self.options
        is_free = options.backend == "auto" and options.device is None
        may_interpret = is_free and options.fallback != "error"
        if may_interpret and work_of(graph, bindings_of(graph, inputs)) <= _LITTLE_WORK:
            target = reference_target()
            return Candidate(target, self.entries.plan(graph, [target]))
        return self.entries.preferred_candidate(graph, [], is_first=True)

    def host_inputs(
        self, reading: Reading, graph: Graph, arguments: tuple[Any, ...]
    ) -> list[HostValue]:
        """Return the arguments as the graph takes them; CheckError if it does not allow them."""
        from fusewire.planning.guards import checked_inputs

        leaves = reading.arguments.flatten(arguments)
        inputs = [to_host(plain(*pair)) for pair in zip(graph.inputs, leaves, strict=True)]
        return checked_inputs(graph, inputs, self.options.run_limits.memory_bytes)

    def chosen_entry(
        self,
        reading: Reading,
        graph: Graph,
        key: Key | None,
        inputs: Sequence[HostValue],
        start: float | None = None,
    ) -> Entry:
        """Choose a candidate by racing all of them on these inputs, or recall the choice."""
        from fusewire.errors import NoneRightError

        engines = EngineRunners(self.entries)
        question = self.program_question(reading, graph, inputs, engines)
        try:
            decision = self.decide(replace(question, start=start))
        except NoneRightError as error:
            return self.fallback_entry(reading, graph, inputs, error)
        self.options.report("ready", 1.0)
        return self.settled_entry(reading, graph, key, decision, question, engines)

    def recalled_entry(
        self, reading: Reading, graph: Graph, key: Key | None, inputs: Sequence[HostValue]
    ) -> Entry | None:
        """Make the entry of what was decided for such inputs; None if nothing was."""
        fields = self._fields_of(reading)
        if (
            fields is None
            or self.records.get(decision_key(exact_hash(graph), inputs, fields)) is None
        ):
            # What recalls a decision is not imported before there is one.
            return None
        engines = EngineRunners(self.entries)
        question = self.program_question(reading, graph, inputs, engines)
        decision = self.recall(question)
        if decision is None or decision.is_open:
            return None
        self.options.report("ready", 1.0)
        return self.settled_entry(reading, graph, key, decision, question, engines)

    def settled_entry(
        self,
        reading: Reading,
        graph: Graph,
        key: Key | None,
        decision: Decision,
        question: Question,
        engines: EngineRunners,
    ) -> Entry:
        """Make the entry of a decision: of the function, or of a candidate."""
        entry = self._entry_of(reading, graph, key, decision, question, engines)
        return replace(entry, serving=OpenDecision()) if decision.is_open else entry

    def _entry_of(
        self,
        reading: Reading,
        graph: Graph,
        key: Key | None,
        decision: Decision,
        question: Question,
        engines: EngineRunners,
    ) -> Entry:
        baseline = question.baseline
        if decision.is_recalled:
            self.context.say_if_cut_short(graph.name, decision.cut_at, decision.notes)
        if decision.is_function and baseline is not None and baseline.runner is not None:
            given = decision.candidate, Compared(decision.notes, decision.tried)
            return self._function_entry(reading, graph, *given, baseline.runner, engines)
        built = engines.made.get(decision.candidate)
        return self._decided_entry(reading, decision, key, question.inputs, built)

    def _decided_entry(
        self,
        reading: Reading,
        decision: Decision,
        key: Key | None,
        inputs: Sequence[HostValue],
        built: tuple[PlanBuilder, Runner] | None = None,
    ) -> Entry:
        """Make the entry of the chosen candidate."""
        compared = _compared(decision, inputs)
        if decision.is_last_resort:
            notes = list(compared.notes)
            self.context.warn(
                notes, f"No engine here is right beyond doubt: all of it runs on {FALLBACK}."
            )
            compared = replace(compared, notes=tuple(notes))
        # A saved plan is used for any inputs: one that is in doubt is decided again.
        key = key if decision.is_settled and not decision.is_open else None
        return self.entries.ready_entry(reading, decision.candidate, key, compared, built)

    # What runs behind a program that answers already: the function takes no part in the race.

    def proposal(
        self,
        reading: Reading,
        graph: Graph,
        inputs: Sequence[HostValue],
        file: ModelFile | None,
    ) -> Proposal | None:
        """Recall how the engines raced on such inputs, and make the entry of the winner."""
        from fusewire.background.search import Proposal

        decision = self.recall(self.question(graph, inputs, file))
        if decision is None:
            return None
        each = (decision, *(replace(decision, candidate=x, rivals=()) for x in decision.rivals))
        entries = [self._decided_entry(reading, one, None, inputs) for one in each]
        rivals = tuple(map(Proposal, entries[1:], each[1:]))
        return Proposal(entries[0], decision, rivals)

    def keep_decision(
        self,
        reading: Reading,
        graph: Graph,
        key: Key | None,
        inputs: Sequence[HostValue],
        decision: Decision,
    ) -> None:
        """Record what was settled, and save its plan under the key."""
        from fusewire.choosing.decide import record_decision

        question = replace(self.question(graph, inputs), fields=self._fields_of(reading))
        record_decision(question, decision, self.records, self.context.finder)
        if decision.is_open:
            # Or the next process would recall the race, and not measure again.
            question = self.question(graph, inputs)
            record_decision(question, decision, self.records, self.context.finder)
        candidate, is_kept = decision.candidate, decision.is_settled and not decision.is_open
        if key is not None and is_kept and self.entries.may_save(candidate):
            warnings = candidate.planned.warnings() if self.options.fallback == "warn" else []
            self.entries.save(key, reading, candidate, _compared(decision, inputs), warnings)

    def baseline(
        self, reading: Reading, engines: EngineRunners, is_large: bool = False
    ) -> Baseline | None:
        """Return the user's own function, for a graph that was traced from one.

        One that ``is_large`` holds more at once than the user allows, and does not serve.
        """
        if reading.function is None:
            return None
        from fusewire.choosing.baseline import Baseline

        function, title = self._own_function(reading), reading.function.title
        if isinstance(function, str):
            return Baseline(None, engines.runner, function, title=title)
        may_serve = self._function_may_serve and not is_large
        return Baseline(function, engines.runner, may_serve=may_serve, title=title)

    def holds_too_much(self, graph: Graph, inputs: Sequence[HostValue]) -> bool:
        """Tell whether running a graph op by op would hold more than the user allows."""
        limit = self.options.memory_limit
        return limit is not None and call_bytes(graph, list(map(shape_of, inputs))) > limit

    @property
    def _function_may_serve(self) -> bool:
        return self.options.backend == "auto" and self.registry.default == "auto"

    def _own_function(self, reading: Reading) -> FunctionRunner | str:
        """Return the function that a graph was traced from; a sentence says why it cannot run."""
        from fusewire.errors import EngineGarbage
        from fusewire.plan.function import FunctionRunner

        if reading.function is None:
            return "It was not traced from a function."
        if self.options.isolate == "always":
            return "isolate='always' runs every call in a child, where a function cannot go."
        try:
            return FunctionRunner(reading)
        except EngineGarbage as error:
            return f"{error}."

    def _function_entry(
        self,
        reading: Reading,
        graph: Graph,
        candidate: Candidate,
        compared: Compared,
        runner: FunctionRunner,
        engines: EngineRunners,
    ) -> Entry:
        """Make the entry of the user's own function; the candidate is the best of the others."""
        from fusewire.choosing.explain import Explanation, FunctionExplanation

        builder = engines.builder(candidate)
        engines.close()
        saved = partial(self.entries.saved_plan, reading.results, candidate, compared)
        rejected = Explanation(candidate.planned, builder, compared.notes, compared.tried, saved)
        return Entry(
            graph.inputs,
            runner,
            reading.arguments,
            reading.results,
            FUNCTION,
            len(graph.nodes),
            FunctionExplanation(rejected),
            updates=reading.updates,
        )

    def _fitting_targets(self, graph: Graph) -> Iterator[Target]:
        """Yield the targets to choose from, the most preferred first."""
        from fusewire.planning.policy import choose, fitting

        options, finder = self.options, replace(self.context.finder, is_ahead=True)
        policy = finder.registry.default if options.backend == "auto" else options.backend
        if callable(policy):
            return iter([choose(policy, options.device, graph, finder)])
        return fitting(policy, options.device, graph, finder)

    def _further_targets(self) -> Sequence[Target]:
        """Find the targets of the backends that are listed after the first."""
        from fusewire.planning.policy import listed

        options = self.options
        if not isinstance(options.backend, tuple):
            return ()
        return listed(options.backend, options.device, self.context.finder)[1:]

    def _expected_backends(self) -> Sequence[str]:
        """List the backends that "auto" chooses from."""
        options, registry = self.options, self.context.finder.registry
        if options.backend != "auto" or registry.default != "auto" or options.device is not None:
            return ()
        return self.context.finder.expected()

    def _left_out(self) -> dict[str, str]:
        """List the backends that "auto" leaves out because they compile for long, and say so."""
        policy = self.context.finder.registry.default
        is_auto = self.options.backend == "auto" and policy == "auto"
        return self.context.finder.left_out() if is_auto else {}

    # Every question is decided, or recalled, here.

    def decide(self, question: Question, records: Records | None = None) -> Decision:
        """Race the candidates and record the decision, or recall an earlier one."""
        from fusewire.choosing.decide import decide

        return decide(question, self.records if records is None else records, self.context.finder)

    def recall(self, question: Question) -> Decision | None:
        """Recall an earlier decision; None if there is none."""
        from fusewire.choosing.decide import recall_decision

        return recall_decision(question, self.records, self.context.finder)

    def program_question(
        self,
        reading: Reading,
        graph: Graph,
        inputs: Sequence[HostValue],
        engines: EngineRunners,
    ) -> Question:
        """Ask what serves a program best: its own function may, if it was traced from one."""
        return replace(
            self.question(graph, inputs, reading.file),
            fields=self._fields_of(reading),
            baseline=self.baseline(reading, engines, self.holds_too_much(graph, inputs)),
        )

    def question(
        self, graph: Graph, inputs: Sequence[HostValue], file: ModelFile | None = None
    ) -> Question:
        """Ask which engine serves a rewritten graph best."""
        from fusewire.choosing.decide import Question

        options, calibration = self.options, self.options.calibrate
        # The exact form answers a call that has a NaN or an infinity: it is what is compared.
        has_nan = not all(map(is_finite, inputs))
        return Question(
            graph,
            inputs,
            partial(self._fitting_targets, graph),
            reference_target(),
            options.config.exact() if has_nan else options.config,
            decision_fields(options, self.context.level, self.registry),
            may_fall_back=options.fallback != "error",
            # What is recorded is wanted whatever budget it had.
            budget=0.0 if options.level == "recall" else options.budget_seconds,
            seed=options.seed,
            progress=options.report,
            max_crossings=options.max_crossings,
            max_fallback_share=options.max_fallback_share,
            tries_more=self.context.level >= 2,
            tunes=options.level == 3,
            file=file,
            backends=self._expected_backends,
            left_out=self._left_out,
            watch=self.context.watch,
            others=self._further_targets,
            accuracy=options.accuracy,
            keeps_nan=options.keeps_nan or has_nan,
            calibrating=self._calibrating(graph),
            absent="" if calibration is None or calibration.is_at_hand else calibration.digest,
        )

    def _calibrating(self, graph: Graph) -> Calibrating | None:
        """Measure ranges on samples of the user's, if there are any."""
        options, calibration = self.options, self.options.calibrate
        if calibration is None or not calibration.is_at_hand:
            return None
        if calibration.has_other_sizes(graph.inputs):
            types = ", ".join(str(value.type) for value in graph.inputs)
            note(
                f"The samples of calibrate have other sizes than {types}: nothing is calibrated "
                "for those, and less precision is judged on generated inputs."
            )
            return None
        from fusewire.choosing.calibrate import Calibrating

        return Calibrating(
            graph,
            calibration,
            reference_target(),
            options.config,
            self.context.finder,
            options.budget_seconds,
        )

    def _fields_of(self, reading: Reading) -> dict[str, object] | None:
        """Name what a decision depends on besides the graph: also the code of a function."""
        fields = decision_fields(self.options, self.context.level, self.registry)
        if fields is not None and reading.file is not None:
            # Files that differ may have the same graph.
            fields["file"] = reading.file.digest
        if fields is None or reading.function is None:
            return fields
        from fusewire.records.function_code import function_digest

        return {**fields, "function": function_digest(reading.function.function)}

    def fallback_entry(
        self, reading: Reading, graph: Graph, inputs: Sequence[Any], error: Any
    ) -> Entry:
        """Run everything on the fallback, which was not in the race: no engine is right."""
        from fusewire.contract.region import build
        from fusewire.plan.recovery import LimitedExecutable
        from fusewire.planning.candidates import Candidate
        from fusewire.planning.planner import make_plan
        from fusewire.process.guard import guarded_run

        if any(x.backend == FALLBACK for x in error.tried):
            raise error
        fallback = reference_target()
        built = build(fallback.backend, graph, fallback.device)
        run = LimitedExecutable(built, self.options.run_limits).run
        # Raises if the values are at fault, and not the engines: the next call compares again.
        guarded_run(FALLBACK, run, inputs)
        is_limited = self.options.backend_names and self.options.max_fallback_share is not None
        if self.options.fallback == "error" or is_limited:
            raise error
        notes: list[str] = []
        self.context.warn(notes, f"{error} All of it runs on {FALLBACK}.")
        candidate = Candidate(fallback, make_plan(graph, [fallback]))
        compared = Compared(tuple(notes), tuple(error.tried))
        return self.entries.ready_entry(reading, candidate, None, compared)


def _compared(decision: Decision, inputs: Sequence[HostValue]) -> Compared:
    shapes = (x.shape if isinstance(x, np.ndarray | np.generic) else None for x in inputs)
    return Compared(decision.notes, decision.tried, decision.cut_at, tuple(shapes))


@dataclass(frozen=True, eq=False)
class EngineRunners:
    """The runners of candidates in this process, each made once."""

    entries: CandidateEntries
    made: dict[Candidate, tuple[PlanBuilder, Runner]] = field(default_factory=dict)

    def runner(self, candidate: Candidate) -> Runner:
        """Return the runner of a candidate."""
        return self._built(candidate)[1]

    def builder(self, candidate: Candidate) -> PlanBuilder:
        """Return the builder of a candidate's regions."""
        return self._built(candidate)[0]

    def _built(self, candidate: Candidate) -> tuple[PlanBuilder, Runner]:
        if candidate not in self.made:
            # Functions have no key: their plans are not saved.
            self.made[candidate] = self.entries.built(candidate, None)
        return self.made[candidate]

    def close(self) -> None:
        """Close the runners."""
        for _, runner in self.made.values():
            runner.close()
