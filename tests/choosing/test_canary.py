"""The canary: one call in so many is checked, and a wrong answer has consequences."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.canary import Canary
from fusewire.errors import MiscompileWarning
from fusewire.numerics.judge import Verdict
from fusewire.ops.interpret import Interpreter
from fusewire.records.quarantine import quarantined
from fusewire.store.disk import Store
from fusewire.store.key import Key

X = np.linspace(-1, 2, 24, dtype=np.float32).reshape(4, 6)
GRAPH = fw.trace(lambda x: np.tanh(x).sum(1), X)
RIGHT = Interpreter(GRAPH)([X])
ARTIFACT = Key.of("artifact", region="ab", backend="engine", its_engine="1.0")


def canary(every: int = 1, **fields: Any) -> tuple[Canary, list[Verdict]]:
    told: list[Verdict] = []
    return Canary(GRAPH, every, "engine", told.append, **fields), told


def test_right_answers_are_left_in_peace() -> None:
    watcher, told = canary()
    for _ in range(3):
        verdict = watcher.watch([X], RIGHT)
        assert verdict is not None
        assert verdict.status == "right"
    assert not told


def test_wrong_answer_warns_is_remembered_and_asks_for_another_plan(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    watcher, told = canary(keeper=store, artifacts=(ARTIFACT,))
    with pytest.warns(MiscompileWarning, match=r"engine gave a wrong answer in call 1 of .*output"):
        watcher.watch([X], [RIGHT[0] + np.float32(1e-3)])
    assert [verdict.status for verdict in told] == ["wrong"]
    fact = quarantined(store, ARTIFACT)
    assert fact is not None
    assert fact.code == "wrong"


def test_one_call_in_so_many_is_checked() -> None:
    watcher, _ = canary(every=4)
    checked = [watcher.watch([X], RIGHT) is not None for _ in range(12)]
    assert checked == [False, False, False, True] * 3
    assert canary(every=0)[0].watch([X], RIGHT) is None


def test_calls_of_several_threads_are_counted_together() -> None:
    watcher, _ = canary(every=10)
    checked: list[Verdict] = []

    def call() -> None:
        for _ in range(15):
            if (verdict := watcher.watch([X], RIGHT)) is not None:
                checked.append(verdict)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(checked) == 6


def test_inputs_that_the_reference_refuses_blame_nobody() -> None:
    rows = np.array([0, 9])
    graph = fw.trace(lambda x, rows: x[rows], X, rows % 4)
    watcher = Canary(graph, 1, "engine", lambda verdict: pytest.fail("nobody is to blame"))
    verdict = watcher.watch([X, rows], [X[rows % 4]])
    assert verdict is not None
    assert verdict.status == "cannot say"
