"""The recipe: read a source, rewrite its graph, plan it, and make a program of the plan.

``fw.compile`` and every command about a model go through ``Session``. Modules that only compiling
needs are imported where they are used, so that a warm start does not wait for them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from fusewire.contract.backend import Backend, Config
from fusewire.contract.frontend import Limits, Reading, Structure
from fusewire.errors import FormatError, SizesNeededError, warn_outside
from fusewire.ir.graph import Graph, Value
from fusewire.model_source import ModelSource
from fusewire.ops.sample import HostValue
from fusewire.options import FALLBACK, Fallback, OptionFields, Options, documented
from fusewire.records.entries import Records
from fusewire.records.keys import body_key, decision_fields, file_key
from fusewire.records.plans import SavedPlan, SavedTarget
from fusewire.records.recall import Recalled, keep_host_graphs, recall
from fusewire.runtime.entry import Details, Entry, LearnedSizes, Runner, Undecided, misfit, plain
from fusewire.runtime.execute import PlanRunner
from fusewire.runtime.origin import Origin
from fusewire.runtime.plan import Plan
from fusewire.runtime.program import Program
from fusewire.runtime.transfer import to_host
from fusewire.runtime.why import Tried, Why
from fusewire.store.disk import Store, shared_store
from fusewire.store.key import Key
from fusewire.store.stamps import file_digest
from fusewire.trials.build import BuildTarget, PlanBuilder

if TYPE_CHECKING:
    from fusewire.background.job import FileSource
    from fusewire.background.search import FirstPlan
    from fusewire.choosing.baseline import Baseline
    from fusewire.choosing.decide import Decision, Question
    from fusewire.choosing.quiet import CallWatch
    from fusewire.contract.model_file import ModelFile
    from fusewire.numerics.judge import Verdict
    from fusewire.planning.candidates import Candidate
    from fusewire.planning.planner import Planned
    from fusewire.planning.policy import TargetFinder
    from fusewire.planning.target import Target
    from fusewire.process.isolated import Services
    from fusewire.runtime.function import FunctionRunner
    from fusewire.sizes import Opening, OpenTrace, SeenSizes


LOG = logging.getLogger("fusewire")
# Operations that the reference does sooner than an engine starts.
_LITTLE_WORK = 2e7
# None would hide the mistake of who gives it.
_NO_SOURCE: Any = object()


@overload
def compile(
    *, options: Options | None = None, **fields_: Unpack[OptionFields]
) -> Callable[[Any], Program]: ...


@overload
def compile(
    source: Any, *example: Any, options: Options | None = None, **fields_: Unpack[OptionFields]
) -> Program: ...


@documented
def compile(
    source: Any = _NO_SOURCE,
    *example: Any,
    options: Options | None = None,
    **fields_: Unpack[OptionFields],
) -> Any:
    """Compile a function, a graph or a model file into a program.

    Without a source it is a decorator: ``@fw.compile(backend="xla")``.

    ``example`` holds arrays or Specs; without it, a function is traced at its first call, and again
    for every new signature. With Specs that name dims, one graph serves every size.

    >>> import numpy as np
    >>> double = compile(lambda x: x + x)
    >>> double(np.ones(3, np.float32))
    array([2., 2., 2.], dtype=float32)
    """
    session = Session(Options.of(options, fields_))
    if source is _NO_SOURCE:
        return lambda function: compile(function, *example, options=session.options)
    program = session.program(ModelSource(source), example)
    program.origin = Origin(source, example, session.options, compile_again)
    return program


def compile_again(source: Any, example: tuple[Any, ...], options: Options) -> Program:
    """Compile what a pickled or forked program was made from; the cache makes it quick."""
    return compile(source, *example, options=options)


def load(path: str | os.PathLike[str], *, limits: Limits = Limits()) -> Graph:
    """Read a model file into a graph; dims that the file leaves open stay symbols.

    Raises FormatError, naming the node, if the file cannot be read, and BudgetError if it exceeds
    the limits.
    """
    return ModelSource(path, limits).read().graph


def trace(source: Any, *example: Any) -> Graph:
    """Trace a function into a graph.

    >>> print(trace(lambda x: x * 2, Spec(("n",), "float32")))
    graph lambda(%x: float32[n]) {
      %0 = constant float32[] {2.0}
      %1 = multiply(%x, %0) : float32[n]
      return %1 as output
    }
    """
    return ModelSource(source).read(example).graph


def run(op: str, *arrays: Any, backend: str = FALLBACK, **attrs: Any) -> Any:
    """Run one op on arrays; returns a tuple if the op has several outputs.

    >>> import numpy as np
    >>> run("reduce_sum", np.ones((2, 3), np.float32), axes=(1,))
    array([3., 3.], dtype=float32)
    """
    from fusewire.contract.region import build
    from fusewire.ops.interpret import graph_of
    from fusewire.ops.table import get_op

    declared = get_op(op)
    graph, inputs = graph_of(declared, arrays, attrs)
    if backend != FALLBACK:
        # An engine may crash over a single op, so it runs in a child first, as in any program.
        return compile(graph, backend=backend, fallback="error")(*inputs)
    fallback = reference_target()
    outputs = build(fallback.backend, graph, fallback.device).run(inputs).wait()
    return tuple(outputs) if declared.is_multiple else outputs[0]


def reference_target() -> Target:
    """Return the target of the reference backend, which runs every op."""
    from fusewire.contract.region import first_device
    from fusewire.planning.target import Target
    from fusewire.registry import REGISTRY

    backend = REGISTRY.backends.get(FALLBACK)
    return Target(backend, first_device(backend))


@dataclass(frozen=True)
class Session:
    """Compiles models with one set of options."""

    options: Options = field(default_factory=Options)
    # Used instead of the user's store.
    store: Store | None = None
    # Tells when calls of a program disturb what is measured for it.
    watch: CallWatch | None = None

    @cached_property
    def records(self) -> Records:
        """The records of earlier processes, which this session adds to."""
        return Records(self.store or (shared_store() if self.options.cache else None))

    @cached_property
    def finder(self) -> TargetFinder:
        """Finds the targets of this machine."""
        from fusewire.planning.policy import TargetFinder
        from fusewire.registry import REGISTRY

        return TargetFinder(REGISTRY, self.options.has_children, self.options.limits)

    @cached_property
    def services(self) -> Services | None:
        """The children in which engines stay; None if engines run in this process."""
        if self.options.isolate != "always":
            return None
        from fusewire.process.isolated import Services

        return Services(self.options.limits)

    @property
    def level(self) -> int:
        """The requested level; by default "auto" measures, and a named backend does not."""
        from fusewire.registry import REGISTRY

        options = self.options
        if options.level == "recall":
            return 1
        if options.level is not None:
            return options.level
        is_auto = options.backend == "auto" and REGISTRY.default == "auto"
        return int(is_auto and options.budget_seconds > 0)

    # The road: a program has entries. An entry is recalled, or made by reading the model,
    # rewriting its graph, and planning it on one target or choosing among several.

    def program(self, model: ModelSource, example: tuple[Any, ...] = ()) -> Program:
        """Make a program; a model that declares its types is compiled at once."""
        maker = _EntryMaker(self, model)
        if isinstance(model.source, Graph) or example:
            return self._program(maker, maker.make(example))
        recalled = self._recalled_entry(model, (), is_open=False)
        if recalled is not None:
            return self._program(maker, recalled)
        if not self._is_known_to_need_sizes(model):
            if model.is_file:
                # A child starts, and imports the engine, while the file is read.
                self.finder.meet_ahead(self.options.backend)
            if model.needs_example:
                return self._program(maker)
            try:
                return self._program(maker, self._new_entry(model, (), is_open=False))
            except SizesNeededError:
                self._record_need_for_sizes(model)
        # Read at the first call, which fixes the sizes that must be known.
        return self._program(_EntryMaker(self, model, is_open=True))

    def _program(self, maker: _EntryMaker, *entries: Entry) -> Program:
        return Program(
            maker.model.name,
            maker.make,
            entries,
            parameters=maker.model.parameters(entries),
            casts=self.options.cast == "same_kind",
            make_apart=maker.make_apart,
        )

    def entry(
        self, model: ModelSource, example: tuple[Any, ...], *, is_open: bool = False
    ) -> Entry:
        """Recall the entry of a model for such arguments, or make a new one."""
        recalled = self._recalled_entry(model, example, is_open=is_open)
        return recalled or self._new_entry(model, example, is_open=is_open)

    def _new_entry(self, model: ModelSource, example: tuple[Any, ...], *, is_open: bool) -> Entry:
        start = time.monotonic()
        try:
            reading = model.read(example, is_open=is_open)
        finally:
            # The next reading may be long after this, and must be of the file as it is then.
            model.release()
        self.records.model = model.name
        key = self._plan_key(reading.digest, example, is_open)
        file = _file_of(model, reading, example, is_open)
        return self._entry_of(reading, example, key, file, start)

    def _entry_of(
        self,
        reading: Reading,
        example: tuple[Any, ...],
        key: Key | None = None,
        file: FileSource | None = None,
        start: float | None = None,
    ) -> Entry:
        """Make the entry of what was read, to be decided at the first call if need be."""
        graph = self.rewrite(reading.graph)
        if self.level == 0:
            return self._planned_entry(reading, graph, key)
        from fusewire.background.first import FirstCall

        decide = FirstCall(self, reading, graph, key, file)
        if example and all(isinstance(x, np.ndarray | np.generic) for x in example):
            return decide.entry(example, start)
        return Entry(
            graph.inputs,
            Undecided(),
            reading.arguments,
            reading.results,
            "auto",
            len(graph.nodes),
            _LevelZeroDetails(self, reading, graph),
            decide.entry,
        )

    def entry_apart(self, model: ModelSource, arguments: tuple[Any, ...]) -> Entry | None:
        """Make an entry in which a name of the file may stand for several sizes.

        None if no name does, so that the arguments misfit for another reason.
        """
        from fusewire.sizes import differing_names, read_apart

        if isinstance(model.source, Graph) or model.needs_example:
            return None
        try:
            names = differing_names(list(model.inputs().items()), arguments)
            reading = read_apart(model, arguments) if names else None
        finally:
            model.release()
        if reading is None:
            return None
        LOG.warning(
            "%s has one name for sizes that differ (%s). It is compiled again with names that "
            "stand for one size each.",
            model.name,
            ", ".join(names),
        )
        return self._entry_of(reading, arguments)

    def open_entry(self, opened: OpenTrace, opening: Opening, arguments: tuple[Any, ...]) -> Entry:
        """Make an entry with open sizes; the choice at the first sizes serves near those."""
        from fusewire.background.first import FirstCall

        reading, graph = opened.reading, opened.graph
        if self.level == 0:
            planned = self._planned_entry(reading, graph, None)
            learned = LearnedSizes(opened.allows, {}, lambda arguments: planned)
            return replace(planned, learned=learned)
        call = FirstCall(self, reading, graph, None, None)
        baseline = self._baseline(reading, _EngineRunners(self))
        is_served = baseline is not None and baseline.may_serve
        interim = baseline.runner if baseline is not None and is_served else None

        def decide(arguments: tuple[Any, ...]) -> Entry:
            entry = call.entry(arguments)
            learned = LearnedSizes(opened.allows, entry.sizes(arguments), decide, interim)
            return replace(entry, learned=learned)

        first = LearnedSizes(opened.allows, opening.first_sizes, decide, interim)
        if not first.is_near(opening.sizes):
            return decide(arguments)
        entry = self._entry_as_before(opened)
        return decide(arguments) if entry is None else replace(entry, learned=first)

    def _entry_as_before(self, opened: OpenTrace) -> Entry | None:
        """Make the entry of what was decided at the first sizes; None if nothing was."""
        from fusewire.choosing.decide import recall_decision
        from fusewire.planning.candidates import plan_choice

        reading, engines = opened.reading, _EngineRunners(self)
        baseline, fields = self._baseline(reading, engines), self._decision_fields(reading)
        question = self._question(
            opened.first_graph, opened.first_inputs, fields, baseline=baseline
        )
        decision = recall_decision(question, self.records, self.finder)
        if decision is None:
            return None
        choice, target = decision.candidate.choice(), decision.candidate.target
        may_fall_back = self.options.fallback != "error"
        planned = plan_choice(choice, opened.graph, target, reference_target(), may_fall_back)
        candidate = replace(decision.candidate, planned=planned)
        note = "It was chosen at the sizes of an earlier call."
        decision = replace(decision, candidate=candidate, notes=(*decision.notes, note))
        return self._settled_entry(reading, opened.graph, None, decision, baseline, engines)

    def interpret(self, graph: Graph, inputs: Sequence[HostValue]) -> list[Any]:
        """Run a graph on the reference."""
        from fusewire.contract.region import build
        from fusewire.ops.limits import limited

        target = reference_target()
        with limited(self.options.run_limits):
            return build(target.backend, graph, target.device).run(inputs).wait()

    def rewrite(self, graph: Graph) -> Graph:
        """Rewrite a verified graph into its canonical form."""
        from fusewire.rewrite.pipeline import run_pipeline

        return run_pipeline(graph).graph

    # Level 0: plan on the preferred target.

    def _planned_entry(self, reading: Reading, graph: Graph, key: Key | None) -> Entry:
        """Plan on the preferred target, without measuring."""
        from fusewire.planning.candidates import Candidate

        notes: list[str] = []
        target = self._preferred_target(graph, notes)
        candidate = Candidate(target, self._plan_within_limits(graph, target, notes))
        # A target that is missing now may be there next time: a plan with notes is not saved.
        return self._ready_entry(reading, candidate, None if notes else key, notes)

    def _preferred_target(self, graph: Graph, notes: list[str]) -> Target:
        """Find the requested target; if it has no device, the fallback where that is allowed."""
        from fusewire.errors import UnavailableError
        from fusewire.planning.policy import choose

        options = self.options
        try:
            return choose(options.backend, options.device, graph, self.finder)
        except UnavailableError as error:
            if options.fallback == "error":
                raise
            self._warn(notes, f"{error} All of it runs on {FALLBACK}.")
            return reference_target()

    def _plan_within_limits(self, graph: Graph, target: Target, notes: list[str]) -> Planned:
        from fusewire.errors import RefusedError
        from fusewire.planning.planner import make_plan

        options, planned = self.options, self.plan(graph, target)
        crossings = planned.plan.crossings() if options.max_crossings is not None else 0
        if crossings <= (options.max_crossings or 0):
            return planned
        problem = (
            f"{target.name} would hand over {crossings} tensors, and {options.max_crossings} "
            "are allowed."
        )
        if options.fallback == "error":
            raise RefusedError(f"{problem} Raise max_crossings, or choose another backend.")
        self._warn(notes, f"{problem} All of it runs on {FALLBACK}.")
        return make_plan(graph, [reference_target()])

    def plan(self, graph: Graph, target: Target) -> Planned:
        """Plan a graph on a target; the fallback takes the nodes that it refuses, if allowed."""
        from fusewire.planning.candidates import allowed
        from fusewire.planning.planner import make_plan

        fallback = reference_target()
        may_fall_back = self.options.fallback != "error"
        return make_plan(graph, allowed(target, fallback, may_fall_back), fallback)

    # Levels 1 and 3: race the candidates, before the first answer or behind it.

    def with_store(self, store: Store) -> Session:
        """Return the same session with records in another store."""
        return self if store is self.records.store else replace(self, store=store)

    def first_plan(self, reading: Reading, graph: Graph, inputs: Sequence[HostValue]) -> FirstPlan:
        """Make the entry that is quickest to start, which serves until engines are compared."""
        from fusewire.background.search import FirstPlan
        from fusewire.choosing.decide import Decision
        from fusewire.planning.candidates import Candidate
        from fusewire.runtime.function import YOUR_FUNCTION

        engines = _EngineRunners(self)
        baseline = self._baseline(reading, engines)
        may_serve = baseline is not None and baseline.may_serve and self.options.device is None
        if baseline is not None and baseline.runner is not None and may_serve:
            target = reference_target()
            candidate = Candidate(target, self.plan(graph, target))
            decision = Decision(candidate, (), ())
            entry = self._function_entry(reading, graph, decision, baseline.runner, engines)
            return FirstPlan(entry, candidate, YOUR_FUNCTION, is_function=True)
        options = self.options
        # Warnings would be about a plan that is not kept.
        silent: Fallback = "allow" if options.fallback == "warn" else options.fallback
        session = replace(self, options=replace(options, fallback=silent))
        candidate = session._first_candidate(graph, inputs)
        entry = session._ready_entry(reading, candidate, None, ())
        return FirstPlan(entry, candidate, candidate.name)

    def _first_candidate(self, graph: Graph, inputs: Sequence[HostValue]) -> Candidate:
        """Return the reference where it has little to do, else the preferred engine."""
        from fusewire.numerics.bound import bindings_of
        from fusewire.numerics.scale import work_of
        from fusewire.planning.candidates import Candidate

        options = self.options
        is_free = options.backend == "auto" and options.device is None
        may_interpret = is_free and options.fallback != "error"
        if may_interpret and work_of(graph, bindings_of(graph, inputs)) <= _LITTLE_WORK:
            target = reference_target()
            return Candidate(target, self.plan(graph, target))
        notes: list[str] = []
        target = self._preferred_target(graph, notes)
        return Candidate(target, self._plan_within_limits(graph, target, notes))

    def host_inputs(
        self, reading: Reading, graph: Graph, arguments: tuple[Any, ...]
    ) -> list[HostValue]:
        """Return the arguments as the graph takes them; CheckError if it does not allow them."""
        from fusewire.planning.guards import check_inputs

        leaves = reading.arguments.flatten(arguments)
        inputs = [to_host(plain(*pair)) for pair in zip(graph.inputs, leaves, strict=True)]
        check_inputs(graph, inputs)
        return inputs

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

        engines = _EngineRunners(self)
        baseline, fields = self._baseline(reading, engines), self._decision_fields(reading)
        targets = partial(self._fitting_targets, graph)
        try:
            decision = self.choose(
                graph,
                inputs,
                targets,
                fields=fields,
                baseline=baseline,
                file=reading.file,
                start=start,
                backends=self._expected_backends,
            )
        except NoneRightError as error:
            return self.fallback_entry(reading, graph, inputs, error)
        self.options.report("ready", 1.0)
        return self._settled_entry(reading, graph, key, decision, baseline, engines)

    def recalled_entry(
        self, reading: Reading, graph: Graph, key: Key | None, inputs: Sequence[HostValue]
    ) -> Entry | None:
        """Make the entry of what was decided for such inputs; None if nothing was."""
        from fusewire.choosing.decide import recall_decision

        engines = _EngineRunners(self)
        baseline, fields = self._baseline(reading, engines), self._decision_fields(reading)
        question = self._question(graph, inputs, fields, baseline=baseline, file=reading.file)
        decision = recall_decision(question, self.records, self.finder)
        if decision is None:
            return None
        self.options.report("ready", 1.0)
        return self._settled_entry(reading, graph, key, decision, baseline, engines)

    def _settled_entry(
        self,
        reading: Reading,
        graph: Graph,
        key: Key | None,
        decision: Decision,
        baseline: Baseline | None,
        engines: _EngineRunners,
    ) -> Entry:
        """Make the entry of a decision: of the function, or of a candidate."""
        if decision.is_function and baseline is not None and baseline.runner is not None:
            return self._function_entry(reading, graph, decision, baseline.runner, engines)
        built = engines.made.get(decision.candidate)
        return self._decided_entry(reading, decision, key, built)

    def _decided_entry(
        self,
        reading: Reading,
        decision: Decision,
        key: Key | None,
        built: tuple[PlanBuilder, Runner] | None,
    ) -> Entry:
        """Make the entry of the chosen candidate."""
        notes = list(decision.notes)
        if decision.is_last_resort:
            self._warn(
                notes, f"No engine here is right beyond doubt: all of it runs on {FALLBACK}."
            )
        # A saved plan is used for any inputs: one that is in doubt is decided again.
        key = key if decision.is_settled else None
        return self._ready_entry(
            reading, decision.candidate, key, notes, decision.tried, decision.cut_at, built
        )

    # What runs behind a program that answers already: the function takes no part in the race.

    def decide(
        self, graph: Graph, inputs: Sequence[HostValue], file: ModelFile | None = None
    ) -> Decision:
        """Race the engines that fit a rewritten graph, and record the decision."""
        from fusewire.choosing.decide import decide

        fields = decision_fields(self.options, self.level)
        question = self._question(graph, inputs, fields, file=file)
        return decide(question, self.records, self.finder)

    def recalled_decision(
        self, graph: Graph, inputs: Sequence[HostValue], file: ModelFile | None
    ) -> Decision | None:
        """Recall how the engines raced on such inputs; None if they did not."""
        from fusewire.choosing.decide import recall_decision

        fields = decision_fields(self.options, self.level)
        question = self._question(graph, inputs, fields, file=file)
        return recall_decision(question, self.records, self.finder)

    def engine_entry(self, reading: Reading, decision: Decision) -> Entry:
        """Make the entry of the engine that won, without saving its plan."""
        return self._decided_entry(reading, decision, None, None)

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

        question = self._question(graph, inputs, self._decision_fields(reading))
        record_decision(question, decision, self.records, self.finder)
        candidate = decision.candidate
        if key is not None and decision.is_settled and self._may_save(candidate):
            warnings = candidate.planned.warnings() if self.options.fallback == "warn" else []
            self._save(key, reading, candidate, decision.tried, decision.cut_at, warnings)

    def _decision_fields(self, reading: Reading) -> dict[str, object] | None:
        """Name what a decision depends on besides the graph: also the code of a function."""
        fields = decision_fields(self.options, self.level)
        if fields is not None and reading.file is not None:
            # Files that differ may have the same graph.
            fields["file"] = reading.file.digest
        if fields is None or reading.function is None:
            return fields
        from fusewire.records.function_code import function_digest

        return {**fields, "function": function_digest(reading.function.function)}

    def _baseline(self, reading: Reading, engines: _EngineRunners) -> Baseline | None:
        """Return the user's own function, for a graph that was traced from one."""
        from fusewire.choosing.baseline import Baseline
        from fusewire.errors import EngineGarbage
        from fusewire.registry import REGISTRY
        from fusewire.runtime.function import FunctionRunner

        if reading.function is None:
            return None
        if self.options.isolate == "always":
            problem = "isolate='always' runs every call in a child, where a function cannot go."
            return Baseline(None, engines.runner, problem)
        may_serve = self.options.backend == "auto" and REGISTRY.default == "auto"
        try:
            runner = FunctionRunner(reading)
        except EngineGarbage as error:
            return Baseline(None, engines.runner, f"{error}.")
        return Baseline(runner, engines.runner, may_serve=may_serve)

    def _function_entry(
        self,
        reading: Reading,
        graph: Graph,
        decision: Decision,
        runner: FunctionRunner,
        engines: _EngineRunners,
    ) -> Entry:
        """Make the entry of the user's own function, which no engine beat."""
        from fusewire.choosing.explain import Explanation, FunctionExplanation
        from fusewire.runtime.function import FUNCTION

        candidate = decision.candidate
        builder = engines.builder(candidate)
        engines.close()
        rejected = Explanation(candidate.planned, builder, decision.notes, decision.tried)
        return Entry(
            graph.inputs,
            runner,
            reading.arguments,
            reading.results,
            FUNCTION,
            len(graph.nodes),
            FunctionExplanation(rejected),
        )

    def _fitting_targets(self, graph: Graph) -> Iterator[Target]:
        """Yield the targets to choose from, the most preferred first."""
        from fusewire.planning.policy import choose, fitting

        options, finder = self.options, replace(self.finder, is_ahead=True)
        policy = finder.registry.default if options.backend == "auto" else options.backend
        if callable(policy):
            return iter([choose(policy, options.device, graph, finder)])
        return fitting(policy, options.device, graph, finder)

    def _expected_backends(self) -> Sequence[str]:
        """List the backends that "auto" chooses from."""
        options, registry = self.options, self.finder.registry
        if options.backend != "auto" or registry.default != "auto" or options.device is not None:
            return ()
        return registry.ranked(isolate=options.has_children, limits=options.limits)

    def choose(
        self,
        graph: Graph,
        inputs: Sequence[Any],
        targets: Callable[[], Iterator[Target]],
        *,
        fields: Mapping[str, object] | None = None,
        records: Records | None = None,
        is_thorough: bool = False,
        baseline: Baseline | None = None,
        file: ModelFile | None = None,
        start: float | None = None,
        backends: Callable[[], Sequence[str]] = tuple,
    ) -> Decision:
        """Race the candidates of a graph on these targets, or recall an earlier decision."""
        from fusewire.choosing.decide import decide

        question = replace(
            self._question(graph, inputs, fields, baseline=baseline, file=file),
            targets=targets,
            is_thorough=is_thorough,
            start=start,
            backends=backends,
        )
        return decide(question, self.records if records is None else records, self.finder)

    def _question(
        self,
        graph: Graph,
        inputs: Sequence[Any],
        fields: Mapping[str, object] | None,
        *,
        baseline: Baseline | None = None,
        file: ModelFile | None = None,
    ) -> Question:
        from fusewire.choosing.decide import Question

        options = self.options
        return Question(
            graph,
            inputs,
            partial(self._fitting_targets, graph),
            reference_target(),
            options.config,
            fields,
            may_fall_back=options.fallback != "error",
            # What is recorded is wanted whatever budget it had.
            budget=0.0 if options.level == "recall" else options.budget_seconds,
            seed=options.seed,
            progress=options.report,
            max_crossings=options.max_crossings,
            tunes=options.level == 3,
            baseline=baseline,
            file=file,
            backends=self._expected_backends,
            watch=self.watch,
        )

    def fallback_entry(
        self, reading: Reading, graph: Graph, inputs: Sequence[Any], error: Any
    ) -> Entry:
        """Run everything on the fallback, which was not in the race: no engine is right."""
        from fusewire.contract.region import build
        from fusewire.planning.candidates import Candidate
        from fusewire.planning.planner import make_plan
        from fusewire.process.guard import guarded_run
        from fusewire.runtime.recovery import LimitedExecutable

        if any(x.backend == FALLBACK for x in error.tried):
            raise error
        fallback = reference_target()
        built = build(fallback.backend, graph, fallback.device)
        run = LimitedExecutable(built, self.options.run_limits).run
        # Raises if the values are at fault, and not the engines: the next call compares again.
        guarded_run(FALLBACK, run, inputs, True)
        if self.options.fallback == "error":
            raise error
        notes: list[str] = []
        self._warn(notes, f"{error} All of it runs on {FALLBACK}.")
        candidate = Candidate(fallback, make_plan(graph, [fallback]))
        return self._ready_entry(reading, candidate, None, notes, tuple(error.tried))

    def _warn(self, notes: list[str], sentence: str) -> None:
        notes.append(sentence)
        if self.options.fallback == "warn":
            warn_outside(sentence)

    # Make an entry of the candidate, and save its plan.

    def _ready_entry(
        self,
        reading: Reading,
        candidate: Candidate,
        key: Key | None,
        notes: Sequence[str],
        tried: tuple[Tried, ...] = (),
        cut_at: float | None = None,
        built: tuple[PlanBuilder, Runner] | None = None,
    ) -> Entry:
        """Make the entry of a candidate, and save its plan under the key."""
        from fusewire.choosing.explain import Explanation

        options, plan = self.options, candidate.planned.plan
        warnings = candidate.planned.warnings() if options.fallback == "warn" else []
        for sentence in warnings:
            warn_outside(sentence)
        key = key if self._may_save(candidate) else None
        if key is not None:
            self._save(key, reading, candidate, tried, cut_at, warnings)
        builder, runner = built or self._built(candidate, key)
        if options.canary and candidate.target.name != FALLBACK:
            runner = self._watched(runner, reading, candidate)
        return Entry(
            plan.graph.inputs,
            runner,
            reading.arguments,
            reading.results,
            candidate.target.name,
            len(plan.graph.nodes),
            Explanation(candidate.planned, builder, tuple(notes), tried),
        )

    def _built(self, candidate: Candidate, key: Key | None) -> tuple[PlanBuilder, Runner]:
        """Make the runner of a candidate; its bodies are planned under the key."""
        builder = self._builder(
            BuildTarget.of(candidate.target, candidate.config(self.options.config)),
            BuildTarget.of(reference_target(), Config()),
            _BodyPlanner(self, candidate.target, key).plan,
        )
        return builder, PlanRunner(candidate.planned.plan, builder)

    def _builder(
        self, first: BuildTarget, fallback: BuildTarget, plan_body: Callable[[Graph], Plan]
    ) -> PlanBuilder:
        """Make the builder of the regions of a plan, new or recalled."""
        options = self.options
        return PlanBuilder(
            first,
            fallback,
            options.fallback,
            options.deadline,
            self.records,
            plan_body,
            options.run_limits,
            services=self.services,
        )

    def _may_save(self, candidate: Candidate) -> bool:
        """Tell whether the plan may be saved: backends of other packages may change unnoticed."""
        from fusewire.registry import REGISTRY

        names = (candidate.target.name, FALLBACK)
        is_ours = all(REGISTRY.backends.describe(x).distribution == "fusewire" for x in names)
        return is_ours and not self.options.canary

    def _save(
        self,
        key: Key,
        reading: Reading,
        candidate: Candidate,
        tried: Sequence[Tried],
        cut_at: float | None,
        warnings: Sequence[str],
    ) -> None:
        """Save the plan of a model for a warm start of another process."""
        plan, fallback = candidate.planned.plan, reference_target()
        keep_host_graphs(self.records, plan, fallback.backend, fallback.device, Config())
        targets = {
            FALLBACK: _saved_target(fallback, Config()),
            candidate.target.name: _saved_target(
                candidate.target, candidate.config(self.options.config)
            ),
        }
        saved = SavedPlan(
            plan,
            tuple((value.name or "", value.type) for value in plan.graph.inputs),
            reading.results.names,
            reading.results.tree is Structure.LEAF,
            len(plan.graph.nodes),
            targets,
            candidate.choice(),
            [asdict(row) for row in tried],
            cut_at,
            tuple(warnings),
        )
        self.records.keep_saved_plan(key, saved)

    def _plan_key(self, digest: str | None, example: Sequence[Any], is_open: bool) -> Key | None:
        """Return the key of a file's plan; None without a file, or if nothing is recorded."""
        from fusewire.registry import REGISTRY

        if digest is None or self.records.store is None or REGISTRY.extensions.names():
            return None
        return file_key(digest, example, is_open, self.options)

    def _watched(self, runner: Runner, reading: Reading, candidate: Candidate) -> Runner:
        from fusewire.choosing.canary import Watched

        graph, every = candidate.planned.plan.graph, self.options.canary
        remake = partial(self._without_wrong_engine, reading, candidate)
        limits = self.options.run_limits
        return Watched(runner, graph, every, candidate.name, remake, limits)

    def _without_wrong_engine(
        self, reading: Reading, candidate: Candidate, inputs: Sequence[Any], verdict: Verdict
    ) -> Runner:
        """Make a runner without the engine that the canary found wrong."""
        from fusewire.choosing.findings import Findings
        from fusewire.errors import RefusedError
        from fusewire.planning.candidates import Candidate
        from fusewire.planning.planner import make_plan
        from fusewire.records.quarantine import Fact

        graph, options = self.rewrite(reading.graph), self.options
        findings = Findings(graph, inputs, self.records, options.config, options.deadline)
        findings.quarantine(candidate, Fact("wrong", verdict.reason))
        if self.level:
            return self.chosen_entry(reading, graph, None, inputs).runner
        if options.fallback == "error":
            raise RefusedError(
                f"{candidate.target.name} gave a wrong answer, and fallback is not allowed: "
                f"{verdict.reason}"
            )
        fallback = reference_target()
        rest = Candidate(fallback, make_plan(graph, [fallback]))
        return self._ready_entry(reading, rest, None, ()).runner

    # A warm start: make the entry of a saved plan.

    def _recalled_entry(
        self, model: ModelSource, example: tuple[Any, ...], *, is_open: bool
    ) -> Entry | None:
        """Make the entry of a saved plan; None if there is none, or it no longer fits."""
        # An open model is read at a call, which may be long after compiling.
        digest = self._file_digest(model, is_fresh=is_open and bool(example))
        if digest is None:
            return None
        key = file_key(digest, example, is_open, self.options)
        planner = partial(_Replanner, self, model, example, is_open, digest)
        recalled = recall(self.records, key, self.options, planner)
        if recalled is None:
            return None
        saved = recalled.saved
        builder = self._recalled_builder(recalled)
        builder.read_ahead(recalled.artifact_keys)
        for sentence in saved.warnings:
            warn_outside(sentence)
        names = tuple(name for name, _ in saved.inputs)
        leaves = (Structure.LEAF,) * len(saved.outputs)
        return Entry(
            tuple(Value(type_, name) for name, type_ in saved.inputs),
            PlanRunner(saved.plan, builder),
            Structure((Structure.LEAF,) * len(names), names),
            Structure(Structure.LEAF if saved.is_alone else leaves, saved.outputs),
            saved.choice.backend,
            saved.nodes,
            _RecalledDetails(recalled, builder),
        )

    def _recalled_builder(self, recalled: Recalled) -> PlanBuilder:
        saved, options = recalled.saved, self.options
        configs = {FALLBACK: Config(), saved.choice.backend: saved.choice.config(options.config)}
        targets = {
            name: BuildTarget(
                name,
                partial(self.load_target, saved.targets[name]),
                config,
                known_fields=saved.targets[name].fields,
                reference=saved.targets[name].reference,
            )
            for name, config in configs.items()
        }
        return self._builder(targets[saved.choice.backend], targets[FALLBACK], recalled.plan_body)

    def load_target(self, saved: SavedTarget) -> Target:
        """Load a target of saved plans once; the store has authenticated the name of its class."""
        from fusewire.planning.target import Target

        place = saved.reference, saved.device.id
        if place not in self._loaded_targets:
            module, _, name = saved.reference.partition(":")
            backend: Backend = getattr(import_module(module), name)()
            is_isolated = self.options.has_children and not backend.info.trusted
            reference = saved.reference if is_isolated else None
            target = Target(backend, saved.device, reference, self.options.limits)
            self._loaded_targets[place] = target
        return self._loaded_targets[place]

    @cached_property
    def _loaded_targets(self) -> dict[tuple[str, str], Target]:
        return {}

    def _file_digest(self, model: ModelSource, *, is_fresh: bool = False) -> str | None:
        """Return the digest of a model file; None if nothing is recorded for this source."""
        store = self.records.store
        if not model.is_file or store is None:
            return None
        if is_fresh or model.digest is None:
            model.digest = file_digest(model.source, store)
        return model.digest

    def _sizes_key(self, model: ModelSource) -> Key | None:
        digest = self._file_digest(model)
        return None if digest is None else file_key(digest, (), True, self.options)

    def _is_known_to_need_sizes(self, model: ModelSource) -> bool:
        """Tell whether an earlier process needed the sizes of a call to read the model."""
        key = self._sizes_key(model)
        return key is not None and self.records.get(key) is not None

    def _record_need_for_sizes(self, model: ModelSource) -> None:
        if (key := self._sizes_key(model)) is not None:
            self.records.put(key, b"{}")


@dataclass(frozen=True, eq=False)
class _EntryMaker:
    """Makes the entries of one program, and learns from calls which sizes vary."""

    session: Session
    model: ModelSource
    is_open: bool = False

    @cached_property
    def _seen(self) -> SeenSizes:
        from fusewire.sizes import SeenSizes

        return SeenSizes()

    def make(self, arguments: tuple[Any, ...]) -> Entry:
        """Make the entry for arguments that fit no other entry."""
        if self.model.is_file or not self.model.needs_example:
            entry = self.session.entry(self.model, arguments, is_open=self.is_open)
            is_misfit = bool(arguments) and misfit(entry, arguments, casts=True) is not None
            return (self.make_apart(arguments) if is_misfit else None) or entry
        learned = self._with_open_sizes(arguments)
        if learned is not None:
            return learned
        entry = self.session.entry(self.model, arguments)
        # Sizes at which it raised are nothing to learn from.
        self._seen.note(arguments)
        return entry

    def make_apart(self, arguments: tuple[Any, ...]) -> Entry | None:
        """Make the entry for arguments that misfit names of sizes in a file; None if they fit."""
        return self.session.entry_apart(self.model, arguments)

    def _with_open_sizes(self, arguments: tuple[Any, ...]) -> Entry | None:
        """Make an entry for sizes like these, from the second shape of a function on."""
        opening = self._seen.opening(arguments)
        if opening is None:
            return None
        from fusewire.sizes import read_opened

        session = self.session
        opened = read_opened(self.model, opening, arguments, session.rewrite, session.interpret)
        if opened is None:
            self._seen.refuse(arguments)
            return None
        return session.open_entry(opened, opening, arguments)


@dataclass(frozen=True, eq=False)
class _EngineRunners:
    """The runners of candidates in this process, each made once."""

    session: Session
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
            self.made[candidate] = self.session._built(candidate, None)
        return self.made[candidate]

    def close(self) -> None:
        """Close the runners."""
        for _, runner in self.made.values():
            runner.close()


@dataclass(frozen=True, eq=False)
class _LevelZeroDetails:
    """The plan of level 0, for a program that is asked for its plan before the first call."""

    session: Session
    reading: Reading
    graph: Graph

    @cached_property
    def _details(self) -> Details:
        return self.session._planned_entry(self.reading, self.graph, None).details

    @property
    def plan(self) -> Plan:
        return self._details.plan

    def why(self) -> Why:
        return self._details.why()


@dataclass(frozen=True, eq=False)
class _BodyPlanner:
    """Plans bodies of control flow once their sizes are known, and records the plans."""

    session: Session
    target: Target
    key: Key | None

    def plan(self, body: Graph) -> Plan:
        """Plan a body, and record its plan if there is a key."""
        plan = self.session.plan(body, self.target).plan
        if self.key is not None:
            records, fallback = self.session.records, reference_target()
            keep_host_graphs(records, plan, fallback.backend, fallback.device, Config())
            records.keep_plan(body_key(self.key, body), plan)
        return plan


@dataclass(frozen=True, eq=False)
class _Replanner:
    """Plans a recalled model again, if a call or a user needs what its record lacks."""

    session: Session
    model: ModelSource
    example: tuple[Any, ...]
    is_open: bool
    digest: str
    key: Key

    def planned(self, saved: SavedPlan) -> Planned:
        """Plan the model on the target, and in the form, that was chosen."""
        from fusewire.planning.candidates import plan_choice

        session, reading = self.session, self._read()
        graph = session.rewrite(reading.graph)
        target = session.load_target(saved.targets[saved.choice.backend])
        may_fall_back = session.options.fallback != "error"
        fallback = reference_target()
        return plan_choice(saved.choice, graph, target, fallback, may_fall_back, reading.file)

    def plan_body(self, saved: SavedPlan, body: Graph) -> Plan:
        """Plan a body of control flow, and record its plan."""
        target = self.session.load_target(saved.targets[saved.choice.backend])
        return _BodyPlanner(self.session, target, self.key).plan(body)

    def _read(self) -> Reading:
        model = self.model
        reading = model.read(self.example, is_open=self.is_open, digest=self.digest)
        model.release()
        if reading.digest != self.digest:
            # Its plan and artifacts would be recorded, and used, under the digest of the old file.
            raise FormatError(
                f"{model.source} has changed since it was compiled, and this needs the graph of "
                "the old file. Compile it again."
            )
        return reading


@dataclass(frozen=True, eq=False)
class _RecalledDetails:
    """The recalled plan; ``why`` makes it again, to collect what backends say about nodes."""

    recalled: Recalled
    builder: PlanBuilder

    @property
    def plan(self) -> Plan:
        return self.recalled.saved.plan

    def why(self) -> Why:
        from fusewire.choosing.decide import read_tried
        from fusewire.choosing.explain import Explanation

        tried = tuple(map(read_tried, self.recalled.saved.tried))
        return Explanation(self.recalled.planned, self.builder, (), tried).why()


def _file_of(
    model: ModelSource, reading: Reading, example: tuple[Any, ...], is_open: bool
) -> FileSource | None:
    """Say how another process reads the same graph from the file; None if it cannot."""
    from fusewire.background.job import FileSource

    is_plain = all(isinstance(x, np.ndarray | np.generic) for x in example)
    if not model.is_file or reading.digest is None or not is_plain:
        return None
    path = Path(os.fsdecode(model.source)).absolute()
    return FileSource(str(path), reading.digest, bool(example), is_open)


def _saved_target(target: Target, config: Config) -> SavedTarget:
    from fusewire.registry import REGISTRY

    reference = REGISTRY.backends.describe(target.name).reference
    return SavedTarget.of(target.backend, reference, target.device, config)
