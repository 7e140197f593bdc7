"""Every call into an engine fails once, in turn: the program answers, and returns to the engine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import FusewireError
from tests.flaky import KINDS, TROUBLE, compiled, registered

X = np.linspace(0, 1, 4, dtype=np.float32)


def model(x: Any) -> Any:
    """Two regions of an engine that does not take cos, and one of the fallback between them."""
    return np.exp(np.cos(np.exp(x) + 1)) * 2


def _session(calls: int) -> tuple[list[str], fw.Program]:
    """Compile and call; describe each outcome."""
    program = compiled(model, fw.Spec(("n",), "float32"))
    outcomes = []
    for _ in range(calls):
        try:
            answer = program(X)
        except FusewireError as error:
            outcomes.append(type(error).__name__)
        else:
            outcomes.append("right" if np.allclose(answer, model(X), rtol=1e-5) else "wrong")
    return outcomes, program


def _open_files() -> int:
    opened = Path("/proc/self/fd")
    return len(list(opened.iterdir())) if opened.is_dir() else 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("fusewire.plan.recovery.monotonic", lambda: now[0])
    return now


# Only this engine answers before it is done, and only that one keeps tensors to itself.
CASES = [(kind, phase) for kind in KINDS for phase in ("compile", "load", "run", "close")]
CASES += [("single", "wait"), ("device", "read")]


@pytest.mark.parametrize(("kind", "phase"), CASES)
def test_program_answers_and_returns_to_the_engine(
    clock: list[float], kind: str, phase: str
) -> None:
    with registered(kind) as trouble:
        outcomes, program = _session(3)
        program.close()
        per_session = trouble.counts[phase]
        assert outcomes == ["right"] * 3
    assert per_session
    for count in range(1, per_session + 1):
        with registered(kind) as trouble:
            before = _open_files()
            trouble.fail(phase, count)
            outcomes, program = _session(3)
            trouble.heal()
            assert "wrong" not in outcomes, (count, outcomes)
            # At most the call that met the failure has no answer.
            assert outcomes.count("right") >= 2, (count, outcomes)
            _returns_to_the_engine(program, clock)
            program.close()
            assert (TROUBLE.opened, TROUBLE.live_buffers()) == (0, 0)
            assert _open_files() <= before


def _returns_to_the_engine(program: fw.Program, clock: list[float]) -> None:
    clock[0] += 1e6
    program(X)
    runs = TROUBLE.counts["run"]
    np.testing.assert_allclose(program(X), model(X), rtol=1e-5)
    regions = sum(step.region.backend == "flaky" for step in program.plan.steps)
    assert TROUBLE.counts["run"] == runs + regions


@pytest.mark.parametrize("kind", KINDS)
def test_engine_that_always_fails_leaves_right_answers(kind: str) -> None:
    for phase in ("compile", "load", "run"):
        with registered(kind) as trouble:
            trouble.fail(phase)
            outcomes, program = _session(6)
            assert outcomes == ["right"] * 6
            program.close()
            assert TROUBLE.opened == 0
