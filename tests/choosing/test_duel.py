"""The user's own function against engines: never slower, and what a tie and a name decide."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.duel import MOST_SECONDS, beats, duel, meet, with_times
from fusewire.choosing.measure import Comparison, Timing
from fusewire.errors import EngineError
from fusewire.records.function_code import function_digest
from fusewire.show.why import Tried
from fusewire.system.processes import Scheduled
from tests.staged import Clock

X = np.linspace(0.5, 1.5, 4096).reshape(64, 64)


class Sleeper:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls = 0

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        self.calls += 1
        time.sleep(self.seconds)
        return []

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("seconds", [0.0005, 0.08])
def test_faster_runner_wins(seconds: float) -> None:
    slow, fast = Sleeper(4 * seconds), Sleeper(seconds)
    comparison = duel({"slow": slow, "fast": fast}, [])
    assert beats(comparison, "fast", "slow")
    assert not beats(comparison, "slow", "fast")
    assert comparison.fastest == "fast"


@pytest.mark.parametrize(
    ("engine", "noise", "times"),
    [(0.9, 0.2, [0.8, MOST_SECONDS]), (0.9, 0.05, [0.8]), (0.99, 0.2, [0.8]), (1.1, 0.2, [0.8])],
    ids=["within the noise", "clear", "too little", "behind"],
)
def test_lead_within_the_noise_gets_more_time(
    monkeypatch: pytest.MonkeyPatch, engine: float, noise: float, times: list[float]
) -> None:
    """Or 8 calls of 40 ms would leave a lead of a tenth with the function."""
    asked: list[float] = []

    def timed(contenders: Any, seconds: float) -> Comparison:
        asked.append(seconds)
        # Their intervals touch.
        spread = (0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0)
        timings = {
            "function": Timing(spread),
            "engine": Timing(tuple(engine * x for x in spread)),
        }
        return Comparison(timings, "engine", (), noise, 7)

    monkeypatch.setattr("fusewire.choosing.duel._timed", timed)
    duel({"function": Sleeper(0), "engine": Sleeper(0)}, [])
    assert asked == times


class Failing(Sleeper):
    def call(self, inputs: Sequence[Any]) -> list[Any]:
        super().call(inputs)
        if self.calls > 2:
            raise EngineError("It failed.")
        return []


def test_rival_that_fails_does_not_serve() -> None:
    serves, rivals = Sleeper(0.0005), {"fails": Failing(0.0001), "slow": Sleeper(0.002)}
    builds = {name: partial(lambda x: x, rival) for name, rival in rivals.items()}
    assert meet("first", serves, {"fails": builds["fails"]}, []) == (None, "first")
    comparison, best = meet("first", serves, builds, [])
    assert best == "first"
    assert comparison is not None
    assert comparison.timings.keys() == {"first", "slow"}


def test_first_rival_serves_if_what_served_fails() -> None:
    rivals = {"slow": lambda: Sleeper(0.002), "quick": lambda: Sleeper(0.0001)}
    assert meet("first", Failing(0.0005), rivals, []) == (None, "slow")


def test_duel_of_long_calls_ends_soon() -> None:
    runners = {"a": Sleeper(0.3), "b": Sleeper(0.3)}
    start = time.monotonic()
    duel(runners, [], 0.8)
    assert time.monotonic() - start < 2.5
    assert all(runner.calls >= 2 for runner in runners.values())


class LateSleeper(Sleeper):
    """Sleeps from its fourth call on, as on a machine that others begin to use."""

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        self.calls += 1
        time.sleep(self.seconds if self.calls > 3 else 0.0)
        return []


def test_one_that_uses_up_the_time_of_both_is_compared_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fusewire.choosing.measure._OVERTIME", 0.0)
    runners = {"function": LateSleeper(0.1), "engine": Sleeper(0.0001)}
    comparison = duel(runners, [], 0.1, most=0.1, warming=0.0)
    assert comparison.timings.keys() == {"function", "engine"}


@pytest.mark.parametrize(
    ("noise", "other", "is_beaten"),
    [(0.0, 1.01, True), (0.1, 1.05, False), (0.1, 1.2, True), (9.0, 1.2, False), (9.0, 1.3, True)],
)
def test_lead_within_intervals_must_exceed_the_noise(
    noise: float, other: float, is_beaten: bool
) -> None:
    spread = (0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0)
    timings = {"engine": Timing(spread), "function": Timing(tuple(other * x for x in spread))}
    comparison = Comparison(timings, "engine", (), noise, 7)
    assert beats(comparison, "engine", "function") == is_beaten


def test_lead_beyond_the_intervals_decides_whatever_the_noise() -> None:
    timings = {"engine": Timing((1.0,) * 7), "function": Timing((1.1,) * 7)}
    comparison = Comparison(timings, "engine", (), 9.0, 7)
    assert beats(comparison, "engine", "function")
    assert not beats(comparison, "function", "engine")


class Waking(Sleeper):
    """Takes long until some calls after the first have started something that ends later."""

    def __init__(self, clock: Clock, cold: float, warm: float) -> None:
        super().__init__(warm)
        self.clock, self.cold, self.ends = clock, cold, math.inf

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        self.calls += 1
        if self.calls == 20:
            self.ends = self.clock.now + 1.5
        is_warm = self.clock.now > self.ends
        self.clock.sleep(self.seconds if is_warm else self.cold)
        return []


def test_engine_is_timed_when_it_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's 20th call has a thread import jax, and calls are slow until that has ended."""
    clock = Clock()
    engine = Waking(clock, 900e-6, 80e-6)

    def scheduled(pid: int | None, but: int | None = None) -> Scheduled:
        """Show the other thread at work until the engine is warm."""
        is_awake = engine.calls >= 20 and clock.now <= engine.ends
        return Scheduled(clock.now if is_awake else 0.0, 0.0)

    for module in ("duel", "measure"):
        monkeypatch.setattr(f"fusewire.choosing.{module}.time", clock)
    monkeypatch.setattr("fusewire.choosing.measure.scheduled", scheduled)
    function = Waking(clock, 300e-6, 300e-6)
    comparison = duel({"function": function, "engine": engine}, [])
    assert comparison.timings["engine"].median == pytest.approx(80e-6)
    assert beats(comparison, "engine", "function")


def slow(x: Any) -> Any:
    if type(x) is np.ndarray:
        time.sleep(0.05)
    return np.tanh(x) @ x


def quick(x: Any) -> Any:
    if type(x) is np.ndarray:
        return x * 2
    for _ in range(200):
        x = np.sqrt(x * x)
    return x * 2


def rows(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    with fw.compile(function, start="measured", fallback="allow", **options) as program:
        np.testing.assert_allclose(program(X), function(X))
        why = program.why()
    chosen = [row.name for row in why.tried if row.is_chosen]
    assert chosen == [why.tried[0].name]
    return {"chosen": chosen[0], "backend": why.backend, **{x.name: x for x in why.tried}}


def test_quick_function_serves() -> None:
    found = rows(quick, budget_seconds=4)
    assert (found["chosen"], found["backend"]) == ("your function", "function")
    assert found["your function"].status == "right"
    assert found["your function"].seconds is None
    times = [x.here for x in found.values() if hasattr(x, "here") and x.here]
    assert len(times) > 1
    assert found["your function"].here == min(times)


def test_slow_function_does_not_serve() -> None:
    found = rows(slow, budget_seconds=4)
    assert found["chosen"] != "your function"
    assert found["your function"].here > 0.05
    assert found[found["chosen"]].here < 0.05


def test_named_backend_is_not_overridden() -> None:
    found = rows(quick, backend="reference", level=1, budget_seconds=4)
    assert (found["chosen"], found["backend"]) == ("reference", "reference")
    assert found["your function"].here < found["reference"].here
    assert found["your function"].is_barred


def test_level_zero_calls_no_function() -> None:
    with fw.compile(quick, level=0, backend="reference") as program:
        program(X)
        assert program.why().tried == ()


@pytest.mark.usefixtures("store")
def test_choice_is_recalled_for_the_same_code_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rows(quick, budget_seconds=4)
    monkeypatch.setattr("fusewire.choosing.decide._race", lambda *_: pytest.fail("raced"))
    found = rows(quick, budget_seconds=4)
    assert (found["chosen"], found["your function"].cache) == ("your function", "hit")

    def same_graph(x: Any) -> Any:
        for _ in range(200):
            x = np.sqrt(x * x)
        return x * 2

    with pytest.raises(pytest.fail.Exception, match="raced"):
        rows(same_graph, budget_seconds=4)


@pytest.mark.usefixtures("store")
def test_choice_that_its_table_shows_beaten_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used, it says so first, and the next process compares again."""
    raced: list[str] = []

    def contradicting(tried: Any, comparison: Any, chosen: str) -> tuple[Tried, ...]:
        raced.append(chosen)
        rows = with_times(tried, comparison, chosen)
        # The times of both, so that a busy machine, which has time for one call, says the same.
        return tuple(
            replace(row, here=time, here_low=time, here_high=time)
            if row.is_chosen or row.seconds is not None
            else row
            for row in rows
            for time in [1.0 if row.is_chosen else 1e-9]
        )

    monkeypatch.setattr("fusewire.choosing.decide.with_times", contradicting)
    for count in (1, 2):
        options: Any = {"start": "measured", "fallback": "allow", "budget_seconds": 4}
        with fw.compile(quick, **options) as program:
            np.testing.assert_allclose(program(X), quick(X))
            assert raced == ["your function"] * count
            assert program.state == "serving-first"
            assert not program.wait()
            assert str(program.why()).startswith("Not settled: your function is used, and ")
    with pytest.raises(fw.errors.NotRecalledError), fw.compile(quick, level="recall") as program:
        program(X)


def helper(x: Any) -> Any:
    return x + 1


def test_digest_follows_the_code() -> None:
    def first(x: Any) -> Any:
        return helper(x)

    def second(x: Any) -> Any:
        return helper(x) * 1

    digests = {function_digest(f) for f in (first, second, helper, lambda x: helper(x))}
    assert len(digests) == 3
    assert None not in digests
    assert function_digest(np.exp) is None


def test_function_of_a_child_only_program_is_not_called() -> None:
    found = rows(slow, isolate="always", budget_seconds=4)
    assert found["your function"].status == "refused"
    assert "isolate='always'" in found["your function"].reason
