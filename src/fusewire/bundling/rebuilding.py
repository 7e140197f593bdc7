"""Build the plan of a bundle that is only data: compile in a child, and judge the first answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusewire.background.first import FirstCall
from fusewire.choosing.decide import read_tried, targets_of
from fusewire.choosing.findings import Findings
from fusewire.choosing.judge import Judge
from fusewire.contract.frontend import Reading, Structure
from fusewire.errors import BundleWarning, RefusedError, warn_outside
from fusewire.ir.graph import Graph, HostValue
from fusewire.plan.plan import Plan
from fusewire.plan.transfer import to_host
from fusewire.planning.candidates import Candidate, plan_choice
from fusewire.planning.planner import make_plan
from fusewire.planning.target import Target
from fusewire.program.entry import Entry, Undecided
from fusewire.records.plans import Choice, SavedPlan
from fusewire.records.quarantine import Fact
from fusewire.session.candidate_entries import Compared
from fusewire.session.context import CompileContext, reference_target
from fusewire.session.decider import Decider
from fusewire.show.why import Why
from fusewire.store.key import Key
from fusewire.system.hardware import usable_cores

_BEYOND_DOUBT = ("right", "cannot say")


def undecided_entry(
    context: CompileContext, graph: Graph, saved: SavedPlan, key: Key, doubt: str
) -> Entry:
    """Make the entry of a plan that the first call builds and judges."""
    names = tuple(value.name or "" for value in graph.inputs)
    leaves = (Structure.LEAF,) * len(saved.outputs)
    reading = Reading(
        graph,
        Structure((Structure.LEAF,) * len(names), names),
        Structure(Structure.LEAF if saved.is_alone else leaves, saved.outputs),
    )
    rebuilding = _Rebuilding(Decider(context), reading, saved, key, doubt)
    return Entry(
        graph.inputs,
        Undecided(),
        reading.arguments,
        reading.results,
        saved.engine_names,
        len(graph.nodes),
        rebuilding,
        rebuilding.decide,
    )


@dataclass(frozen=True, eq=False)
class _Rebuilding:
    """A plan that is not built yet."""

    decider: Decider
    reading: Reading
    saved: SavedPlan
    key: Key
    doubt: str

    @property
    def plan(self) -> Plan:
        """The plan on the reference, which needs no engine."""
        return make_plan(self.reading.graph, [reference_target()]).plan

    def why(self) -> Why:
        """Explain the plan that is known so far."""
        return self.decider.entries.planned_entry(
            self.reading, self.reading.graph, None
        ).details.why()

    def decide(self, arguments: tuple[Any, ...]) -> Entry:
        """Build the plan for these arguments, run it, and judge the answer."""
        graph = self.reading.graph
        inputs = self.decider.host_inputs(self.reading, graph, arguments)
        try:
            candidate = self._candidate()
        except RefusedError as error:
            return self._compared(arguments, str(error))
        entries = self.decider.entries
        tried = tuple(read_tried(row) for row in self.saved.tried)
        compared = Compared((f"It comes from a bundle: {self.doubt}.",), tried)
        entry = entries.ready_entry(self.reading, candidate, None, compared)
        problem = self._wrong(candidate, inputs, [to_host(x) for x in entry.runner.call(inputs)])
        if problem:
            entry.runner.close()
            return self._compared(arguments, problem)
        if entries.may_save(candidate):
            entries.save(self.key, self.reading, candidate, compared, ())
        return entry

    def _candidate(self) -> Candidate:
        """Plan as the bundle says; RefusedError if that is not possible here."""
        if self.saved.superseded:
            raise RefusedError(self.saved.superseded)
        choice, context = self.saved.choice, self.decider.context
        targets = targets_of(choice, context.finder)
        if targets is None:
            places = " or ".join(f"{x.backend} has no device {x.device}" for x in choice.places)
            raise RefusedError(f"{places} here.")
        target, *others = targets
        # The file that an engine could read is not part of a bundle.
        form = "native" if choice.form == "file" else choice.form
        choice = replace(choice, form=form, options=self._allowed_options(target))
        choice = replace(choice, threads=self._allowed_threads(choice))
        may_fall_back = context.options.fallback != "error"
        graph, fallback = self.reading.graph, reference_target()
        planned = plan_choice(choice, graph, targets, fallback, may_fall_back)
        own = form, choice.options, tuple(others), False, choice.threads
        candidate = Candidate(target, planned, *own)
        if context.options.keeps_nan and candidate.may_lose_nan(context.options.config):
            raise RefusedError(f"{candidate.name} may lose NaN, and nan='exact' forbids that.")
        return candidate

    def _allowed_threads(self, choice: Choice) -> int | None:
        """Return the threads that it was chosen with; no more than there may be."""
        if choice.threads is None:
            return None
        return min(choice.threads, self.decider.context.options.threads or usable_cores())

    def _allowed_options(self, target: Target) -> dict[str, Any]:
        """Keep only options that the backend itself offers: others might name files."""
        options = dict(self.saved.choice.options)
        offered = target.backend.configs(self.reading.graph, target.device)
        return options if options in map(dict, offered) else {}

    def _wrong(
        self, candidate: Candidate, inputs: Sequence[HostValue], answer: list[HostValue]
    ) -> str:
        """Say what is wrong with an answer; empty if it is right, or nobody can say."""
        options = self.decider.options
        judge = Judge(self.reading.graph, inputs, seed=options.seed, limits=options.run_limits)
        verdict = judge.judge_given(answer)
        if isinstance(verdict, str) or verdict.status in _BEYOND_DOUBT:
            return ""
        if verdict.status == "wrong":
            given = self.reading.graph, inputs, self.decider.records
            findings = Findings(*given, options.config, options.deadline)
            engines = self.decider.entries.engines_to_blame(candidate, inputs)
            findings.quarantine(candidate, Fact("wrong", verdict.reason), engines)
        return f"{candidate.name} is {verdict.status} here: {verdict.reason}"

    def _compared(self, arguments: tuple[Any, ...], problem: str) -> Entry:
        """Choose an engine as for a new graph, and say why."""
        warn_outside(
            f"The plan of the bundle cannot be used: {problem} Engines are compared instead.",
            BundleWarning,
        )
        call = FirstCall(self.decider, self.reading, self.reading.graph, None, None)
        return call.entry(arguments)
