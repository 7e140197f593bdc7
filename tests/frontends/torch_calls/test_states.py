"""A program of a module in every state, as tests/program has those of other sources.

test_changes.py has every kind of change, closing beside an export, copies and training.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusewire as fw
from fusewire.errors import GraphError
from tests.comparers import comparer, comparers, has_ended
from tests.program.states import PATIENCE, Source, X, engines, eventually, held_turn

WORDS = {
    "new": "serving-first",
    "reading": "serving-first",
    "waiting": "comparing",
    "engine": "settled",
    "source": "settled",
    "changed": "serving-first",
}
STATES = tuple(WORDS)
# Seconds for which a module is read, unless the test ends before; and where others wait today.
READING, SHORT = 60.0, 3.0


class Gated(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Is read for as long as a file is there, and makes another when that begins."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gate = str(gate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            Path(self.gate + ".begun").touch()
            while Path(self.gate).exists():
                time.sleep(0.005)
        return torch.tanh(self.linear(x))


class Branches(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return torch.tanh(y) if y.sum() > -1e9 else y


@dataclass(eq=False)
class Case:
    """A program in a state."""

    program: Any
    module: Any
    state: str
    gate: Path
    x: torch.Tensor

    def call(self, x: torch.Tensor | None = None) -> None:
        """Call it, and check the answer."""
        x = self.x if x is None else x
        found = self.program(x)
        assert torch.allclose(found, self.module(x), rtol=1e-4, atol=1e-5)

    @contextmanager
    def read_soon(self) -> Iterator[None]:
        """Have the module be read in a moment: a test that fails today takes no longer."""
        timer = threading.Timer(SHORT, self.gate.unlink, kwargs={"missing_ok": True})
        timer.start()
        yield
        timer.cancel()

    def change(self) -> None:
        """Give the module other weights, in place."""
        with torch.no_grad():
            self.module.linear.weight.neg_()
            self.module.linear.bias.add_(1.0)


@contextmanager
def in_state(state: str, folder: Path) -> Iterator[Case]:
    """Bring a program into a state; it is closed at the end, if it is there still."""
    gate = folder / "gate"
    # Who waits for what is read would wait for ever.
    timer = threading.Timer(READING, gate.unlink, kwargs={"missing_ok": True})
    module = (Branches() if state == "source" else Gated(gate)).eval()
    named = {"backend": "reference"} if state in ("engine", "changed") else {}
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(held_turn())
        stack.callback(gate.unlink, missing_ok=True)
        stack.callback(timer.cancel)
        if state == "reading":
            gate.touch()
        options: dict[str, Any] = {"registry": engines(), "isolate": "never", **named}
        case = Case(fw.compile(module, **options), module, state, gate, torch.randn(2, 4))
        if state != "new":
            case.call()
        if state == "reading":
            assert eventually(Path(f"{gate}.begun").exists)
            timer.start()
        elif state == "waiting":
            comparer()
        elif state == "source":
            assert case.program.wait(PATIENCE)
        elif state == "changed":
            case.change()
            case.call()
        try:
            yield case
        finally:
            if case.program is not None:
                case.program.close()


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no comparison of others on this machine, and compare at their priority."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("fusewire.background.process.PRIORITY", "normal")


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    """A program in the state that the test is parametrized with."""
    with in_state(request.param, tmp_path) as case:
        yield case


# A module is read under the lock that keeps forks away, and a search begins under it, too.
starved = pytest.mark.xfail(strict=True, reason="others wait until a module is read")
in_every_state = pytest.mark.parametrize("case", STATES, indirect=True)


@in_every_state
def test_state_wait_and_answers_agree(case: Case) -> None:
    assert case.program.state == WORDS[case.state]
    assert case.program.wait(0) == (WORDS[case.state] == "settled")
    for _ in range(3):
        case.call()
    result = case.program.run(case.x)
    assert torch.allclose(result.outputs, case.module(case.x), rtol=1e-4, atol=1e-5)
    is_engine = case.state in ("engine", "changed")
    assert result.metadata["backend"] == ("reference" if is_engine else "function")


@in_every_state
def test_weights_that_change_are_those_of_the_next_call(case: Case) -> None:
    # The second change comes when engines have had time for the first one.
    for _ in range(2):
        case.change()
        for _ in range(4):
            case.call()
    case.gate.unlink(missing_ok=True)

    def is_over() -> bool:
        # A module that has changed is quiet once it was called for a while.
        case.call()
        return bool(case.program.wait(0.01)) or case.program.state == "comparing"

    assert eventually(is_over)
    for _ in range(2):
        case.call()


@in_every_state
def test_other_calls_are_answered_meanwhile(case: Case) -> None:
    for x in (torch.randn(3, 4), torch.randn(1, 2, 4), case.x):
        case.call(x)
    if case.state == "reading":
        # Nobody waited for what is read.
        assert case.gate.exists()
        assert case.program.state == "serving-first"


@in_every_state
def test_closing_takes_a_moment_and_ends_all(case: Case) -> None:
    running = comparers()
    case.program.close()
    assert case.gate.exists() == (case.state == "reading")
    with pytest.raises(GraphError, match="is closed"):
        case.program(case.x)
    case.program.close()
    assert all(map(has_ended, running))


@in_every_state
def test_program_that_is_dropped_is_gone_without_the_collector(case: Case) -> None:
    running, program = comparers(), weakref.ref(case.program)
    gc.collect()
    gc.disable()
    try:
        case.program = None
        case.gate.unlink(missing_ok=True)
        # What is read is read to the end.
        assert eventually(lambda: program() is None)
    finally:
        gc.enable()
    assert all(map(has_ended, running))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            state,
            marks=pytest.mark.xfail(strict=True, reason="a fork waits until a module is read"),
        )
        if state == "reading"
        else state
        for state in STATES
    ],
    indirect=True,
)
def test_fork_takes_a_moment_and_the_child_answers(case: Case) -> None:
    running = comparers()
    with case.read_soon():
        child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        try:
            case.call()
            os._exit(0)
        finally:
            os._exit(1)
    assert case.gate.exists() == (case.state == "reading")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    case.call()
    assert running == comparers()


@starved
@pytest.mark.parametrize("case", ["reading"], indirect=True)
def test_other_programs_are_compared_while_a_module_is_read(case: Case, tmp_path: Path) -> None:
    other = Source("function", tmp_path).compiled(X, registry=engines())
    other(X)
    try:
        with case.read_soon():
            assert eventually(lambda: comparers() or not case.gate.exists())
        assert case.gate.exists()
    finally:
        other.close()


@starved
@pytest.mark.parametrize("case", ["reading"], indirect=True)
def test_other_modules_are_read_while_a_module_is_read(case: Case, tmp_path: Path) -> None:
    gate = tmp_path / "other"
    other = fw.compile(Gated(gate).eval(), registry=engines(), isolate="never")
    other(case.x)
    try:
        with case.read_soon():
            assert eventually(lambda: Path(f"{gate}.begun").exists() or not case.gate.exists())
        assert case.gate.exists()
    finally:
        other.close()
