"""Decide how a graph runs: recall an earlier decision, or race the candidates and record it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fusewire.choosing.accuracy import AccuracyJudge, most_judged
from fusewire.choosing.baseline import Baseline, is_usable
from fusewire.choosing.budget import Coverage, DecisionBudget, left_until
from fusewire.choosing.calibrate import Calibrating
from fusewire.choosing.duel import SHORTEST, with_times
from fusewire.choosing.findings import Findings
from fusewire.choosing.judge import Judge
from fusewire.choosing.quiet import CallWatch
from fusewire.choosing.race import (
    LEAST_SECONDS,
    TRYING_MORE,
    Progress,
    Race,
    RaceResult,
    worth,
)
from fusewire.choosing.searching import SearchSetup, improved
from fusewire.contract.backend import Config, Fact
from fusewire.contract.model_file import ModelFile
from fusewire.contract.timing import take_times
from fusewire.errors import (
    NoneRightError,
    NotRecalledError,
    RefusedError,
    RegistryError,
    StoreError,
    note,
)
from fusewire.ir.graph import Graph, HostValue
from fusewire.ops.limits import Meter, returned_bytes
from fusewire.options import EXACT, FALLBACK, Accuracy
from fusewire.plan.plan import FUNCTION
from fusewire.planning.candidates import (
    Candidate,
    Unfit,
    candidates,
    plan_choice,
    split_candidate,
)
from fusewire.planning.planner import Planned, make_plan
from fusewire.planning.policy import TargetFinder
from fusewire.planning.target import Target
from fusewire.process.codec import write_value
from fusewire.process.frames import Blobs
from fusewire.records.entries import Records
from fusewire.records.keys import accuracy_name, decision_key
from fusewire.records.plans import Choice
from fusewire.show.ranks import ORDER, is_below, open_sentence
from fusewire.show.why import Tried
from fusewire.store.key import Key
from fusewire.trials.trial import TrialRunner

# Runs of the reference that measure how far right answers may differ. Tolerances are set for eight:
# on ppocr-rec the float32 reference itself errs by 0.34 of the tolerance, with four runs by 1.17.
_RUNS = 8
# The share of the budget after which no further input set is judged.
_JUDGING = 0.8
# Right answers for other input sets are computed ahead as far as they fit into this share.
_AHEAD = 0.2
# The share of the budget for racing whole candidates, if their kernels are tuned afterwards.
_WHOLE = 0.5
# A candidate that is doubtful on so many different inputs is not judged on more of them.
_DOUBTS = 3
# The most candidates besides the winner that meet what serves, if they may be as fast.
_MOST_RIVALS = 2


@dataclass(frozen=True)
class Decision:
    """The chosen candidate, all that were tried, and the noise of the race.

    The noise of a recalled decision is unknown. ``cut_at`` is the budget in seconds that ended the
    race early, or None. ``is_settled`` unless a candidate was doubtful on these inputs: on others
    the candidates race again, a few times. ``is_function``: the user's own function serves, and the
    candidate is the best of the others.
    """

    candidate: Candidate
    tried: tuple[Tried, ...]
    notes: tuple[str, ...]
    noise: float | None = None
    cut_at: float | None = None
    is_settled: bool = True
    is_function: bool = False
    # What the budget left out; None if it left out nothing, and if the notes were recalled.
    coverage: Coverage | None = None
    is_recalled: bool = False
    # Right candidates that the race does not tell from the chosen one, the fastest first.
    rivals: tuple[Candidate, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether its own table shows the chosen candidate beaten: the next process decides again.

        It is used meanwhile.
        """
        return bool(open_sentence([asdict(row) for row in self.tried]))

    @property
    def is_last_resort(self) -> bool:
        """Whether the reference was chosen because no engine gives an answer that is right."""
        others = {row.status for row in self.tried if row.backend not in (FALLBACK, FUNCTION)}
        is_bad = not others & ORDER.keys() and bool(others & {"doubtful", "wrong"})
        return self.candidate.engines[0].name == FALLBACK and is_bad


@dataclass(frozen=True)
class Question:
    """What to decide, and the budget for it.

    ``targets`` lists the targets to choose from, and is called only if nothing is recalled.
    ``fields`` name what the decision depends on besides the graph; None if it is not to be
    recorded. Plans that hand over more tensors than ``max_crossings`` are left out, and so are
    those that spend more than ``max_fallback_share`` of their time outside of the targets.
    ``is_thorough`` tries every candidate, ``tries_more`` has more of the budget for that, and
    ``tunes`` also tunes kernels. ``baseline`` is the user's own function, if the graph was traced
    from one, and ``file`` the model file that it was read from, for engines that read it by
    themselves. ``start`` is when the budget began, now if it is None. ``backends`` lists the
    backends that ``targets`` may come from, if that is known, and ``left_out`` those that it leaves
    out, with the reason. ``others`` lists the targets for what those refuse. ``watch`` tells when
    calls of the program disturb the timing. Candidates that compute in less than the model's own
    dtypes take part unless the ``accuracy`` is exact; ``calibrating`` has samples of the user's
    that they are judged on, and that int8 with fixed scales is made of. With ``keeps_nan``, those
    that may lose a NaN take no part. ``absent`` names samples
    that are not at hand: then a decision is only recalled.
    """

    graph: Graph
    inputs: Sequence[HostValue]
    targets: Callable[[], Iterator[Target]]
    fallback: Target
    config: Config
    fields: Mapping[str, object] | None
    may_fall_back: bool = True
    budget: float = 20.0
    seed: int = 0
    progress: Progress = lambda what, share: None
    is_thorough: bool = False
    max_crossings: int | None = None
    max_fallback_share: float | None = None
    tries_more: bool = False
    tunes: bool = False
    baseline: Baseline | None = None
    file: ModelFile | None = None
    start: float | None = None
    backends: Callable[[], Sequence[str]] = tuple
    left_out: Callable[[], Mapping[str, str]] = dict
    watch: CallWatch | None = None
    others: Callable[[], Sequence[Target]] = tuple
    accuracy: Accuracy = EXACT
    keeps_nan: bool = False
    calibrating: Calibrating | None = None
    absent: str = ""

    def candidates(self) -> Iterator[Candidate | Unfit]:
        """Yield the candidates of the graph, and targets that cannot run it."""
        fitting = candidates(
            self.graph,
            self.targets(),
            self.fallback,
            self.config,
            may_fall_back=self.may_fall_back,
            file=self.file,
            others=self.others(),
            may_reduce=not isinstance(self.accuracy, str),
            calibrated=self._calibrated,
        )
        few = _few_crossings(self._keeping(fitting), self.max_crossings)
        # A backend that is named takes part as it can.
        return _slow_if_whole(few) if self.backends() else few

    def _keeping(self, fitting: Iterable[Candidate | Unfit]) -> Iterator[Candidate | Unfit]:
        """Leave out what may lose NaN, if that is not allowed."""
        for one in fitting:
            if isinstance(one, Unfit) or not (self.keeps_nan and one.may_lose_nan(self.config)):
                yield one

    def _calibrated(self, candidate: Candidate) -> Iterable[Mapping[str, Fact]]:
        return () if self.calibrating is None else self.calibrating.options(candidate)

    @property
    def judged_by(self) -> str | None:
        """What less precision is judged by, and on what; None if it cannot be named."""
        name = accuracy_name(self.accuracy)
        if name is None or self.calibrating is None:
            return name
        return f"{name} on {self.calibrating.calibration.digest}"

    def joined(self, target: Target, others: Sequence[Target]) -> Candidate | None:
        """Plan the graph on a target, with others for what it refuses; None if none would help."""
        if not others:
            return None
        graph, may_fall_back = self.graph, self.may_fall_back
        candidate = split_candidate(
            graph, target, others, self.fallback, may_fall_back=may_fall_back
        )
        if isinstance(candidate, Unfit) or candidate.engines[1:] == ():
            return None
        crossings = candidate.planned.plan.crossings()
        is_over = self.max_crossings is not None and crossings > self.max_crossings
        if is_over or target not in candidate.engines:
            return None
        # Those that got nothing are not part of it.
        return replace(candidate, others=candidate.engines[1:])

    def planned(self, choice: Choice, targets: Sequence[Target]) -> Planned | None:
        """Plan the graph according to an earlier choice; None if that no longer fits."""
        graph, fallback, may_fall_back = self.graph, self.fallback, self.may_fall_back
        try:
            return plan_choice(choice, graph, targets, fallback, may_fall_back, self.file)
        except RefusedError:
            return None


def recall_decision(question: Question, records: Records, finder: TargetFinder) -> Decision | None:
    """Recall the decision for such a graph and such inputs; None if there is none."""
    if question.fields is None:
        return None
    findings = _findings(question, records, finder)
    return _recall(question, _key(question, findings), records, finder, findings)


def _findings(question: Question, records: Records, finder: TargetFinder) -> Findings:
    graph, inputs, config = question.graph, question.inputs, question.config
    return Findings(graph, inputs, records, config, finder.limits.seconds, question.judged_by)


def _key(question: Question, findings: Findings) -> Key:
    assert question.fields is not None, "the decision is recorded"
    return decision_key(findings.exact, question.inputs, question.fields)


def decide(question: Question, records: Records, finder: TargetFinder) -> Decision:
    """Recall the decision for such a graph and such inputs, or race the candidates."""
    findings = _findings(question, records, finder)
    if question.fields is None:
        return _decision(question, _race(question, findings, finder))
    key = _key(question, findings)
    recalled = _recall(question, key, records, finder, findings)
    if recalled is not None and not recalled.is_open:
        return recalled
    with records.alone(key):
        # Another process may have decided it while this one waited.
        recalled = _recall(question, key, records, finder, findings)
        if recalled is not None and not recalled.is_open:
            return recalled
        if recalled is not None:
            findings.measure_again()
        doubts = _doubts(records.get(key))
        result = _race(question, findings, finder)
        engines = [row for row in result.tried if row.backend != FUNCTION]
        is_doubtful = any(row.status == "doubtful" for row in engines)
        doubts = [*doubts, _digest(question.inputs)] if is_doubtful else []
        decision = _decision(question, result, is_settled=_is_settled(doubts))
        data = {**_to_data(result), "cut_at": decision.cut_at, "doubts": doubts}
        records.put(key, json.dumps(data).encode())
        return decision


def record_decision(
    question: Question, decision: Decision, records: Records, finder: TargetFinder
) -> None:
    """Record a decision that was settled behind a program, unless a candidate is in doubt."""
    if question.fields is None or not decision.is_settled:
        return
    result = RaceResult(
        decision.tried,
        decision.candidate,
        notes=decision.notes,
        is_function=decision.is_function,
        rivals=decision.rivals,
    )
    data = {**_to_data(result), "cut_at": decision.cut_at, "doubts": []}
    key = _key(question, _findings(question, records, finder))
    records.put(key, json.dumps(data).encode())


def _decision(question: Question, result: RaceResult, is_settled: bool = True) -> Decision:
    cut_at = question.budget if result.is_cut else None
    return Decision(
        result.chosen,
        result.tried,
        result.notes,
        result.noise,
        cut_at,
        is_settled,
        result.is_function,
        result.coverage,
        rivals=result.rivals,
    )


def _is_settled(doubts: Sequence[str]) -> bool:
    return not doubts or len(doubts) >= _DOUBTS


def _doubts(payload: bytes | None) -> list[str]:
    """Read the digests of inputs on which a candidate was doubtful."""
    try:
        return [] if payload is None else list(map(str, json.loads(payload)["doubts"]))
    except (ValueError, KeyError, TypeError):
        return []


def _digest(inputs: Sequence[HostValue]) -> str:
    blobs: Blobs = []
    digest = hashlib.sha256(json.dumps([write_value(x, blobs) for x in inputs]).encode())
    for blob in blobs:
        digest.update(blob.tobytes())
    return digest.hexdigest()


def _race(question: Question, findings: Findings, finder: TargetFinder) -> RaceResult:
    """Race the candidates, and the best of them against the user's own function."""
    inputs, limits = question.inputs, finder.limits.run_limits
    if question.absent:
        raise NotRecalledError(
            f"Nothing is recorded for {question.graph.name} with calibrate={question.absent}. Give "
            "the samples themselves."
        )
    Meter(limits).need(returned_bytes(question.graph), where=" for what it returns")
    take_times()
    start = time.monotonic() if question.start is None else question.start
    budget = DecisionBudget(question.budget, start)
    judge = Judge(
        question.graph,
        inputs,
        seed=question.seed,
        runs=_RUNS,
        # The given inputs are judged in any case, other sets as far as time allows.
        deadline=budget.end(_JUDGING),
        end=budget.oracle_ends,
        ahead=_AHEAD,
        limits=limits,
    )
    try:
        return _judged_race(question, findings, finder, judge, budget)
    finally:
        # Its thread would go on for nobody.
        judge.stop()


def _judged_race(
    question: Question,
    findings: Findings,
    finder: TargetFinder,
    judge: Judge,
    budget: DecisionBudget,
) -> RaceResult:
    baseline = question.baseline
    if baseline is None:
        return _race_engines(question, findings, finder, judge, budget)
    first = baseline.attempt(question.inputs)
    try:
        result = _race_engines(question, findings, finder, judge, budget, first.outputs is None)
    except NoneRightError as error:
        return _only_function(question, baseline, baseline.judged(first, judge), error)
    row = baseline.judged(first, judge)
    return _against_function(question, baseline, row, result, budget)


def _only_function(
    question: Question, baseline: Baseline, row: Tried, error: NoneRightError
) -> RaceResult:
    """Choose the function, since no engine gives a right answer."""
    if not (is_usable(row) and baseline.may_serve and question.may_fall_back):
        raise NoneRightError(str(error), [*error.tried, row])
    fallback = question.fallback
    chosen = Candidate(fallback, make_plan(question.graph, [fallback], fallback))
    rows = (replace(row, is_chosen=True), *error.tried)
    notes = (f"{error} {baseline.title.capitalize()} runs.",)
    return RaceResult(rows, chosen, notes=notes, is_function=True)


def _against_function(
    question: Question, baseline: Baseline, row: Tried, result: RaceResult, budget: DecisionBudget
) -> RaceResult:
    """Have the function meet the winner, and those that the race allows to be best."""
    question.progress(f"timing {baseline.title}", 1.0)
    rivals, title = (result.chosen, *result.rivals), baseline.title
    left = max(left_until(budget.oracle_ends), SHORTEST)
    comparison, best = baseline.meet(row, rivals, question.inputs, left)
    tried = with_times([row, *result.tried], comparison, best)
    chosen = next((x for x in rivals if x.name == best), result.chosen)
    return replace(result, tried=tried, chosen=chosen, is_function=best == title)


def _runner(question: Question, finder: TargetFinder) -> TrialRunner:
    is_limited = question.max_fallback_share is not None
    return TrialRunner.of(question.config, finder, measures_outside=is_limited)


def _announce(question: Question) -> None:
    note(
        f"Comparing engines for {question.graph.name}, for about {question.budget:.0f} s; "
        "fw.compile(..., level=0) takes the first engine instead."
    )


def _race_engines(
    question: Question,
    findings: Findings,
    finder: TargetFinder,
    judge: Judge,
    budget: DecisionBudget,
    has_reference: bool = False,
) -> RaceResult:
    """Race the candidates in children, and have each search improve on the result."""
    _announce(question)
    runner = _runner(question, finder)
    race = _new_race(question, runner, judge, findings, budget, has_reference)
    setup = _setup(question, runner, findings, budget)
    try:
        result = improved(setup, race, race.run(question.candidates()))
        for name in (result.chosen.name, result.opened):
            if name in result.trials:
                findings.keep_artifact(result.trials[name])
        return _with_left_out(question, replace(result, rivals=tuple(_rivals(result))))
    finally:
        runner.close()


def _new_race(
    question: Question,
    runner: TrialRunner,
    judge: Judge,
    findings: Findings,
    budget: DecisionBudget,
    has_reference: bool,
) -> Race:
    racing = budget.seconds * (_WHOLE if question.tunes else 1.0)
    return Race(
        question.inputs,
        runner,
        judge,
        findings,
        racing,
        question.progress,
        is_thorough=question.is_thorough,
        least=min(LEAST_SECONDS, racing),
        start=budget.start,
        has_reference=has_reference,
        expected=question.backends,
        watch=question.watch,
        join=question.joined,
        accuracy=_accuracy_judge(question, judge),
        memory_limit=question.config.memory_limit,
        max_fallback_share=question.max_fallback_share,
        trying=TRYING_MORE if question.tries_more else None,
    )


def _accuracy_judge(question: Question, judge: Judge) -> AccuracyJudge:
    calibrating = question.calibrating
    samples = () if calibrating is None else calibrating.judged(most_judged(question.accuracy))
    return AccuracyJudge(judge, question.accuracy, question.seed, samples)


def _rivals(result: RaceResult) -> Iterator[Candidate]:
    """Yield the right candidates whose intervals touch that of the chosen one, fastest first."""
    rows = {row.name: row for row in result.tried if row.name in result.trials}
    best = rows.pop(result.chosen.name, None)
    if best is None or best.low is None or best.high is None:
        return
    for row in [*rows.values()]:
        is_right = ORDER.get(row.status) == 0 and not row.is_barred and row.low is not None
        if not is_right or is_below((best.low, best.high), (row.low, row.high)):
            del rows[row.name]
    for row in sorted(rows.values(), key=worth)[:_MOST_RIVALS]:
        yield result.trials[row.name].candidate


def _with_left_out(question: Question, result: RaceResult) -> RaceResult:
    """Add rows for the backends that were left out."""
    rows = [
        Tried(name, name, "", "native", "left out", reason)
        for name, reason in question.left_out().items()
    ]
    return replace(result, tried=(*result.tried, *rows))


def _setup(
    question: Question, runner: TrialRunner, findings: Findings, budget: DecisionBudget
) -> SearchSetup:
    return SearchSetup(
        question.graph,
        question.inputs,
        runner,
        findings.records,
        question.config,
        budget,
        question.accuracy,
        question.tunes,
        question.is_thorough,
        question.seed,
        question.progress,
    )


def _few_crossings(
    fitting: Iterable[Candidate | Unfit], most: int | None
) -> Iterator[Candidate | Unfit]:
    """Leave out candidates with too many crossings; report a target by its plain candidate."""
    for candidate in fitting:
        crossings = candidate.planned.plan.crossings() if isinstance(candidate, Candidate) else 0
        if most is None or crossings <= most:
            yield candidate
        elif candidate.name == (unfit := Unfit(candidate.target, "")).name:
            reason = f"{unfit.name} would hand over {crossings} tensors, and {most} are allowed."
            yield replace(unfit, reason=reason)


def _slow_if_whole(fitting: Iterable[Candidate | Unfit]) -> Iterator[Candidate | Unfit]:
    """Leave out slow compilers where they take a graph in parts: each part takes as long."""
    for candidate in fitting:
        info = candidate.target.backend.info
        if isinstance(candidate, Unfit) or not info.is_slow or candidate.planned.plan.is_whole:
            yield candidate
            continue
        refused = next(iter(candidate.planned.fallback_nodes().values()), "")
        reason = (
            f"{info.name} compiles each part of a graph for about {info.compile_seconds:.0f} s, so "
            f"that it is compared only where it takes all of it. {refused}"
        )
        yield Unfit(candidate.target, reason.rstrip())


def _to_data(result: RaceResult) -> dict[str, Any]:
    return {
        "choice": result.chosen.choice().to_data(),
        "tried": [asdict(row) for row in result.tried],
        "notes": list(result.notes),
        "is_function": result.is_function,
        "rivals": [candidate.choice().to_data() for candidate in result.rivals],
    }


@dataclass(frozen=True)
class _Recorded:
    """A decision as it is recorded."""

    choice: Choice
    tried: tuple[Tried, ...]
    notes: tuple[str, ...]
    is_function: bool
    cut_at: float | None
    doubts: list[str]
    rivals: tuple[Choice, ...]

    @staticmethod
    def read(payload: bytes) -> _Recorded | None:
        """Read a record; None if it is not one."""
        try:
            row = json.loads(payload)
            return _Recorded(
                Choice.from_data(row["choice"]),
                tuple(read_tried(x) for x in row["tried"]),
                tuple(map(str, row["notes"])),
                bool(row["is_function"]),
                None if row["cut_at"] is None else float(row["cut_at"]),
                _doubts(payload),
                tuple(map(Choice.from_data, row["rivals"])),
            )
        except StoreError as error:
            note(f"A recorded decision is not used. {error} Engines are compared again.")
        except (ValueError, KeyError, TypeError):
            pass
        return None

    def serves(self, question: Question) -> bool:
        """Tell whether it holds for these inputs, and had as much time as there is now."""
        if not _is_settled(self.doubts) and _digest(question.inputs) not in self.doubts:
            return False
        return self.cut_at is None or question.budget <= self.cut_at


def _recall(
    question: Question, key: Key, records: Records, finder: TargetFinder, findings: Findings
) -> Decision | None:
    payload = records.get(key)
    if payload is None:
        return None
    recorded = _Recorded.read(payload)
    if recorded is None:
        records.drop(key)
        return None
    if not recorded.serves(question):
        return None
    candidate = _recalled(recorded.choice, question, finder, findings)
    if candidate is None:
        if targets_of(recorded.choice, finder) is not None:
            records.drop(key)
        return None
    rivals = [_recalled(choice, question, finder, findings) for choice in recorded.rivals]
    return Decision(
        candidate,
        recorded.tried,
        recorded.notes,
        cut_at=recorded.cut_at,
        is_settled=_is_settled(recorded.doubts),
        is_function=recorded.is_function and question.baseline is not None,
        is_recalled=True,
        rivals=tuple(rival for rival in rivals if rival is not None),
    )


def _recalled(
    choice: Choice, question: Question, finder: TargetFinder, findings: Findings
) -> Candidate | None:
    """Make the candidate of a recorded choice; None if it no longer fits, or is at fault."""
    targets = targets_of(choice, finder)
    planned = None if targets is None else question.planned(choice, targets)
    if targets is None or planned is None:
        return None
    first, *others = targets
    own = choice.form, choice.options, tuple(others), choice.is_reduced, choice.threads
    candidate = Candidate(first, planned, *own)
    is_at_fault = findings.reconsider(candidate) or findings.fault(candidate) is not None
    return None if is_at_fault else candidate


def targets_of(choice: Choice, finder: TargetFinder) -> list[Target] | None:
    """Find the targets of a choice, in order; None if one is no longer there."""
    found: list[Target] = []
    for place in choice.places:
        try:
            found += [x for x in finder.targets(place.backend) if x.device.id == place.device]
        except RegistryError:
            return None
    return found if len(found) == len(choice.places) else None


def read_tried(row: Any) -> Tried:
    """Read a row from a record: it is shown to people, and decides nothing."""
    tried = Tried(**row)
    engines = tuple(tried.engines)
    measured = tuple(tried.deviations)
    return replace(
        tried, judged_on=tuple(tried.judged_on), engines=engines, cache="hit", deviations=measured
    )
