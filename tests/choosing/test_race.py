"""Races by a staged clock: who is tried, how long they are timed, who wins, what is said."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing import decide as deciding
from fusewire.choosing.measure import AGAIN, Comparison, Contender, Timing, compare
from fusewire.choosing.race import LEAST_SECONDS, TRYING_MORE, Race, RaceResult
from fusewire.contract.backend import Config, Device
from fusewire.errors import BackendCrashed, NoneRightError
from fusewire.ir.graph import Graph
from fusewire.planning.policy import TargetFinder
from fusewire.planning.target import Target
from fusewire.records.entries import Records
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store
from tests.staged import EMULATED, ONE, TWO, TWO_DEVICES, Clock, Stage, StagedJudge, StagedRunner
from tests.toy import ToyBackend

CPU = Device("cpu", "test")
X = np.linspace(-1, 1, 6, dtype=np.float32)


def _chain(x: Any) -> Any:
    for _ in range(6):
        x = np.sin(x)
    return x


LONG = fw.trace(_chain, fw.Spec((6,), "float32"))
SHORT = fw.trace(np.sin, fw.Spec((6,), "float32"))
FAST, SLOW, TRUSTED = "fast", "slow", "trusted"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("race", "measure", "decide", "budget"):
        monkeypatch.setattr(f"fusewire.choosing.{module}.time", clock)
    return clock


def stage(clock: Clock, *targets: Target, graph: Graph = LONG, **staged: Any) -> Stage:
    """Stage a race of these targets, or of a fast, a slow and a trusted one."""
    judge = StagedJudge(staged.pop("verdicts", ()))
    fallback = Target(ToyBackend(TRUSTED, about={"trusted": True}), CPU)
    engines = [Target(ToyBackend(name), CPU) for name in (FAST, SLOW)]
    runner = StagedRunner(clock, **staged)
    return Stage(graph, [X], targets or (*engines, fallback), fallback, runner, judge)


def run(staged: Stage, budget: float = 100.0, **options: Any) -> RaceResult:
    return staged.race(budget, **options).run(staged.candidates())


def rows(result: RaceResult) -> dict[str, Any]:
    return {row.name: row for row in result.tried}


def test_fastest_is_chosen_and_stands_first(clock: Clock) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.02})
    result = run(staged)
    assert result.chosen.name == FAST
    assert [row.name for row in result.tried][:2] == [FAST, SLOW]
    assert [row.is_chosen for row in result.tried] == [True, False, False]
    assert rows(result)[FAST].seconds == pytest.approx(0.01)
    assert rows(result)[FAST].compile_seconds == pytest.approx(0.5)
    assert not result.is_cut
    assert result.ties == ()
    assert result.notes == ()


def test_one_sample_of_long_calls_is_said_to_be_one(clock: Clock) -> None:
    result = run(stage(clock, run_seconds={FAST: 20.0, SLOW: 20.5}), 200.0)
    assert rows(result)[FAST].seconds == pytest.approx(20.0)
    assert (rows(result)[FAST].low, rows(result)[FAST].high) == (None, None)
    assert f"{FAST}, {SLOW} cannot be told apart: there is one sample." in result.notes


@pytest.mark.parametrize(
    ("graph", "fast", "slow", "is_tried"),
    [
        # The quickest engine decides: at a microsecond a run, NumPy may be as fast.
        (LONG, 1e-6, 1.0, True),
        (LONG, 1e-2, 1.0, False),
        (SHORT, 1e-2, 1.0, True),
    ],
)
def test_trusted_one_races_where_it_may_win(
    clock: Clock, graph: Graph, fast: float, slow: float, is_tried: bool
) -> None:
    staged = stage(clock, graph=graph, run_seconds={FAST: fast, SLOW: slow, TRUSTED: 0.02})
    result = run(staged, 1e6)
    assert (TRUSTED in staged.runner.tried) == is_tried
    if not is_tried:
        assert rows(result)[TRUSTED].status == "not tried"
        assert rows(result)[TRUSTED].reason == ("Skipped: it is rarely faster than fast, slow.")


def test_thorough_race_tries_and_judges_all(clock: Clock) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 1.0, TRUSTED: 2.0})
    result = run(staged, 1e6, is_thorough=True)
    assert staged.runner.tried == [FAST, SLOW, TRUSTED]
    assert staged.judge.judged == 3
    assert {row.status for row in result.tried} == {"right"}


def test_only_the_fastest_is_judged_if_it_is_right(clock: Clock) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.02})
    result = run(staged)
    assert staged.judge.judged == 1
    assert rows(result)[SLOW].status == "not judged"


def test_emulated_device_is_passed_over_unless_it_is_alone(clock: Clock) -> None:
    gpu = Target(ToyBackend("gpu", devices=(EMULATED,)), EMULATED)
    fast = Target(ToyBackend(FAST), CPU)
    result = run(stage(clock, fast, gpu))
    assert rows(result)["gpu (gpu)"].reason == (
        "an emulated one is emulated by the processor, where fast runs too."
    )
    assert rows(result)["gpu (gpu)"].is_software
    alone = run(stage(clock, gpu))
    assert alone.chosen.name == "gpu (gpu)"


def test_two_devices_of_a_backend_are_two_candidates(clock: Clock) -> None:
    backend = ToyBackend("two", devices=(ONE, TWO))
    staged = stage(
        clock,
        *(Target(backend, device) for device in (ONE, TWO)),
        run_seconds={"two (cpu:1)": 0.02, "two (cpu:2)": 0.01},
    )
    result = run(staged)
    assert result.chosen.target.device is TWO
    assert result.chosen.choice().device == "cpu:2"


def test_budget_ends_trying_at_half_of_it(clock: Clock) -> None:
    staged = stage(clock, compile_seconds={FAST: 49.0, SLOW: 2.0})
    result = run(staged)
    # Slow starts before half the budget is used, and trusted after it.
    assert staged.runner.tried == [FAST, SLOW]
    assert rows(result)[TRUSTED].reason.startswith("The budget was used up before its turn.")
    assert result.is_cut
    assert rows(result)[SLOW].compile_seconds == pytest.approx(2.5)


def test_race_may_have_more_of_the_budget_for_trying(clock: Clock) -> None:
    times = {FAST: 49.0, SLOW: 2.0}
    staged = stage(clock, compile_seconds=times, run_seconds=dict.fromkeys(times, 1e-4))
    result = run(staged, trying=TRYING_MORE)
    assert staged.runner.tried == [FAST, SLOW, TRUSTED]
    assert not result.is_cut


def test_first_candidate_is_tried_whatever_the_budget(clock: Clock) -> None:
    staged = stage(clock, compile_seconds={FAST: 500.0})
    assert run(staged, 1.0).chosen.name == FAST
    assert staged.runner.tried == [FAST]


def test_what_the_budget_left_out_is_said_with_one_that_covers_it(clock: Clock) -> None:
    result = run(stage(clock, compile_seconds={FAST: 60.0}))
    assert result.coverage is not None
    assert (result.coverage.compared, result.coverage.candidates) == (1, 3)
    assert result.notes[0] == (
        f"1 of 3 candidates were compared; budget_seconds={result.coverage.budget_seconds:g} "
        "compares all."
    )
    assert run(stage(clock), result.coverage.budget_seconds).coverage is None


@pytest.mark.parametrize("is_thorough", [False, True])
def test_candidate_that_compiles_beyond_the_budget_is_given_up(
    clock: Clock, is_thorough: bool
) -> None:
    start = clock.now
    times = {FAST: 0.01, SLOW: 0.02, TRUSTED: 0.5}
    staged = stage(clock, compile_seconds={SLOW: 500.0}, run_seconds=times)
    result = run(staged, 20.0, is_thorough=is_thorough)
    assert result.chosen.name == FAST
    assert rows(result)[SLOW].status == "not tried"
    assert rows(result)[SLOW].reason == "It was still compiling after 18 s."
    assert result.is_cut
    assert clock.now - start < 1.25 * 20 + 2
    # It was slow for this budget, which is no fault.
    patient = stage(clock, compile_seconds={SLOW: 500.0}, run_seconds=times)
    patient.records = staged.records
    assert rows(run(patient, 2000.0))[SLOW].status == "not judged"


@pytest.mark.parametrize("is_thorough", [False, True])
@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_long_calls_keep_to_the_budget(clock: Clock, seconds: float, is_thorough: bool) -> None:
    start = clock.now
    times = {FAST: seconds, SLOW: 1.2 * seconds, TRUSTED: 8 * seconds}
    result = run(stage(clock, run_seconds=times), 20.0, is_thorough=is_thorough)
    assert result.chosen.name == FAST
    assert clock.now - start < 1.25 * 20 + 2


def test_trusted_one_races_where_the_function_cannot_run(clock: Clock) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.02, TRUSTED: 0.005})
    assert run(staged, 1e6, has_reference=True).chosen.name == TRUSTED


def test_fastest_is_judged_though_the_budget_ended(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first run of FAST is slow, so that a thorough race does not get to judge it.
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.5, TRUSTED: 0.5})
    judge = staged.judge.judge

    def slowly(given: Any, **how: Any) -> Any:
        clock.sleep(30.0)
        return judge(given, **how)

    def first_run(name: str) -> float:
        return {FAST: 1.5, SLOW: 1.0, TRUSTED: 8.0}[name]

    monkeypatch.setattr(staged.judge, "judge", slowly)
    race = staged.race(20.0, is_thorough=True)
    monkeypatch.setattr(race, "_first_run", first_run)
    result = race.run(staged.candidates())
    assert result.chosen.name == FAST
    assert rows(result)[FAST].status == "right"


def test_slow_verdicts_leave_time_for_timing_and_come_after_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.02, TRUSTED: 0.03})
    judge = staged.judge.judge

    def slowly(given: Any, **how: Any) -> Any:
        clock.sleep(8.0)
        return judge(given, **how)

    monkeypatch.setattr(staged.judge, "judge", slowly)
    said: list[str] = []
    race = staged.race(20.0, progress=lambda what, share: said.append(what), is_thorough=True)
    result = race.run(staged.candidates())
    assert {row.name for row in result.tried if row.seconds is not None} == {FAST, SLOW, TRUSTED}
    assert {row.status for row in result.tried} == {"right"}
    # What runs in this process comes after the engines.
    timing = said.index(f"timing {FAST}")
    assert said.index(f"checking {SLOW}") < timing < said.index(f"checking {TRUSTED}")


def test_doubt_that_is_seen_after_the_timing_has_no_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(
        clock, run_seconds={FAST: 0.01, SLOW: 0.02, TRUSTED: 0.03}, verdicts=["right", "doubtful"]
    )
    judge = staged.judge.judge

    def slowly(given: Any, **how: Any) -> Any:
        clock.sleep(0.1 if staged.judge.judged else 76.0)
        return judge(given, **how)

    monkeypatch.setattr(staged.judge, "judge", slowly)
    result = run(staged, 100.0, is_thorough=True)
    assert rows(result)[SLOW].status == "doubtful"
    assert rows(result)[SLOW].seconds is None
    assert rows(result)[TRUSTED].status == "right"
    assert rows(result)[TRUSTED].seconds is not None


def timed_for(clock: Clock, budget: float, **options: Any) -> float:
    """Tell for how long two engines that never come apart are timed."""
    staged = stage(clock, graph=LONG, run_seconds={FAST: 0.1, SLOW: 0.1})
    spent: list[float] = []

    def report(what: str, share: float) -> None:
        if what.startswith("timing"):
            spent.append(clock.now)

    race: Race = staged.race(budget, progress=report, **options)
    race.run(list(staged.candidates())[:2])
    return spent[-1] - spent[0]


def test_timing_takes_its_share_of_the_budget_and_the_least_at_least(clock: Clock) -> None:
    small, usual = timed_for(clock, 1.0, least=1.0), timed_for(clock, 1.0)
    assert 0.5 < small < 3
    assert LEAST_SECONDS - 0.5 < usual < LEAST_SECONDS + 1.5
    # Beside engines that take no time to try, six tenths of the budget are for timing.
    assert timed_for(clock, 9.0) == pytest.approx(5.4, abs=1.2)


@pytest.mark.parametrize(("budget", "least"), [(1.0, 1.0), (4.0, 4.0), (60.0, 4.0)])
def test_least_time_of_a_race_is_no_more_than_its_budget(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, budget: float, least: float
) -> None:
    told: dict[str, Any] = {}

    class Seen(Exception):
        pass

    def seen(*arguments: Any, **options: Any) -> Any:
        told.update(options, budget=arguments[4])
        raise Seen

    monkeypatch.setattr(deciding, "Race", seen)
    staged = stage(clock)
    question = deciding.Question(
        LONG, [X], lambda: iter(staged.targets), staged.fallback, Config(), None, budget=budget
    )
    finder = TargetFinder(REGISTRY, isolate=False)
    with pytest.raises(Seen):
        deciding.decide(question, Records(None), finder)
    assert told["least"] == least
    assert told["budget"] == budget


def test_wrong_one_is_not_chosen_and_its_fault_is_told(clock: Clock) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.02}, verdicts=("cannot say",))
    result = run(staged)
    assert result.chosen.name == FAST
    assert result.notes == ("Nobody knows whether fast is right (cannot say).",)


def test_one_that_fails_while_it_is_judged_is_out(clock: Clock) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.02}, verdicts=("raises",))
    result = run(staged)
    assert result.chosen.name == SLOW
    assert rows(result)[FAST].status == "refused"
    assert rows(result)[FAST].reason == "It fails when it is judged."


def test_one_that_fails_is_refused_and_never_wins(clock: Clock) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.02}, failing=[FAST])
    result = run(staged)
    assert result.chosen.name == SLOW
    assert rows(result)[FAST].status == "refused"
    assert rows(result)[FAST].reason == "fast fails."


def test_one_that_crashed_is_in_quarantine_with_its_fault(clock: Clock) -> None:
    first = stage(clock, failing=[FAST], error=BackendCrashed)
    run(first)
    second = stage(clock)
    second.records = first.records
    row = rows(run(second))[FAST]
    assert row.status == "quarantined"
    assert row.reason.endswith(": crashed: fast fails.")
    assert second.runner.tried == [SLOW, TRUSTED]


def test_passed_over_ones_are_the_last_resort(clock: Clock) -> None:
    staged = stage(
        clock, run_seconds={FAST: 0.01, SLOW: 0.02}, verdicts=("raises", "raises", "right")
    )
    result = run(staged)
    assert result.chosen.name == TRUSTED
    assert staged.runner.tried == [FAST, SLOW, TRUSTED]


def test_if_none_answers_the_error_has_every_reason(clock: Clock) -> None:
    staged = stage(clock, failing=[FAST, SLOW, TRUSTED])
    with pytest.raises(NoneRightError, match=r"fast: fast fails\. slow: slow fails\. trusted:"):
        run(staged)


def test_interrupted_race_stops_the_judge(clock: Clock) -> None:
    staged = stage(clock)

    def interrupted() -> Any:
        yield from ()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        staged.race(10.0).run(interrupted())
    assert staged.judge.is_stopped


def test_times_that_are_known_are_not_taken_again(clock: Clock) -> None:
    staged = stage(clock, run_seconds={FAST: 0.01, SLOW: 0.02})
    run(staged)
    calls = sum(trial.calls for trial in staged.runner.trials.values())
    assert calls > 0
    again = run(staged)
    assert again.chosen.name == FAST
    assert all(trial.calls == 0 for trial in staged.runner.trials.values())
    assert rows(again)[FAST].cache == "hit"
    assert staged.judge.judged == 1


# -- comparisons


def contender(clock: Clock, *seconds: float) -> Contender:
    """Take these seconds in turn, over and over."""
    turn = [0]

    def run(count: int) -> list[float]:
        taken = seconds[turn[0] % len(seconds)]
        turn[0] += 1
        clock.sleep(taken * count)
        return [taken] * count

    return Contender(run)


def compared(clock: Clock, seconds: float = 1e6, **times: float | tuple[float, ...]) -> Any:
    many = {n: t if isinstance(t, tuple) else (t,) for n, t in times.items()}
    return compare({n: contender(clock, *t) for n, t in many.items()}, seconds)


def test_finalist_that_is_behind_is_in_no_tie(clock: Clock) -> None:
    comparison = compared(clock, a=0.10, b=0.114)
    assert comparison.fastest == "a"
    assert comparison.ties == ()


def test_one_within_the_noise_ties(clock: Clock) -> None:
    # Both take turns to be 4% slower: the median of the second is a little above.
    comparison = compared(clock, a=(0.100, 0.104, 0.096), b=(0.103, 0.099, 0.107))
    assert comparison.noise > 0
    assert comparison.fastest in ("a", "b")
    assert {comparison.fastest, *comparison.ties} == {"a", "b"}


def test_preferred_one_wins_among_equals_only(clock: Clock) -> None:
    assert compared(clock, first=0.1, second=0.1).fastest == "first"
    assert compared(clock, first=0.1, second=0.09).fastest == "second"


def test_at_most_three_reach_the_final(clock: Clock) -> None:
    comparison = compared(clock, a=0.1, b=0.1, c=0.1, d=0.1)
    assert comparison.fastest == "a"
    assert len(comparison.ties) == 2
    assert set(comparison.timings) == {"a", "b", "c", "d"}
    assert AGAIN not in comparison.timings


def test_only_close_ones_reach_the_final(clock: Clock) -> None:
    times = {"a": 0.1, "b": 0.12}
    strict = compared(clock, **times)
    wide = compare({n: contender(clock, t) for n, t in times.items()}, 1e6, close=math.inf)
    assert len(strict.timings["b"].samples) < len(wide.timings["b"].samples) or wide.rounds >= 7
    assert wide.fastest == strict.fastest == "a"


def test_hopeless_one_leaves_after_three_rounds_and_a_slower_one_after_seven(clock: Clock) -> None:
    timings = compared(clock, a=0.1, b=0.12, c=0.2).timings
    assert len(timings["c"].samples) == 3
    assert len(timings["b"].samples) == 7


def test_rounds_end_with_the_time_but_not_before_the_third(clock: Clock) -> None:
    comparison = compared(clock, 0.0, a=0.01, b=0.01)
    assert comparison.rounds == 3
    assert all(len(timing.samples) == 3 for timing in comparison.timings.values())


def test_rest_without_the_fastest_is_compared_by_medians(clock: Clock) -> None:
    comparison = compared(clock, a=0.1, b=0.3, c=0.2)
    rest = comparison.without("a")
    assert rest is not None
    assert rest.fastest == "c"
    assert rest.ties == ()
    last = rest.without("c")
    assert last is not None
    assert last.without("b") is None


# -- what is recalled


def test_recalled_choice_runs_on_its_device(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fw.register("tests.staged:two_devices")
    try:
        monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["staged", "reference"])

        def second(ways: Any, *rest: object, **more: object) -> Comparison:
            timings = {name: Timing((1.0,)) for name in ways}
            return Comparison(timings, "staged (cpu:2)", (), 0.0, 1)

        monkeypatch.setattr("fusewire.choosing.race.compare", second)
        TWO_DEVICES.compiled.clear()
        caches = []
        for _ in range(2):
            program = fw.compile(_chain, isolate=False, start="measured", budget_seconds=30.0)
            np.testing.assert_allclose(program(X), _chain(X), rtol=1e-6)
            (region,) = program.plan.regions()
            assert (region.backend, region.device.id) == ("staged", "cpu:2")
            # What was built for the race is what runs: nothing is compiled for the program alone.
            assert [device for _, device in TWO_DEVICES.compiled] == [ONE, TWO]
            assert TWO_DEVICES.loaded[-1] == TWO
            caches.append(program.why().tried[0].cache)
        assert caches == ["", "hit"]
    finally:
        fw.unregister("staged")


def _joined(clock: Clock, times: dict[str, float], *refused: str, **options: Any) -> RaceResult:
    """Race two engines, of which the first refuses one op, with a question that joins them.

    The second refuses the ops that are given.
    """
    graph = fw.trace(lambda x: np.exp(np.cos(np.exp(x))), fw.Spec((6,), "float32"))
    first = Target(ToyBackend("first", ["cos"]), CPU)
    second = Target(ToyBackend("second", refused), CPU)
    fallback = Target(ToyBackend("reference", about={"trusted": True}), CPU)
    staged = Stage(graph, [X], (first, second), fallback, StagedRunner(clock, run_seconds=times))
    targets = staged.targets
    question = deciding.Question(graph, [X], lambda: iter(targets), fallback, Config(), None)
    race = staged.race(100.0, join=replace(question, **options).joined)
    return race.run(replace(question, **options).candidates())


def test_engine_that_refuses_a_node_is_tried_with_another(clock: Clock) -> None:
    pair = "first + second"
    result = _joined(clock, {"first": 0.03, "second": 0.02, pair: 0.01})
    assert result.chosen.name == pair
    assert rows(result)[pair].engines == ("first", "second")
    assert rows(result)["first"].elsewhere == 1
    assert rows(result)[pair].elsewhere == 0
    # It is timed like any other, and may lose.
    assert _joined(clock, {"first": 0.03, "second": 0.02, pair: 0.05}).chosen.name == "second"


def test_engine_far_from_the_quickest_is_tried_alone(clock: Clock) -> None:
    result = _joined(clock, {"first": 0.21, "second": 0.02})
    assert "first + second" not in rows(result)
    near = _joined(clock, {"first": 0.19, "second": 0.02})
    assert "first + second" in rows(near)


def test_plan_with_too_many_crossings_is_not_joined(clock: Clock) -> None:
    times = {"first": 0.03, "second": 0.02}
    assert "first + second" in rows(_joined(clock, times, max_crossings=2))
    # Alone, the engine hands over as much to the reference.
    assert rows(_joined(clock, times, max_crossings=1)).keys() == {"first", "second"}
    assert rows(_joined(clock, times, max_crossings=0)).keys() == {"first", "second"}


def test_engines_are_joined_where_none_takes_all_and_none_may_fall_back(clock: Clock) -> None:
    result = _joined(clock, {}, may_fall_back=False)
    assert result.chosen.name == "second"
    assert "first + second" not in rows(result)
    result = _joined(clock, {}, "exp", may_fall_back=False)
    assert result.chosen.name == "first + second"
    assert rows(result)["first"].status == rows(result)["second"].status == "refused"
    with pytest.raises(NoneRightError, match="first does not run cos"):
        _joined(clock, {}, "cos", may_fall_back=False)


FITTED_NAME = "fitting sizes=fitted"
OPENED = fw.trace(_chain, fw.Spec(("n",), "float32"))


def _fitting(clock: Clock, **staged: Any) -> Stage:
    """Stage a race of an engine that is faster at known sizes, and another."""
    fitting = ToyBackend("fitting", variants=[{"sizes": "fitted"}])
    slow = ToyBackend(SLOW)
    staged = {"graph": OPENED, **staged}
    seconds = {FITTED_NAME: 0.01, SLOW: 0.02, "fitting": 0.04}
    return stage(clock, Target(fitting, CPU), Target(slow, CPU), run_seconds=seconds, **staged)


def test_what_is_compiled_for_sizes_has_to_be_right_for_others_too(clock: Clock) -> None:
    result = run(_fitting(clock))
    assert result.chosen.name == FITTED_NAME
    found = rows(result)
    assert (found[FITTED_NAME].status, found["fitting"].status) == ("right", "right")
    assert found[SLOW].status == "not judged"
    assert not result.is_cut

    result = run(_fitting(clock, verdicts=["right", "doubtful", "right"]))
    assert result.chosen.name == SLOW
    assert rows(result)[FITTED_NAME].reason.startswith(
        "Other sizes would run fitting, which is doubtful"
    )


def test_open_sizes_of_a_variant_are_tried_when_it_is_ahead(clock: Clock) -> None:
    options = {"nan": "engine", "sizes": "fitted"}
    engine = ToyBackend("fitting", variants=[options])
    name, opened = "fitting nan=engine sizes=fitted", "fitting nan=engine"
    seconds = {name: 0.01, "fitting": 0.04, opened: 0.03}
    staged = stage(clock, Target(engine, CPU), graph=OPENED, run_seconds=seconds)
    result = run(staged, 600.0)
    assert result.chosen.name == name
    assert opened in staged.runner.tried
    slowly = {name: 290.0}
    staged = stage(
        clock, Target(engine, CPU), graph=OPENED, run_seconds=seconds, compile_seconds=slowly
    )
    result = run(staged, 500.0)
    assert result.chosen.name == "fitting"
    assert opened not in staged.runner.tried
    assert rows(result)[name].reason == f"Other sizes would run {opened}, which is not tried."
    # Without time for a verdict, the fastest is taken as it is.
    given: Any = {"compile_seconds": slowly, "verdicts": ["not judged"]}
    staged = stage(clock, Target(engine, CPU), graph=OPENED, run_seconds=seconds, **given)
    result = run(staged, 500.0)
    assert result.chosen.name == name
    assert result.is_cut
    assert f"Nobody knows whether {name} is right (not judged)." in result.notes
