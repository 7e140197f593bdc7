"""A search settles on the plan that won, unless the one that serves is as fast here."""

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.background.first import _LateSearch
from fusewire.background.first_plan import FirstPlan
from fusewire.background.search import BackgroundSearch, Proposal, _Waiting
from fusewire.background.slow import SlowSearch, _Clock
from fusewire.choosing.decide import Decision
from fusewire.compiler import Session
from fusewire.errors import (
    FallbackWarning,
    GraphError,
    MiscompileWarning,
    NoneRightError,
    NoQuietError,
    RefusedError,
    warn_outside,
)
from fusewire.ir.graph import Graph
from fusewire.options import Options
from fusewire.plan.function import FunctionRunner
from fusewire.planning.candidates import Candidate
from fusewire.process.frames import Frame
from fusewire.program.entry import Entry
from fusewire.program.origin import Origin
from fusewire.program.program import Program
from fusewire.program.serving import ServingRunner
from fusewire.registry import Registry
from fusewire.session.candidate_entries import Compared
from fusewire.session.model_source import ModelSource
from fusewire.show.why import Tried
from fusewire.store.disk import Store

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)


def waves(x: Any) -> Any:
    return np.exp(x) @ np.cos(x).T


@dataclass
class Plans:
    """Two plans of one graph: that of the reference, and that of an engine."""

    session: Session = field(default_factory=lambda: Session(Options(level=0, cache=False)))

    @cached_property
    def source(self) -> ModelSource:
        return ModelSource(fw.trace(waves, X))

    def entry(self, backend: str, *rows: Tried) -> tuple[Candidate, Entry]:
        reading = self.source.read()
        graph = self.session.rewrite(reading.graph)
        target = self.session.context.finder.targets(backend)[0]
        candidate = Candidate(target, self.session.decider.entries.plan(graph, [target]))
        return candidate, self.session.decider.entries.ready_entry(
            reading, candidate, None, Compared(tried=rows)
        )

    def proposal(self, backend: str, *rows: Tried) -> Proposal:
        candidate, entry = self.entry(backend, *rows)
        return Proposal(entry, Decision(candidate, rows, ()))

    def first(self, backend: str) -> FirstPlan:
        candidate, entry = self.entry(backend)
        return FirstPlan(entry, candidate, candidate.name)


@dataclass
class GivenChoices:
    """What a comparison decided, given by a test."""

    given: Proposal | Exception | None
    kept: list[Decision] = field(default_factory=list)
    resort: Entry | None = None
    errors: list[NoneRightError] = field(default_factory=list)
    options: Options = field(default_factory=Options)
    later: "GivenChoices | None" = None

    @property
    def registry(self) -> Registry:
        raise AssertionError("nothing is compared here")

    @property
    def store(self) -> Store:
        raise AssertionError("nothing is compared here")

    @property
    def model(self) -> Graph:
        raise AssertionError("nothing is compared here")

    def proposal(self, inputs: object) -> Proposal | None:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    def last_resort(self, inputs: object, error: NoneRightError) -> Entry:
        self.errors.append(error)
        assert self.resort is not None, "an engine is right"
        return self.resort

    def keep(self, inputs: object, decision: Decision) -> None:
        self.kept.append(decision)

    def longer(self) -> "GivenChoices | None":
        return self.later


@dataclass
class Swapping:
    """Searches nothing: the test settles on plans."""

    def begin(self, serving: ServingRunner, inputs: Sequence[Any]) -> None:
        pass

    def cancel(self) -> None:
        pass


def served(first: FirstPlan, choices: GivenChoices | None) -> tuple[Program, ServingRunner]:
    """Make a program of a plan that serves first; without choices, nothing is searched."""
    search = Swapping() if choices is None else BackgroundSearch("waves", choices, first)
    serving = ServingRunner(first.entry.runner, search, [X])
    entry = replace(first.entry, runner=serving, serving=serving)
    parameters = ModelSource(first.entry.graph).parameters([entry])
    return Program("waves", lambda arguments: entry, [entry], parameters=parameters), serving


def outcomes(program: Program) -> dict[str, str]:
    """Return what became of each region, as the report shows it."""
    why = program.why()
    contacts = {contact.region: contact.outcome for contact in why.contacts}
    return {region.name: contacts.get(region.name, "not run") for region in why.regions}


def test_first_plan_that_is_wrong_is_replaced_with_a_warning() -> None:
    plans = Plans()
    rows = (
        Tried("reference", "reference", "cpu", "native", "right", is_chosen=True),
        Tried("onnxruntime", "onnxruntime", "cpu", "native", "wrong", "It is off by one."),
    )
    first = plans.first("onnxruntime")
    choices = GivenChoices(plans.proposal("reference", *rows))
    program, serving = served(first, choices)
    search = BackgroundSearch("waves", choices, first)
    with pytest.warns(MiscompileWarning, match="answered by onnxruntime so far, .* off by one"):
        search.run(serving, [X])
    assert program.state == "settled"
    assert program.why().backend == "reference"
    assert [decision.candidate.name for decision in choices.kept] == ["reference"]
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)


@pytest.mark.parametrize("status", ["not judged", "doubtful", "cannot say", "killed"])
def test_first_plan_that_may_be_right_gives_way_without_a_duel_or_a_warning(status: str) -> None:
    plans = Plans()
    rows = (
        Tried("reference", "reference", "cpu", "native", "right", is_chosen=True),
        Tried("onnxruntime", "onnxruntime", "cpu", "native", status),
    )
    program, serving = served(
        first := plans.first("onnxruntime"), choices := GivenChoices(plans.proposal("reference"))
    )
    choices.given = plans.proposal("reference", *rows)
    BackgroundSearch("waves", choices, first).run(serving, [X])
    assert program.why().backend == "reference"


def test_first_plan_that_was_not_compared_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.choosing.measure.Comparison.is_faster", lambda *given: False)
    plans = Plans()
    row = Tried("reference", "reference", "cpu", "native", "right", is_chosen=True)
    choices = GivenChoices(plans.proposal("reference", row))
    program, serving = served(first := plans.first("onnxruntime"), choices)
    BackgroundSearch("waves", choices, first).run(serving, [X])
    assert program.why().backend == "reference"
    assert [decision.candidate.name for decision in choices.kept] == ["reference"]


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("It was built yesterday."),
        OSError(28, "No space left on device"),
        MemoryError("No room."),
        UserWarning("Beware."),
    ],
)
def test_plan_that_cannot_be_built_leaves_the_first_one(error: Exception) -> None:
    plans = Plans()
    program, serving = served(first := plans.first("reference"), choices := GivenChoices(error))
    BackgroundSearch("waves", choices, first).run(serving, [X])
    assert program.state == "settled"
    assert program.why().notes[0] == f"It stays on reference: {error}"
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)


@pytest.mark.parametrize("wins", [True, False])
def test_slow_compilers_are_compared_behind_a_settled_program(
    wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusewire.choosing.measure.Comparison.is_faster", lambda *given: wins)
    monkeypatch.setattr("fusewire.background.slow.DELAY", 0.2)
    plans = Plans()
    later = GivenChoices(plans.proposal("onnxruntime"))
    choices = GivenChoices(plans.proposal("reference"), later=later)
    program, serving = served(first := plans.first("reference"), choices)
    BackgroundSearch("waves", choices, first).run(serving, [X])
    assert program.state == "settled"
    assert program.why().backend == "reference"
    end = time.monotonic() + 30
    while not later.kept and time.monotonic() < end:
        # Nobody waits for it, and it counts as settled all the time.
        assert program.wait(0)
        np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
        time.sleep(0.01)
    while any(x.serving is not None for x in program.all_entries()) and time.monotonic() < end:
        time.sleep(0.01)
    assert [entry.serving for entry in program.all_entries()] == [None]
    assert program.why().backend == ("onnxruntime" if wins else "reference")
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)


def test_plan_that_an_earlier_search_found_right_gives_way_only_to_what_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fusewire.choosing.measure.Comparison.is_faster", lambda *given: False)
    plans = Plans()
    right = Tried("onnxruntime", "onnxruntime", "cpu", "native", "right", is_chosen=True)
    first = plans.first("onnxruntime")
    search = BackgroundSearch("waves", choices := GivenChoices(None), first)
    program, serving = served(first, None)
    choices.given = plans.proposal("onnxruntime", right)
    search.run(serving, [X])
    assert search._kept is not None
    assert search._kept.is_judged
    # The late search had no time to judge it again.
    rows = (
        Tried("reference", "reference", "cpu", "native", "right", is_chosen=True),
        Tried("onnxruntime", "onnxruntime", "cpu", "native", "not judged"),
    )
    late = GivenChoices(plans.proposal("reference", *rows))
    program, serving = served(search._kept, None)
    BackgroundSearch("waves", late, search._kept, is_late=True).run(serving, [X])
    assert program.why().backend == "onnxruntime"
    # One that turns out to be wrong gives way all the same.
    wrong = (rows[0], replace(rows[1], status="wrong", reason="It is off by one."))
    late = GivenChoices(plans.proposal("reference", *wrong))
    program, serving = served(search._kept, None)
    with pytest.warns(MiscompileWarning):
        BackgroundSearch("waves", late, search._kept, is_late=True).run(serving, [X])
    assert program.why().backend == "reference"


def test_slow_compilers_wait_for_a_while_and_end_with_the_program() -> None:
    plans = Plans()
    later = GivenChoices(plans.proposal("onnxruntime"))
    choices = GivenChoices(plans.proposal("reference"), later=later)
    program, serving = served(first := plans.first("reference"), choices)
    BackgroundSearch("waves", choices, first).run(serving, [X])
    (entry,) = program.all_entries()
    assert isinstance(entry.serving, SlowSearch)
    # Calls run what was settled on, and nothing around it.
    assert entry.runner is first.entry.runner
    program.close()
    entry.serving.begin()
    assert not later.kept


def test_slow_search_that_raises_does_not_stop_those_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fusewire.background.slow.DELAY", 0.0)
    clock, begun, raised = _Clock(), threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.set())

    class Begun:
        def __init__(self, error: Exception | None) -> None:
            self.error = error

        def begin(self) -> None:
            if self.error is not None:
                raise self.error
            begun.set()

    searches: list[Any] = [Begun(RuntimeError("no thread")), Begun(None), Begun(None)]
    for search in searches[:2]:
        clock.put(search)
    assert begun.wait(10)
    begun.clear()
    clock.put(searches[2])
    assert begun.wait(10)
    assert raised.wait(10)


def test_first_searches_come_before_late_ones() -> None:
    plans = Plans()
    first = plans.first("reference")
    quick, late = (
        BackgroundSearch("x", GivenChoices(None), first, is_late=x) for x in (False, True)
    )
    serving = ServingRunner(first.entry.runner, quick, [X])
    waiting = [_Waiting(s.is_late, n, s, serving, [X]) for n, s in enumerate((late, quick))]
    assert min(waiting).search is quick


def test_first_plan_that_stays_says_what_time_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.choosing.measure.Comparison.is_faster", lambda *given: False)
    plans = Plans()
    proposal = plans.proposal("onnxruntime")
    left_out = "1 of 3 candidates were compared; budget_seconds=20 compares all."
    decision = replace(proposal.decision, notes=(left_out,), cut_at=1.0)
    choices = GivenChoices(replace(proposal, decision=decision))
    program, serving = served(first := plans.first("reference"), choices)
    BackgroundSearch("waves", choices, first).run(serving, [X])
    assert program.why().backend == "reference"
    assert left_out in program.why().notes
    assert [decision.notes for decision in choices.kept] == [(left_out,)]


def test_search_that_finds_no_right_engine_raises_in_the_next_call() -> None:
    plans = Plans()
    row = Tried("onnxruntime", "onnxruntime", "cpu", "native", "wrong", "It is off by one.")
    error = NoneRightError("No engine is right.", [row])
    program, serving = served(first := plans.first("onnxruntime"), choices := GivenChoices(error))
    BackgroundSearch("waves", choices, first).run(serving, [X])
    with pytest.raises(NoneRightError, match=r"No engine is right\.") as caught:
        program(X)
    assert [x.status for x in caught.value.tried] == ["wrong"]


def test_reply_with_wrong_rows_only_ends_on_the_last_resort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = Plans()
    row = Tried("onnxruntime", "onnxruntime", "cpu", "native", "wrong", "It is off by one.")
    reply = Frame({"none_right": "No engine is right.", "tried": [asdict(row)]}, [])
    monkeypatch.setattr(BackgroundSearch, "_reply", lambda *given: reply)
    choices = GivenChoices(None, resort=plans.entry("reference")[1])
    program, serving = served(first := plans.first("onnxruntime"), choices)
    BackgroundSearch("waves", choices, first).run(serving, [X])
    assert program.why().backend == "reference"
    assert [[x.reason for x in e.tried] for e in choices.errors] == [["It is off by one."]]
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)


def test_search_logs_what_it_would_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    plans = Plans()
    proposal = plans.proposal("reference")

    class WarningChoices(GivenChoices):
        def proposal(self, inputs: object) -> Proposal | None:
            warn_outside("2 nodes run on reference instead.")
            return super().proposal(inputs)

    program, serving = served(
        first := plans.first("reference"), choices := WarningChoices(proposal)
    )
    with caplog.at_level("WARNING", "fusewire"):
        # Warnings are errors in tests.
        BackgroundSearch("waves", choices, first).run(serving, [X])
    assert "2 nodes run on reference instead." in caplog.messages
    assert not any(note.startswith("It stays") for note in program.why().notes)
    with pytest.warns(FallbackWarning, match="3 nodes"):
        warn_outside("3 nodes run on reference instead.")


@dataclass
class ClosingRunner:
    """Closes its program in its second call, which is one of the duel."""

    runner: Any
    program: Program | None = None
    calls: int = 0
    is_closed: bool = False

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        self.calls += 1
        if self.calls == 2:
            assert self.program is not None
            self.program.close()
        return list(self.runner.call(inputs))

    def close(self) -> None:
        self.is_closed = True


def test_duel_builds_nothing_for_a_program_that_was_closed() -> None:
    plans = Plans()
    row = Tried("onnxruntime", "onnxruntime", "cpu", "native", "right", is_chosen=True)
    proposal = plans.proposal("onnxruntime", row)
    runner = ClosingRunner(proposal.entry.runner)
    choices = GivenChoices(replace(proposal, entry=replace(proposal.entry, runner=runner)))
    first = plans.first("reference")
    search = BackgroundSearch("waves", choices, first)
    serving = ServingRunner(first.entry.runner, search, [X])
    entry = replace(first.entry, runner=serving, serving=serving)
    parameters = plans.source.parameters([entry])
    runner.program = Program("waves", lambda arguments: entry, [entry], parameters=parameters)
    search.run(serving, [X])
    assert runner.calls == 2
    assert runner.is_closed
    assert not choices.kept


def test_function_takes_its_turns_of_the_duel_between_calls() -> None:
    inside: list[int] = []
    overlaps: list[int] = []

    def careless(x: Any) -> Any:
        if inside:
            overlaps.append(1)
        inside.append(1)
        time.sleep(0.002)
        inside.pop()
        return np.exp(x) @ np.cos(x).T

    plans = Plans()
    reading = ModelSource(careless).read((X,))
    function = FunctionRunner(reading)
    candidate, entry = plans.entry("reference")
    first = FirstPlan(replace(entry, runner=function), candidate, "your function", is_function=True)
    row = Tried("onnxruntime", "onnxruntime", "cpu", "native", "right", is_chosen=True)
    choices = GivenChoices(plans.proposal("onnxruntime", row))
    program, serving = served(first, None)
    program(X)
    search = threading.Thread(
        target=BackgroundSearch("waves", choices, first).run, args=(serving, [X])
    )
    search.start()
    while search.is_alive():
        np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
    search.join()
    assert choices.kept
    assert not overlaps


def test_turn_that_calls_leave_no_moment_for_is_given_up() -> None:
    program, serving = served(Plans().first("reference"), None)
    serving._page.start()  # type: ignore[union-attr] # a call that does not end
    with pytest.raises(NoQuietError, match="left no moment"), serving.between_calls(0.0):
        raise AssertionError("a call is running")
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)


def test_turn_may_call_the_program_itself() -> None:
    program, serving = served(Plans().first("reference"), None)
    with serving.between_calls(1.0):
        np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)


def test_call_that_waited_while_the_program_was_closed_is_refused() -> None:
    plans = Plans()
    program, _ = served(plans.first("reference"), None)
    raised: list[Exception] = []

    def call() -> None:
        try:
            program(X)
        except GraphError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    with program._lock:
        thread.start()
        time.sleep(0.1)
        program._closed = True
    thread.join()
    assert "is closed" in str(raised[0])


def test_runner_that_was_closed_keeps_nothing_that_a_late_call_builds() -> None:
    _, entry = Plans().entry("onnxruntime")
    entry.runner.close()
    for _ in range(3):
        np.testing.assert_allclose(entry.runner.call([X])[0], waves(X), rtol=1e-5)
    (runner,) = entry.runner._runners  # type: ignore[attr-defined] # what it holds is asked
    assert not runner._made
    assert not runner._loading


def test_new_signature_runs_on_what_was_settled_after_a_fork() -> None:
    plans = Plans()
    first = plans.first("reference")
    proposal = plans.proposal("onnxruntime")
    program, serving = served(first, None)
    forked = Program("waves", lambda arguments: entry, [], parameters=program._parameters)
    entry = program._initial[0]
    forked.origin = Origin(None, (), Options(), lambda *given: program)
    # This is what a child does with the programs of its parent.
    forked.abandon()
    np.testing.assert_allclose(forked(X), waves(X), rtol=1e-5)
    serving.settle(proposal.entry)
    assert forked._initial == [proposal.entry]
    assert forked._fitting((X,)) is proposal.entry
    forked.close()
    assert program._closed


def test_same_plan_keeps_its_runner_and_shows_what_was_tried() -> None:
    plans = Plans()
    row = Tried("reference", "reference", "cpu", "native", "right", is_chosen=True)
    first = plans.first("reference")
    program, _ = served(first, GivenChoices(plans.proposal("reference", row)))
    program(X)
    assert program.wait(60)
    assert program.entry((X,)).runner is first.entry.runner
    assert program.why().tried == (row,)
    assert outcomes(program) == {"region0": "ready"}
    assert program.why(0).verdicts[0].status == "right"


@pytest.mark.parametrize("is_faster", [True, False])
def test_regions_have_run_after_a_swap(monkeypatch: pytest.MonkeyPatch, is_faster: bool) -> None:
    monkeypatch.setattr("fusewire.choosing.measure.Comparison.is_faster", lambda *given: is_faster)
    plans = Plans()
    program, _ = served(plans.first("reference"), GivenChoices(plans.proposal("onnxruntime")))
    program(X)
    assert program.wait(60)
    assert program.why().backend == ("onnxruntime" if is_faster else "reference")
    assert outcomes(program) == {"region0": "ready"}


def test_function_that_stays_is_ready() -> None:
    program = fw.compile(lambda x: x + 1, level=1, start="measured", budget_seconds=0, cache=False)
    program(X)
    assert set(outcomes(program).values()) == {"ready"}
    assert "not run" not in str(program.why())


def test_answers_are_right_while_plans_are_swapped_under_threads() -> None:
    plans = Plans()
    entries = [plans.entry(name)[1] for name in ("reference", "onnxruntime")]
    serving = ServingRunner(entries[0].runner, Swapping(), [X])
    entry = replace(entries[0], runner=serving, serving=serving)
    parameters = plans.source.parameters([entry])
    program = Program("waves", lambda arguments: entry, [entry], parameters=parameters)
    expected, wrong, is_over = waves(X), [], threading.Event()

    def call() -> None:
        while not is_over.is_set():
            if not np.allclose(program(X), expected, rtol=1e-4):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        swapped = ServingRunner(entries[turn % 2].runner, Swapping(), [X])
        program._swap(serving, replace(entries[turn % 2], runner=swapped, serving=swapped))
        serving = swapped
        program(X)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a thread ends with an error."""
    event = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: event.set())
    return event


def test_search_that_cannot_be_made_is_not_waited_for(raised: threading.Event) -> None:
    first = Plans().first("reference")

    def fail() -> Any:
        raise MemoryError

    serving = ServingRunner(first.entry.runner, _LateSearch(fail), [X])
    assert serving.wait(20)
    assert raised.wait(20)


def test_call_is_answered_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Plans().first("reference")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    search = _LateSearch(lambda: BackgroundSearch("waves", GivenChoices(None), first))
    serving = ServingRunner(first.entry.runner, search, [X])
    np.testing.assert_allclose(serving.call([X])[0], waves(X), rtol=1e-5)
    assert serving.state == "settled"


def test_search_that_raises_leaves_the_next_ones_running(raised: threading.Event) -> None:
    plans = Plans()
    begun, go = threading.Event(), threading.Event()

    class Raising(GivenChoices):
        def proposal(self, inputs: object) -> Proposal | None:
            begun.set()
            assert go.wait(20)
            raise LookupError("a defect")

    first, second = plans.first("reference"), plans.first("reference")
    program, raising = served(first, Raising(None))
    other, waiting = served(second, GivenChoices(RefusedError("It is refused.")))
    raising.call([X])
    assert begun.wait(20)
    waiting.call([X])
    go.set()
    assert raised.wait(20)
    assert waiting.wait(20)
    assert (program.state, other.state) == ("settled", "settled")
