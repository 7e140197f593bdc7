"""The jury: what it judges on, what it catches, and what it says when it cannot."""

import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.choosing import judge as judging
from fusewire.choosing.accuracy import AccuracyJudge
from fusewire.choosing.judge import FURTHER, SPECIAL, Judge, Judgement, Run, input_sets
from fusewire.errors import StoreError
from fusewire.ir.graph import Graph, Value
from fusewire.ops.interpret import Interpreter, type_of
from fusewire.ops.limits import RunLimits

X = np.linspace(-2.0, 3.0, 48, dtype=np.float32).reshape(6, 8)


def softmax_graph() -> Graph:
    return fw.trace(lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True), X)


def honest(graph: Graph) -> Run:
    return Interpreter(graph)


Spoil = Callable[[int, list[Any], Sequence[Any]], list[Any]]


def spoiled(graph: Graph, spoil: Spoil) -> Run:
    """Run right, then let ``spoil(call, outputs, inputs)`` change what comes out."""
    right, calls = Interpreter(graph), itertools.count()
    return lambda inputs: spoil(next(calls), [np.array(x) for x in right(inputs)], inputs)


def test_right_engine_is_right_on_every_set() -> None:
    graph = softmax_graph()
    judged = Judge(graph, [X]).judge(honest(graph))
    assert (judged.status, judged.left_out, judged.repeats) == ("right", (), True)
    assert judged.sets == ("given", "random", *SPECIAL, *FURTHER)
    assert 0 < judged.error <= 1


FAULTS: dict[str, tuple[Spoil, str]] = {
    "always": (lambda call, y, x: [y[0] + np.float32(1e-3)], "given"),
    "second call": (lambda call, y, x: [y[0] * (1 + (call == 2) * np.float32(0.1))], "given"),
    "other inputs": (lambda call, y, x: [y[0] if x[0] is X else -y[0]], "random"),
    "negative zero": (lambda call, y, x: [y[0] + np.any(np.signbit(x[0]) & (x[0] == 0))], "edges"),
    "zeros": (lambda call, y, x: [y[0] * np.any(x[0])], "zeros"),
    "no number": (lambda call, y, x: [np.full_like(y[0], np.nan)], "given"),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_wrong_engine_is_wrong_on_the_set_that_shows_it(name: str) -> None:
    spoil, kind = FAULTS[name]
    graph = softmax_graph()
    judged = Judge(graph, [X]).judge(spoiled(graph, spoil))
    assert (judged.status, judged.kind) == ("wrong", kind)
    assert judged.error > 1
    assert judged.reason


def test_answer_of_the_call_before_is_caught_though_each_was_once_right() -> None:
    graph = softmax_graph()
    held: list[list[Any]] = []

    def stale(call: int, outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
        held.append(outputs)
        return held[max(call - 1, 0)]

    assert Judge(graph, [X]).judge(spoiled(graph, stale)).kind == "given"


def test_answer_that_a_later_call_overwrites_is_caught() -> None:
    graph = softmax_graph()
    buffer = np.empty_like(X)

    def reused(call: int, outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
        buffer[...] = outputs[0]
        return [buffer]

    assert Judge(graph, [X]).judge(spoiled(graph, reused)).kind == "given"


def test_noise_within_the_tolerance_is_right_and_told() -> None:
    graph = softmax_graph()

    def wobble(call: int, outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
        return [np.nextafter(outputs[0], np.float32(call % 2))]

    judged = Judge(graph, [X]).judge(spoiled(graph, wobble))
    assert (judged.status, judged.repeats) == ("right", False)


def test_indices_stay_valid_and_sizes_stay_themselves() -> None:
    rows = np.arange(12, dtype=np.int64).reshape(3, 4)
    graph = fw.trace(lambda table, rows: table[rows], X.repeat(2, 0), rows)
    sets = {found.kind: found.values for found in input_sets(graph, [X.repeat(2, 0), rows])}
    assert sorted(sets["random"][1].flat) == sorted(rows.flat)
    assert (sets["random"][1] != rows).any()
    assert sets["zeros"][1] is rows
    few = fw.trace(lambda table, rows: table[rows], X, rows[0])
    assert input_sets(few, [X, rows[0]])[1].values[1].tolist() == rows[0].tolist()


def test_drawn_inputs_have_dtype_shape_and_range_of_the_given() -> None:
    given: list[Any] = [
        X.astype(np.float16),
        np.array([[3, 9], [200, 4]], np.uint8),
        np.array([True] * 3),
        np.zeros((2, 2), np.float32),
        np.array(2.5, np.float32),
    ]
    graph = fw.trace(lambda a, b, c, d, e: (a * 2, b + 1, ~c, d + 1, e), *given)
    drawn = input_sets(graph, given, seed=3)[1].values
    for x, y in zip(drawn, given, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
    assert drawn[0].min() >= X.min()
    assert drawn[0].max() <= X.max()
    assert 3 <= drawn[1].min() <= drawn[1].max() <= 200
    assert drawn[2].all()
    assert 0 < np.abs(drawn[3]).max() <= 1


def test_special_set_without_a_finite_answer_is_left_out_and_said_so() -> None:
    graph = fw.trace(np.log, X + 3)
    judged = Judge(graph, [X + 3]).judge(honest(graph))
    assert judged.status == "right"
    assert "zeros: the exact answer is not finite" in judged.left_out


def test_set_that_the_graph_does_not_take_is_left_out() -> None:
    x = Value(type_of(X), "x")
    largest = ops.reduce_max(x, axes=(0, 1), keepdims=False)
    graph = Graph([x], [ops.check(x, ops.equal(largest, 3.0), message="It is not 3.")])
    judged = Judge(graph, [X]).judge(honest(graph))
    assert (judged.status, judged.sets) == ("right", ("given",))
    assert judged.left_out == tuple(
        f"{kind}: the graph does not take it: It is not 3."
        for kind in ("random", *SPECIAL, *FURTHER)
    )


def test_jury_without_time_says_what_it_left_out() -> None:
    graph = softmax_graph()
    late = Judge(graph, [X], deadline=time.monotonic() - 1).judge(honest(graph))
    assert (late.status, late.sets) == ("not judged", ())
    assert "given: no time was left" in late.reason
    tight = Judge(graph, [X])
    tight.prepare()
    tight.deadline = time.monotonic()
    judged = tight.judge(honest(graph))
    assert (judged.status, judged.sets) == ("right", ("given",))
    assert len(judged.left_out) == 4 + len(FURTHER)


def test_oracles_are_shared_by_candidates() -> None:
    graph = softmax_graph()
    jury = Judge(graph, [X])
    jury.judge(honest(graph))
    found = [jury.oracle(inputs) for inputs in jury.sets]
    jury.judge(honest(graph))
    assert all(jury.oracle(i) is x for i, x in zip(jury.sets, found, strict=True))


def test_verdict_goes_through_json() -> None:
    judged = Judgement("wrong", math.inf, 0.1, "why", ("given",), "given", ("ones: no",), False)
    assert Judgement.from_data(json.loads(json.dumps(judged.to_data()))) == judged


@pytest.mark.parametrize(
    "change",
    [{"status": "fine"}, {"sets": 3}, {"sets": [1]}, {"error": "0"}, {"repeats": 1}, {"more": 1}],
)
def test_verdict_that_is_not_one_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        Judgement.from_data({**Judgement("right").to_data(), **change})


def test_oracle_of_a_set_is_made_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fw.trace(np.sin, fw.Spec((3,), "float32"))
    judge = Judge(graph, [np.ones(3, np.float32)])
    made: list[object] = []

    def slow(inputs: object) -> str:
        made.append(inputs)
        time.sleep(0.05)
        return "left out"

    monkeypatch.setattr(judge, "_make_oracle", slow)
    threads = [threading.Thread(target=judge.oracle, args=(judge.sets[0],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def preparing(judge: Judge) -> threading.Thread:
    """Have another thread begin to make an oracle."""
    thread = threading.Thread(target=judge.prepare)
    thread.start()
    time.sleep(0.05)
    return thread


def test_oracle_waits_while_others_are_timed() -> None:
    def deep(x: Any) -> Any:
        for _ in range(60):
            x = np.tanh(x @ np.full((300, 300), 0.01, np.float32))
        return x

    x = np.ones((300, 300), np.float32)
    judge = Judge(fw.trace(deep, x), [x], limits=RunLimits(seconds=60.0))
    thread = preparing(judge)
    with judge.paused():
        assert judge._is_waiting.is_set()
        before = time.process_time()
        time.sleep(0.5)
        # Nobody works meanwhile; threads of a product spin for a moment.
        assert time.process_time() - before < 0.3
        assert thread.is_alive()
    thread.join()
    assert not judge._is_waiting.is_set()
    assert judge._waited > 0.25
    alone = Judge(judge.graph, [x])
    alone.prepare()
    # What it waited for is not what an oracle costs.
    assert judge.cost < 20 * alone.cost + 0.2
    assert judge.judge(honest(judge.graph)).status == "right"


def test_oracle_that_waits_in_a_loop_has_its_time_all_the_same() -> None:
    def looping(x: Any) -> Any:
        return ops.while_(
            x, condition=lambda v: np.sum(v) < 1e9, body=lambda v: v + np.tanh(v) + 0.01
        )

    x = np.zeros((400, 400), np.float32)
    judge = Judge(fw.trace(looping, x), [x], limits=RunLimits(seconds=2.0))
    thread = preparing(judge)
    with judge.paused():
        assert judge._is_waiting.is_set()
        time.sleep(2.0)
    time.sleep(0.2)
    # It would be beyond its limit now.
    assert thread.is_alive()
    end = judge.end = time.monotonic() + 60.0
    with judge.paused(latest=end + 0.2):
        time.sleep(0.3)
    assert judge.end == pytest.approx(end + 0.2)
    judge.stop()
    thread.join()
    assert "longer than" not in judge.beyond


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the sets whose oracles are made, as they are begun."""
    begun = list[str]()

    def noted(self: Judge, inputs: judging.InputSet) -> Any:
        begun.append(inputs.kind)
        return real(self, inputs)

    real = Judge._make_oracle
    monkeypatch.setattr(Judge, "_make_oracle", noted)
    return begun


def test_oracles_together_keep_to_their_share_of_the_time(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(self: Judge, inputs: judging.InputSet) -> Any:
        time.sleep(0.2)
        return real(self, inputs)

    real = Judge._make_oracle
    monkeypatch.setattr(Judge, "_make_oracle", slowly)
    # A second: that of the given inputs is not counted, and of the others there is room for a few.
    Judge(softmax_graph(), [X], ahead=0.001, deadline=time.monotonic() + 1000.0).prepare()
    assert 3 <= len(made) <= 5


@pytest.mark.parametrize(("ahead", "is_ahead"), [(0.5, True), (1e-9, False), (0.0, False)])
def test_oracles_are_made_ahead_where_they_take_little_of_the_time(
    ahead: float, is_ahead: bool, made: list[str]
) -> None:
    graph = softmax_graph()
    judge = Judge(graph, [X], ahead=ahead, deadline=time.monotonic() + 600.0)
    kinds = [inputs.kind for inputs in judge.sets]
    judge.prepare()
    assert made == (kinds if is_ahead else ["given"])
    assert judge.judge(honest(graph)).sets == tuple(kinds)
    assert made == kinds


def test_oracle_that_is_made_ahead_keeps_nobody_from_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def held(self: Judge, inputs: judging.InputSet) -> Any:
        if inputs.kind != "given":
            begun.set()
            assert goes_on.wait(60.0)
        return real(self, inputs)

    begun, goes_on = threading.Event(), threading.Event()
    real = Judge._make_oracle
    monkeypatch.setattr(Judge, "_make_oracle", held)
    judge = Judge(softmax_graph(), [X], ahead=0.5, deadline=time.monotonic() + 600.0)
    thread = threading.Thread(target=judge.prepare)
    thread.start()
    assert begun.wait(60.0)
    # The given inputs are ready, and nobody waits for others.
    judge.wait_for_given(0.0)
    assert judge._has_given.is_set()
    wrong = judge.judge(lambda values: [1 + values[0]])
    assert (wrong.status, wrong.sets) == ("wrong", ("given",))
    judge.stop()
    goes_on.set()
    thread.join(60.0)
    assert not thread.is_alive()
    assert len(judge._oracles) <= 2


def test_oracle_that_waits_can_be_stopped() -> None:
    graph = softmax_graph()
    judge = Judge(graph, [X])
    with judge.paused():
        thread = threading.Thread(target=judge.prepare)
        thread.start()
        judge.stop()
        thread.join(10.0)
        assert not thread.is_alive()


def test_inputs_are_drawn_when_they_are_first_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[str]()

    def noted(graph: Graph, given: Any, kind: Any, change: Any) -> Any:
        drawn.append(kind)
        return real(graph, given, kind, change)

    real = judging._changed
    monkeypatch.setattr(judging, "_changed", noted)
    graph = fw.trace(np.exp, X)
    jury = Judge(graph, [X])
    AccuracyJudge(jury, "exact")
    jury.prepare()
    assert drawn == []
    assert jury.judge(lambda values: [1 + values[0]]).status == "wrong"
    assert drawn == ["random"]
    assert jury.judge(lambda values: [np.exp(values[0])]).sets == tuple(x.kind for x in jury.sets)
    assert drawn == ["random", *SPECIAL, *FURTHER]


def test_inputs_that_could_not_be_drawn_are_drawn_again() -> None:
    failures = [MemoryError("full"), None]

    def draw() -> judging.InputSet:
        if error := failures.pop(0):
            raise error
        return judging.InputSet("random", (X,))

    sets = judging.InputSets([X], [draw, lambda: None])
    with pytest.raises(MemoryError):
        list(sets)
    assert [found.kind for found in sets] == ["given", "random"]


def test_slow_candidate_is_not_run_on_further_sets_after_the_end() -> None:
    graph, runs = softmax_graph(), list[float]()
    judge = Judge(graph, [X])
    for inputs in judge.sets:
        judge.oracle(inputs)
    judge.end = time.monotonic() + 0.5

    def slow(values: Any) -> Any:
        runs.append(time.monotonic())
        time.sleep(0.2)
        return honest(graph)(values)

    judged = judge.judge(slow)
    assert judged.sets[0] == "given"
    assert len(judged.sets) + len(judged.left_out) == len([*judge.sets])
    assert "random: no time was left" in judged.left_out
    # Those on the given inputs, which are judged in any case.
    assert len(runs) <= 3


def test_what_is_late_says_nothing_about_a_set() -> None:
    judge = Judge(softmax_graph(), [X], end=time.monotonic() - 1.0)
    random = next(inputs for inputs in judge.sets if inputs.kind == "random")
    assert judge._unfit(random)
    judge.end = math.inf
    assert not judge._unfit(random)
    assert not isinstance(judge.oracle(random), str)
