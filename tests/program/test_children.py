"""Engines that stay in a child: it dies in every state of a program, and beside a swap.

A child that dies in the midst of a call, or hangs, is in tests/plan/test_isolated.py and
tests/process/test_service.py.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.system.processes import descendants
from tests.comparers import has_ended
from tests.program import states
from tests.program.states import PATIENCE, Source, X, engines, in_state

pytestmark = pytest.mark.usefixtures("store")
# In the others, the same runs as in one of these.
STATES = ("serving", "waiting", "settled", "late comparing", "recalled")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines stay in a child."""
    monkeypatch.setattr(states, "ISOLATE", "always")


def children() -> list[int]:
    """List the processes that run engines of this one, and not of its comparers."""
    found = []
    for pid in descendants(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"fusewire.process.start" in words and parent == os.getpid():
            found.append(pid)
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert all(has_ended(pid, PATIENCE) for pid in pids)


@pytest.mark.parametrize("state", STATES)
def test_child_that_died_is_replaced_and_the_state_stays(state: str, tmp_path: Path) -> None:
    with in_state(state, Source("graph", tmp_path)) as case:
        case.call()
        word = case.program.state
        found = children()
        assert found
        kill(found)
        for _ in range(2):
            case.call()
        assert case.program.state == word
        assert children()


def test_child_may_die_beside_a_swap(tmp_path: Path) -> None:
    source, registry = Source("function", tmp_path), engines()
    program: Any = source.compiled(X, registry=registry)
    source.decide(registry)
    try:
        program(X)
        is_settled = False
        while not is_settled:
            # It may be the one that is loaded for what is to serve.
            kill(children()[:1])
            np.testing.assert_allclose(program(X), source.expected, rtol=1e-5)
            is_settled = program.wait(0.05)
        for _ in range(2):
            np.testing.assert_allclose(program(X), source.expected, rtol=1e-5)
    finally:
        program.close()
