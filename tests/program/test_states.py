"""What a program does in every state: the table of states, sources and actions.

States are rows, sources and actions columns. Calls from inside are in test_own_calls.py, Ctrl-C and
warnings in test_interrupted.py, swaps in test_swaps.py, and what is written to in test_alarms.py
and test_halfway.py. Not repeated here is what tests elsewhere pin:

- two comparers of a machine, and one that is killed or hangs: tests/background
- the function's turns, threads beside a swap, a build for a program that was closed, late searches
  that give way or raise, plans that keep their runner: tests/background/test_settling.py
- a call whose child dies, a compiler that fails: tests/plan/test_isolated.py, test_recovery.py
- sizes that warm or are fitted while the process ends: tests/plan/test_fitting.py
- states while engines are compared, and interrupted calls of them: tests/program/test_state.py
- signed and unsigned bundles: tests/bundling; faults, records of strangers: tests/records
- records of earlier versions with placing or turns: tests/records/test_superseded.py and
  test_choice.py; such bundles: test_bundle_with_a_split_of_an_earlier_version_is_compared_again;
  threads of a stranger: test_threads_of_a_stranger_are_no_more_than_asked_for, in tests/bundling
- modules: tests/frontends/torch_calls/test_states.py; children that die: test_children.py
- forks and ends of a process: test_processes.py, test_fork.py, tests/process/test_exit.py
- Dynamo, Ray, methods and captured calls: their own rooms

What today's programs cannot be brought to by public calls is no row: a decision that its own table
shows beaten (tests/choosing/test_doubtful.py and test_duel.py have it), and a search that found no
engine right (tests/background/test_settling.py).
"""

from __future__ import annotations

import gc
import pickle
import signal
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import BundleWarning, GraphError
from fusewire.store.disk import Store
from tests.comparers import comparer, comparers, has_ended
from tests.flaky import compiled, registered
from tests.program.calls import FORMS
from tests.program.states import (
    PATIENCE,
    STATES,
    WORDS,
    Case,
    Source,
    X,
    engines,
    in_state,
)

# A file differs from a graph in how it is read and recalled, and a function in what serves first.
CELLS = [(state, "graph") for state in STATES]
CELLS += [(state, "function") for state in STATES if not state.startswith("late")]
CELLS += [(state, "file") for state in ("undecided", "waiting", "recalled")]
# An engine that compiles is the same to a call as a turn that has not come.
# And a function settles in test_swaps.py.
CALLED = [x for x in CELLS if x[0] != "comparing" and x != ("settled", "function")]
SETTLED = [cell for cell in CELLS if WORDS[cell[0]] == "settled"]
COMPARING = [cell for cell in CELLS if WORDS[cell[0]] == "comparing"]
LATE_SAVE = pytest.mark.xfail(
    raises=GraphError, reason="a late search keeps a settled program from being saved"
)
SAVED: list[Any] = [
    pytest.param(cell, marks=LATE_SAVE) if cell[0].startswith("late") else cell for cell in SETTLED
]
pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Iterator[Case]:
    """A program in the state, and of the source, that the test is parametrized with."""
    state, kind = request.param
    with in_state(state, Source(kind, tmp_path)) as case:
        yield case


def of(cells: Sequence[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cells, indirect=True, ids=" ".join)


@of(CELLS)
def test_state_and_wait_agree(case: Case) -> None:
    assert case.program.state == WORDS[case.state]
    is_settled = WORDS[case.state] == "settled"
    assert case.program.wait(0) == is_settled
    case.call()
    assert (case.program.state == "settled") == is_settled


@of(CALLED)
def test_what_is_said_is_of_one_plan(case: Case) -> None:
    program = case.program
    result = program.run(X)
    case.check(result.outputs)
    why, plan = program.why(), program.plan
    assert result.metadata["backend"] == why.backend
    assert f"on {why.backend}," in repr(program)
    assert result.metadata["nodes"] == len(plan.graph.nodes) == len(program.graph.nodes)
    assert {part.backend for part in why.regions} == {why.backend}
    # Making a page of it changes nothing.
    assert str(program)
    assert program.run(X).metadata == result.metadata


@of(CALLED)
def test_profile_notes_a_call_and_nothing_later(case: Case) -> None:
    case.call()
    state = case.program.state
    with fw.profile() as profile:
        case.call()
    case.call()
    assert [event.kind for event in profile.events].count("call") == 1
    assert case.program.state == state


@of(CALLED)
def test_every_form_of_a_call_is_answered_twice(case: Case) -> None:
    for form in FORMS:
        for _ in range(2):
            case.check(form(case.program))
    case.call()
    assert not any("device" in note for note in case.program.why().notes)


@of([cell for cell in CELLS if cell[0] in ("undecided", "waiting", "recalled")])
def test_pickles_name_the_source_whatever_the_state(case: Case) -> None:
    if case.source.kind == "file":
        data = pickle.dumps(case.program)
        assert str(case.source.value).encode() in data
    else:
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            pickle.dumps(case.program)
    assert case.program.state == WORDS[case.state]


@of(CELLS)
def test_closing_takes_a_moment_and_ends_all(case: Case) -> None:
    running = comparers()
    start = time.monotonic()
    case.program.close()
    assert time.monotonic() - start < 1.0
    for _ in range(2):
        with pytest.raises(GraphError, match="is closed"):
            case.program(X)
        with pytest.raises(GraphError, match="is closed"):
            case.program.run(X)
        case.program.close()
    assert all(map(has_ended, running))


@of(COMPARING)
def test_interrupt_while_it_waits_leaves_it_as_it_was(case: Case) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    case.call()
    before = signal.signal(signal.SIGALRM, interrupt)
    # Its turn does not come: only the signal ends this.
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            case.program.wait(PATIENCE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    case.call()
    assert case.program.state == "comparing"


@of(SAVED)
def test_what_is_settled_is_saved(case: Case, tmp_path: Path) -> None:
    case.call()
    case.program.save(tmp_path / "saved.fw", weights=True)
    with pytest.warns(BundleWarning):
        opened = fw.open(tmp_path / "saved.fw")
    case.check(opened(X))


@of(CELLS)
def test_program_that_is_dropped_is_gone_without_the_collector(case: Case) -> None:
    case.call()
    running, program = comparers(), weakref.ref(case.program)
    gc.collect()
    gc.disable()
    try:
        case.program = None
        assert program() is None
    finally:
        gc.enable()
    assert all(map(has_ended, running))


def test_late_comparison_gives_way_to_a_first_one(tmp_path: Path) -> None:
    with in_state("late comparing", Source("graph", tmp_path)) as case:
        (late,) = comparers()
        other = Source("graph", tmp_path).compiled(X, registry=engines())
        other(X)
        assert has_ended(late, PATIENCE)
        assert comparer() != late
        assert other.state == "comparing"
        assert case.program.state == "settled"
        case.call()
        other.close()


def test_executables_end_with_their_program_without_the_collector() -> None:
    with registered("plain") as trouble:
        program = compiled(lambda x: np.tanh(x) * 2, X, level=0)
        np.testing.assert_allclose(program(X), np.tanh(X) * 2, rtol=1e-5)
        assert trouble.opened
        gc.collect()
        gc.disable()
        try:
            del program
            assert trouble.opened == 0
        finally:
            gc.enable()
