"""The canary: one call in so many is checked, and a wrong answer has consequences."""

import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.canary import Canary, Watched
from fusewire.errors import MiscompileWarning
from fusewire.numerics.judge import Verdict
from fusewire.ops.interpret import Interpreter
from fusewire.store.disk import Store
from fusewire.store.key import Key

X = np.linspace(-1, 2, 24, dtype=np.float32).reshape(4, 6)
GRAPH = fw.trace(lambda x: np.tanh(x).sum(1), X)
RIGHT = Interpreter(GRAPH)([X])
ARTIFACT = Key.of("artifact", region="ab", backend="engine", its_engine="1.0")


def canary(every: int = 1, **fields: Any) -> tuple[Canary, list[Verdict]]:
    told: list[Verdict] = []

    def replan(inputs: Sequence[Any], verdict: Verdict) -> bool:
        told.append(verdict)
        return True

    return Canary(GRAPH, every, "engine", replan, **fields), told


def test_right_answers_are_left_in_peace() -> None:
    watcher, told = canary()
    for _ in range(3):
        verdict = watcher.watch([X], RIGHT)
        assert verdict is not None
        assert verdict.status == "right"
    assert not told


def test_wrong_answer_warns_and_asks_for_another_plan() -> None:
    watcher, told = canary()
    with pytest.warns(MiscompileWarning, match=r"engine gave a wrong answer in call 1 of .*output"):
        watcher.watch([X], [RIGHT[0] + np.float32(1e-3)])
    assert [verdict.status for verdict in told] == ["wrong"]


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
    watcher = Canary(graph, 1, "engine", lambda *_: pytest.fail("nobody is to blame"))
    verdict = watcher.watch([X, rows], [X[rows % 4]])
    assert verdict is not None
    assert verdict.status == "cannot say"


def test_watching_from_threads_leaves_the_warnings_of_the_process_alone() -> None:
    program = fw.compile(lambda x: np.tanh(x).sum(1), X, backend="onnxruntime", canary=40)
    program(X)

    def call() -> None:
        for _ in range(400):
            program(X)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        before = [*warnings.filters], warnings.showwarning
        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ([*warnings.filters], warnings.showwarning) == before
        warnings.warn("later", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["later"]


class Engine:
    """A runner whose answers are off by so much, and come to so many callers at once."""

    def __init__(self, off: float, callers: int = 1) -> None:
        self.off = np.float32(off)
        self.callers = threading.Barrier(callers)

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        self.callers.wait()
        return [RIGHT[0] + self.off]

    def close(self) -> None:
        """Nothing is held."""


def test_wrong_engine_is_replaced_once_before_one_alarm_that_points_at_the_caller() -> None:
    remade: list[Verdict] = []

    def remake(inputs: Sequence[Any], verdict: Verdict) -> Engine:
        remade.append(verdict)
        return Engine(0.0)

    watched = Watched(Engine(1.0, callers=8), GRAPH, 1, "engine", remake)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.extend(watched.call([X]))) for _ in range(8)]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(remade) == 1
    assert [warning.category for warning in heard] == [MiscompileWarning]
    assert heard[0].filename == __file__
    assert len(answers) == 8
    for answer in answers:
        np.testing.assert_array_equal(answer, RIGHT[0])


def test_alarm_that_is_an_error_leaves_the_wrong_engine_behind() -> None:
    watched = Watched(Engine(1.0), GRAPH, 1, "engine", lambda inputs, verdict: Engine(0.0))
    with pytest.raises(MiscompileWarning, match="wrong answer"):
        watched.call([X])
    np.testing.assert_array_equal(watched.call([X])[0], RIGHT[0])


@pytest.mark.parametrize("size", [6, "n"])
def test_split_plan_that_is_wrong_is_not_used_by_the_next_program(store: Store, size: Any) -> None:
    def model(x: Any) -> Any:
        return np.exp(np.cos(x + 1))

    spec = fw.Spec((4, size), "float32")
    fw.register("tests.toy:wrong", "split")
    try:
        options: dict[str, Any] = {"backend": "split", "level": 0, "fallback": "allow"}
        watched = fw.compile(model, spec, **options, canary=1)
        with pytest.warns(MiscompileWarning):
            np.testing.assert_allclose(watched(X), model(X), rtol=1e-5)
        after = fw.compile(model, spec, **options)
        np.testing.assert_allclose(after(X), model(X), rtol=1e-5)
        contacts = after.why().contacts
        assert {x.runs_on for x in contacts} == {"reference"}
        assert any("in quarantine since" in x.reason for x in contacts)
    finally:
        fw.unregister("split")
