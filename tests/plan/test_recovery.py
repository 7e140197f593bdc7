"""An engine that fails a call is not left for it: the fallback decides, and the engine heals."""

import logging
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import CheckError, EngineOutOfMemory, RefusedError
from tests.flaky import TROUBLE, compiled, registered

TABLE = np.arange(12, dtype=np.float32).reshape(6, 2)
GOOD, BAD = np.array([0, 5], np.int64), np.array([0, 600], np.int64)
X = np.linspace(0, 1, 4, dtype=np.float32)


def look_up(ids: Any) -> Any:
    # Computed indices: no guard of the plan sees them before the engine does.
    return np.take(TABLE, np.abs(ids), axis=0) + 1


def _graph() -> Any:
    return fw.trace(look_up, fw.Spec(("n",), "int64"))


def test_bad_values_are_the_callers_and_the_engine_stays() -> None:
    with registered() as trouble:
        program = compiled(_graph())
        program(GOOD)
        for _ in range(5):
            with pytest.raises(CheckError, match=r"gather.*600"):
                program(BAD)
            np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        assert trouble.counts["run"] == 11
        (failed,) = program.why().failures
        assert (failed.by_caller, failed.by_engine, failed.rests) == (5, 0, 0)
        assert not failed.is_resting


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "flaky"])
@pytest.mark.parametrize("fallback", ["error", "warn"])
def test_bad_values_have_the_same_error_on_every_engine(engine: str, fallback: str) -> None:
    with registered():
        expected = compiled(_graph(), backend="reference")
        program = compiled(_graph(), backend=engine, fallback=fallback)
        program(GOOD)
        with pytest.raises(CheckError) as reference:
            expected(BAD)
        with pytest.raises(CheckError) as found:
            program(BAD)
    assert str(found.value) == str(reference.value)
    assert engine not in str(found.value)


def test_first_call_with_bad_values_does_not_cost_the_engine() -> None:
    with registered() as trouble:
        program = compiled(_graph())
        with pytest.raises(CheckError):
            program(BAD)
        np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        assert trouble.counts["run"] == 2
    program = fw.compile(_graph(), backend="onnxruntime", fallback="error")
    with pytest.raises(CheckError):
        program(BAD)
    np.testing.assert_array_equal(program(GOOD), look_up(GOOD))


@pytest.mark.parametrize("fallback", ["warn", "error"])
def test_comparison_on_bad_values_does_not_decide_for_the_fallback(fallback: str) -> None:
    def model(x: Any) -> Any:
        return np.take(TABLE, np.floor(x * 5).astype(np.int64), axis=0)

    good, bad = np.array([0.5], np.float32), np.array([900.0], np.float32)
    options: dict[str, Any] = {"level": 1, "start": "measured", "budget_seconds": 2, "cache": False}
    options["fallback"] = fallback
    program = fw.compile(fw.trace(model, good), backend="onnxruntime", **options)
    with pytest.raises(CheckError, match=r"gather.*4500"):
        program(bad)
    np.testing.assert_array_equal(program(good), model(good))
    assert program.why().backend == "onnxruntime"


def test_fallback_answers_the_call_that_an_engine_failed_and_no_other() -> None:
    with registered() as trouble:
        program = compiled(_graph())
        program(GOOD)
        trouble.fail("run", 1)
        for _ in range(3):
            np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        assert trouble.counts["run"] == 4
        (failed,) = program.why().failures
        assert (failed.by_engine, failed.by_caller, failed.rests) == (1, 0, 0)
        assert "run was told to fail" in failed.reason


def test_without_fallback_no_other_answer_is_given_and_the_engine_stays() -> None:
    with registered() as trouble:
        program = compiled(_graph(), fallback="error")
        program(GOOD)
        trouble.fail("run", 1, 2, 3, 4)
        for _ in range(4):
            with pytest.raises(RefusedError, match=r"run was told to fail.*not allowed"):
                program(GOOD)
        np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        assert trouble.counts["run"] == 6


def test_engine_that_ran_out_of_memory_is_not_replaced_by_the_fallback() -> None:
    with registered() as trouble:
        program = compiled(_graph())
        program(GOOD)
        trouble.fail("run", 1, kind=MemoryError)
        with pytest.raises(EngineOutOfMemory):
            program(GOOD)
        np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        assert trouble.counts["run"] == 3


def test_engine_that_fails_call_after_call_is_left_for_a_while_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("fusewire.plan.recovery.monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, "fusewire")
    with registered() as trouble:
        program = compiled(_graph())
        program(GOOD)
        trouble.fail("run")
        runs = []
        for _ in range(6):
            np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
            runs.append(trouble.counts["run"])
        assert runs == [2, 3, 4, 4, 4, 4]
        (failed,) = program.why().failures
        assert (failed.is_resting, failed.rests, failed.by_engine) == (True, 1, 3)
        # Back after the wait, it fails again, and is left for twice as long.
        now[0] += 1.5
        program(GOOD), program(GOOD), program(GOOD)
        assert trouble.counts["run"] == 5
        now[0] += 1.5
        program(GOOD), program(GOOD)
        assert trouble.counts["run"] == 5
        trouble.heal()
        now[0] += 1.5
        for _ in range(3):
            np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        assert trouble.counts["run"] == 7
        (failed,) = program.why().failures
        assert (failed.is_resting, failed.rests, failed.recoveries) == (False, 2, 1)
    said = [record.getMessage() for record in caplog.records]
    assert sum("is left for" in text for text in said) == 2
    assert sum("is used again" in text for text in said) == 1


def test_engine_that_fails_now_and_then_is_not_left() -> None:
    with registered() as trouble:
        program = compiled(_graph())
        program(GOOD)
        trouble.fail("run", *range(1, 400, 2))
        for _ in range(400):
            np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        assert trouble.counts["run"] == 401
        (failed,) = program.why().failures
        assert (failed.by_engine, failed.rests) == (200, 0)


def test_warning_is_given_once() -> None:
    with registered() as trouble, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = compiled(_graph(), fallback="warn")
        program(GOOD)
        trouble.fail("run")
        for _ in range(10):
            program(GOOD)
    assert [x.category for x in caught] == [fw.FallbackWarning]
    assert "run was told to fail" in str(caught[0].message)


def test_sizes_fail_and_heal_each_for_itself() -> None:
    with registered("sized") as trouble:
        program = compiled(_graph())
        sizes = [np.arange(n) % 6 for n in (1, 2, 3)]
        for ids in sizes:
            program(ids)
        trouble.fail("run")
        for _ in range(4):
            np.testing.assert_array_equal(program(sizes[0]), look_up(sizes[0]))
        trouble.heal()
        before = trouble.counts["run"]
        for ids in sizes:
            np.testing.assert_array_equal(program(ids), look_up(ids))
        assert trouble.counts["run"] == before + 2
        with pytest.raises(CheckError):
            program(np.array([0, 600, 1]))
        assert trouble.counts["compile"] == 3


def test_bodies_of_control_flow_heal() -> None:
    def model(ids: Any) -> Any:
        return fw.ops.cond(np.sum(ids) > 3, ids, then=look_up, otherwise=lambda x: look_up(x) * 2)

    with registered("split") as trouble:
        program = compiled(fw.trace(model, fw.Spec(("n",), "int64")))
        for _ in range(3):
            np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
            with pytest.raises(CheckError, match=r"gather.*600"):
                program(BAD)
        runs = trouble.counts["run"]
        program(GOOD)
        per_call = trouble.counts["run"] - runs
        assert per_call > 1, "the body runs on the engine too"
        trouble.fail("run", per_call)
        np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        trouble.heal()
        runs = trouble.counts["run"]
        np.testing.assert_array_equal(program(GOOD), look_up(GOOD))
        assert trouble.counts["run"] == runs + per_call
        failures = program.why().failures
        assert sum(x.by_engine for x in failures) == 1
        assert sum(x.by_caller for x in failures) == 3


def test_parts_of_a_split_plan_heal() -> None:
    def model(x: Any) -> Any:
        return np.exp(np.cos(np.exp(x)))

    with registered("split") as trouble:
        program = compiled(model, X)
        assert len(program.plan.steps) == 3
        program(X)
        for count in (1, 2):
            trouble.fail("run", count)
            np.testing.assert_allclose(program(X), model(X), rtol=1e-6)
        trouble.heal()
        before = trouble.counts["run"]
        np.testing.assert_allclose(program(X), model(X), rtol=1e-6)
        assert trouble.counts["run"] == before + 2


@pytest.mark.parametrize("kind", ["plain", "single"])
def test_eight_threads_get_each_their_own_outcome(kind: str) -> None:
    with registered(kind) as trouble:
        program = compiled(_graph())
        program(GOOD)
        trouble.fail("run", *range(3, 800, 7))
        problems: list[str] = []

        def call(number: int) -> None:
            for turn in range(100):
                is_bad = (turn + number) % 3 == 0
                try:
                    found = program(BAD if is_bad else GOOD)
                except CheckError:
                    if not is_bad:
                        problems.append("a good call was refused")
                    continue
                if is_bad or not np.array_equal(found, look_up(GOOD)):
                    problems.append("a wrong outcome")

        threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        assert trouble.counts["run"] == 801
        assert kind == "plain" or trouble.most_running == 1
        (failed,) = program.why().failures
        assert failed.by_caller + failed.by_engine >= 267


def test_threads_that_all_fail_leave_the_engine() -> None:
    with registered() as trouble:
        program = compiled(_graph())
        program(GOOD)
        trouble.fail("run")
        threads = [
            threading.Thread(target=lambda: [program(GOOD) for _ in range(50)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Calls that run still count as well: nine of ten have failed once nine times the seven
        # others have. Those that run then follow, and as many after each rest.
        (failed,) = program.why().failures
        assert trouble.counts["run"] <= 1 + 9 * 7 + 8 + 8 * failed.rests


def test_nothing_is_open_after_close() -> None:
    with registered() as trouble:
        program = compiled(_graph())
        program(GOOD)
        trouble.fail("run")
        for _ in range(5):
            program(GOOD)
        assert trouble.opened == 1
        program.close()
        assert TROUBLE.opened == 0
