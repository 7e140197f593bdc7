"""A search settles on the plan that won, unless the one that serves is as fast here."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.background.search import BackgroundSearch, FirstPlan, Proposal
from fusewire.choosing.decide import Decision
from fusewire.compiler import Session
from fusewire.errors import MiscompileWarning, NoneRightError, RefusedError
from fusewire.ir.graph import Graph
from fusewire.model_source import ModelSource
from fusewire.options import Options
from fusewire.planning.candidates import Candidate
from fusewire.runtime.entry import Entry
from fusewire.runtime.program import Program
from fusewire.runtime.serving import ServingRunner
from fusewire.runtime.why import Tried
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
        candidate = Candidate(target, self.session.decider.entries.plan(graph, target))
        return candidate, self.session.decider.entries.ready_entry(
            reading, candidate, None, (), rows
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

    given: Proposal | Exception
    kept: list[Decision] = field(default_factory=list)
    options: Options = field(default_factory=Options)

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
        raise AssertionError("an engine is right")

    def keep(self, inputs: object, decision: Decision) -> None:
        self.kept.append(decision)


def served(first: FirstPlan, choices: GivenChoices) -> tuple[Program, ServingRunner]:
    """Make a program of a plan that serves first."""
    serving = ServingRunner(first.entry.runner, BackgroundSearch("waves", choices, first), [X])
    entry = replace(first.entry, runner=serving, serving=serving)
    parameters = ModelSource(first.entry.graph).parameters([entry])
    return Program("waves", lambda arguments: entry, [entry], parameters=parameters), serving


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


def test_first_plan_that_nobody_judged_gives_way_without_a_duel() -> None:
    plans = Plans()
    rows = (
        Tried("reference", "reference", "cpu", "native", "right", is_chosen=True),
        Tried("onnxruntime", "onnxruntime", "cpu", "native", "not judged"),
    )
    program, serving = served(
        first := plans.first("onnxruntime"), choices := GivenChoices(plans.proposal("reference"))
    )
    choices.given = plans.proposal("reference", *rows)
    BackgroundSearch("waves", choices, first).run(serving, [X])
    assert program.why().backend == "reference"


@pytest.mark.parametrize("error", [RefusedError("It was built yesterday."), UserWarning("Beware.")])
def test_plan_that_cannot_be_built_leaves_the_first_one(error: Exception) -> None:
    plans = Plans()
    program, serving = served(first := plans.first("reference"), choices := GivenChoices(error))
    BackgroundSearch("waves", choices, first).run(serving, [X])
    assert program.state == "settled"
    assert program.why().notes[0] == f"It stays on reference: {error}"
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)


def test_first_plan_that_stays_says_what_time_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.background.search.beats", lambda *given: False)
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


def test_same_plan_keeps_its_runner_and_shows_what_was_tried() -> None:
    plans = Plans()
    row = Tried("reference", "reference", "cpu", "native", "right", is_chosen=True)
    first = plans.first("reference")
    program, _ = served(first, GivenChoices(plans.proposal("reference", row)))
    assert program.wait(60)
    assert program.entry((X,)).runner is first.entry.runner
    assert program.why().tried == (row,)


@dataclass
class Swapping:
    """Settles on other plans while calls run."""

    def begin(self, serving: ServingRunner, inputs: Sequence[Any]) -> None:
        pass

    def cancel(self) -> None:
        pass


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
