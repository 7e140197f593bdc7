"""Regions that do not depend on each other run at the same time, and as they would one by one."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.backend import Config, Held
from fusewire.contract.buffer import held_still
from fusewire.dtypes import float32
from fusewire.errors import BudgetError, CheckError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.limits import RunLimits
from fusewire.planning.branches import forks
from fusewire.planning.candidates import Candidate, placed_candidate, placing_of, plan_choice
from fusewire.planning.policy import TargetFinder
from fusewire.planning.target import Target
from fusewire.records.plans import read_plan, write_plan
from fusewire.registry import REGISTRY
from fusewire.runtime import concurrent
from fusewire.runtime.buffer_calls import _taken
from fusewire.runtime.concurrent import overlapping, waits
from fusewire.runtime.execute import PlanRunner
from fusewire.runtime.plan import ALONE, Plan
from fusewire.runtime.transfer import fetched
from fusewire.trials.build import BuildTarget, PlanBuilder

X = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


def two(x: Any) -> Any:
    """Two branches after a common start, and a join."""
    x = np.tanh(x)
    return np.sin(x @ x) + np.cos(np.exp(x) @ x)


def target(name: str) -> Target:
    (first, *_) = TargetFinder(REGISTRY).targets(name)
    return first


def placed(graph: Graph, *names: str, options: Sequence[dict[str, Any]] = ()) -> Candidate:
    """Place the branches of a graph on two engines, at the same time."""
    second = {node for fork in forks(graph, {}) for node in fork.second}
    assert second
    placing = placing_of(int(node in second) for node in graph.nodes)
    targets = [target(name) for name in names]
    targets = [replace(x, options=own) for x, own in zip(targets, options or [{}, {}], strict=True)]
    candidate = placed_candidate(
        graph, targets, placing, target("reference"), options={}, may_fall_back=True
    )
    assert candidate is not None
    choice = replace(candidate.choice(), is_concurrent=True)
    planned = plan_choice(choice, graph, targets, target("reference"), True)
    return replace(candidate, planned=planned, is_concurrent=True)


def runner_of(
    candidate: Candidate, plan: Plan | None = None, limits: RunLimits = RunLimits()
) -> PlanRunner:
    first, *others = (BuildTarget.of(x, candidate.config(Config(), x)) for x in candidate.targets)
    fallback = BuildTarget.of(target("reference"), Config())
    builder = PlanBuilder(first, fallback, "allow", 30.0, others=tuple(others), limits=limits)
    return PlanRunner(plan or candidate.planned.plan, builder)


class Watch:
    """Notes which steps run at the same time, and may make one of them wait or fail."""

    def __init__(self, runner: PlanRunner, seconds: float = 0.1) -> None:
        self.together: set[tuple[int, int]] = set()
        self.threads: dict[int, int] = {}
        self.failing: dict[int, Exception] = {}
        self._running: set[int] = set()
        self._seconds = seconds
        self._lock = threading.Lock()
        self._runners = list(runner._runners)
        runner._runners = [_Watched(self, number) for number in range(len(self._runners))]

    def run(self, number: int, inputs: Sequence[Held]) -> list[Held]:
        with self._lock:
            self._running.add(number)
            self.together |= {(x, number) for x in self._running if x < number}
            self.together |= {(number, x) for x in self._running if x > number}
            self.threads[number] = threading.get_ident()
        try:
            time.sleep(self._seconds)
            if number in self.failing:
                raise self.failing[number]
            return self._runners[number].run(inputs)
        finally:
            with self._lock:
                self._running.discard(number)

    def is_as_planned(self, number: int) -> bool:
        return self._runners[number].is_as_planned


class _Watched:
    def __init__(self, watch: Watch, number: int) -> None:
        self._watch, self._number = watch, number

    def run(self, inputs: Sequence[Held]) -> list[Held]:
        return self._watch.run(self._number, inputs)

    @property
    def is_as_planned(self) -> bool:
        return self._watch.is_as_planned(self._number)

    def close(self) -> None: ...


def loaded(runner: PlanRunner, *inputs: Any) -> PlanRunner:
    """Call it until all regions are loaded: a child answers the first call."""
    for _ in range(3):
        runner.call(inputs)
    assert all(x.is_as_planned for x in runner._runners)
    return runner


def test_branches_on_two_engines_run_at_the_same_time_and_give_the_same_bits() -> None:
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    plan = candidate.planned.plan
    backends = [step.region.backend for step in plan.steps]
    # The start is released before the branch of the same engine.
    assert backends == ["onnxruntime", "onnxruntime", "openvino", "onnxruntime"]
    assert overlapping(plan) == [(1, 2)]
    assert plan.turns == ("", "", "openvino", "")
    runner = loaded(runner_of(candidate), X)
    sequential = loaded(runner_of(candidate, replace(plan, turns=())), X)
    watch = Watch(runner)
    (result,), (expected,) = runner.call([X]), sequential.call([X])
    assert watch.together == {(1, 2)}
    assert len(set(watch.threads.values())) == 2
    assert result.tobytes() == expected.tobytes()
    np.testing.assert_allclose(result, two(X), rtol=1e-3, atol=1e-3)


def test_many_calls_from_several_threads_give_the_same_bits() -> None:
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    runner = loaded(runner_of(candidate), X)
    sequential = loaded(runner_of(candidate, replace(candidate.planned.plan, turns=())), X)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for number in range(20):
            x = X * np.float32(seed + number / 10)
            if runner.call([x])[0].tobytes() != sequential.call([x])[0].tobytes():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_one_engine_is_not_run_beside_itself_unless_it_says_so() -> None:
    graph = fw.trace(two, X)
    twice = [{}, {"spinning": False}]
    allowed = placed(graph, "onnxruntime", "onnxruntime", options=twice)
    assert [step.region.backend for step in allowed.planned.plan.steps][2].endswith("=False")
    watch = Watch(runner := loaded(runner_of(allowed), X))
    runner.call([X])
    assert watch.together == {(1, 2)}
    plan = replace(allowed.planned.plan, turns=("onnxruntime",) * 4)
    watch = Watch(runner := loaded(runner_of(allowed, plan), X))
    runner.call([X])
    assert watch.together == set()
    for name in ("torch", "inductor", "torch-eager"):
        assert target(name).backend.info.turn == "torch"
    assert target("openvino").backend.info.turn == "openvino"


def test_what_runs_alone_runs_alone() -> None:
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    plan = replace(candidate.planned.plan, turns=("", ALONE, "openvino", ""))
    watch = Watch(runner := loaded(runner_of(candidate, plan), X))
    runner.call([X])
    assert watch.together == set()
    assert overlapping(plan) == []


@pytest.mark.parametrize("failing", [(1,), (2,), (1, 2), (0,), (3,)])
def test_error_is_the_one_that_comes_first_one_by_one(failing: tuple[int, ...]) -> None:
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    for turns in (candidate.planned.plan.turns, ()):
        runner = runner_of(candidate, replace(candidate.planned.plan, turns=turns))
        watch = Watch(loaded(runner, X), 0.02)
        watch.failing = {x: BudgetError(f"step {x}") for x in failing}
        with pytest.raises(BudgetError, match=f"^step {failing[0]}$"):
            runner.call([X])
        # Nothing is running any more, and nothing came after the error but what ran beside it.
        assert watch._running == set()
        assert not set(watch.threads) - {0, 1, 2} or failing == (3,)
        watch.failing.clear()
        np.testing.assert_allclose(runner.call([X])[0], two(X), rtol=1e-3, atol=1e-3)


def test_error_of_a_later_branch_waits_for_the_earlier_one() -> None:
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    watch = Watch(runner := loaded(runner_of(candidate), X))
    ran = watch._runners[1]
    ended: list[float] = []

    class Slow:
        def run(self, inputs: Sequence[Held]) -> list[Held]:
            time.sleep(0.3)
            ended.append(time.monotonic())
            return ran.run(inputs)

        is_as_planned = True

        def close(self) -> None: ...

    watch._runners[1] = Slow()
    watch.failing = {2: BudgetError("step 2")}
    with pytest.raises(BudgetError, match="step 2"):
        runner.call([X])
    assert ended
    assert ended[0] <= time.monotonic()


def test_interrupt_of_the_caller_waits_for_the_other_branch() -> None:
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    watch = Watch(runner := loaded(runner_of(candidate), X), 0.05)
    watch.failing = {1: KeyboardInterrupt()}  # type: ignore[dict-item] # what Ctrl-C raises
    with pytest.raises(KeyboardInterrupt):
        runner.call([X])
    assert watch._running == set()
    watch.failing.clear()
    runner.call([X])


class _Nothing:
    """An engine that gives no results."""

    is_as_planned = True

    def run(self, inputs: Sequence[Held]) -> list[Held]:
        return []


@pytest.mark.parametrize("number", [1, 2])
def test_step_without_its_results_is_an_error_and_ends_the_call(number: int) -> None:
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    watch = Watch(runner := loaded(runner_of(candidate), X), 0.05)
    watch._runners[number] = _Nothing()  # type: ignore[call-overload] # not all of a runner
    with pytest.raises(ValueError, match="shorter"):
        runner.call([X])


def test_part_of_a_state_is_read_by_the_thread_that_helps() -> None:
    state, value = fw.state(X), Value(TensorType(float32, (2, 64)), "x")
    with ThreadPoolExecutor(1) as helper, held_still(state):
        taken = _taken(value, state[0:2])
        read = helper.submit(fetched, taken)
        np.testing.assert_array_equal(read.result(timeout=5), X[:2])


def test_without_a_helper_the_caller_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent.Helpers, "submit", lambda self, work: None)
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    watch = Watch(runner := loaded(runner_of(candidate), X), 0.01)
    np.testing.assert_allclose(runner.call([X])[0], two(X), rtol=1e-3, atol=1e-3)
    assert set(watch.threads.values()) == {threading.get_ident()}


def test_memory_limit_has_regions_run_one_by_one() -> None:
    candidate = placed(fw.trace(two, X), "onnxruntime", "openvino")
    limits = RunLimits(None, 1 << 30, 1 << 30)
    watch = Watch(runner := loaded(runner_of(candidate, limits=limits), X))
    runner.call([X])
    assert watch.together == set()


def test_step_waits_for_whoever_checks_what_it_takes() -> None:
    def lookup(x: Any, i: Any) -> Any:
        at = i * 2
        return np.take(np.tanh(x @ x), at, axis=0) + np.take(np.exp(x @ x.T), at, axis=0)

    graph = fw.trace(lookup, X, np.arange(8))
    candidate = placed(graph, "openvino", "onnxruntime")
    plan = candidate.planned.plan
    guarded = [number for number, step in enumerate(plan.steps) if step.guards]
    if guarded:
        (first, *_) = guarded
        places = {guard.place for guard in plan.steps[first].guards}
        later = [n for n, s in enumerate(plan.steps) if n > first and places & {*s.inputs}]
        assert all(first in waits(plan)[number] for number in later)
    runner = loaded(runner_of(candidate), X, np.arange(8))
    with pytest.raises(CheckError):
        runner.call([X, np.arange(8) * 100])


def test_turns_are_part_of_a_saved_plan() -> None:
    plan = placed(fw.trace(two, X), "onnxruntime", "openvino").planned.plan

    class Source:
        def stored_graph(self, region: Any) -> None: ...

        def plan(self) -> Plan:
            return plan

    blobs: list[Any] = []
    row = write_plan(plan, blobs)
    assert read_plan(row, iter(blobs), Source()).turns == plan.turns
    # A plan of an earlier bundle has none.
    del row["turns"]
    assert read_plan(row, iter(blobs), Source()).turns == ()


def test_forks_are_independent_and_share_the_work() -> None:
    graph = fw.trace(two, X)
    (fork,) = forks(graph, {})
    ops = [sorted(node.op for node in side) for side in (fork.first, fork.second)]
    assert sorted(ops) == [["cos", "exp", "matmul"], ["matmul", "sin"]]
    chain = fw.trace(lambda x: np.tanh(np.exp(x @ x)) + x, X)
    assert forks(chain, {}) == []
    heads = fw.trace(lambda x: (np.exp(x @ x), np.tanh(x @ x.T)), X)
    assert len(forks(heads, {})) == 1
