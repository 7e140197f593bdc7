"""Level 2: graphs are split over engines where that is faster, and only there."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.split import SegmentTimes, Way, cheapest_ways
from fusewire.contract.backend import Config
from fusewire.errors import OptionsError, StoreError
from fusewire.ir.graph import Graph
from fusewire.planning.candidates import Candidate, placed_candidate, placing_of, plan_choice
from fusewire.planning.policy import TargetFinder
from fusewire.planning.segments import segments
from fusewire.planning.target import Target
from fusewire.records.plans import Choice, TargetPlace
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
OPTIONS: Any = {"start": "measured", "budget_seconds": 20.0, "level": 2, "fallback": "error"}


def waves(x: Any) -> Any:
    """Each of the engines with cliffs is slow at one half."""
    return np.cos(np.cos(np.tanh(np.sin(np.sin(np.exp(x))))))


@pytest.fixture
def cliffs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    names = [fw.register(f"tests.toy:{name}", name) for name in request.param]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: [*names, "reference"])
    yield names
    for name in names:
        fw.unregister(name)


def target(name: str) -> Target:
    (first, *_) = TargetFinder(REGISTRY).targets(name)
    return first


def reference() -> Target:
    return target("reference")


def traced() -> Graph:
    return fw.trace(waves, fw.Spec(X.shape, "float32"))


@pytest.mark.parametrize("cliffs", [["hills", "dales"]], indirect=True)
def test_split_goes_around_both_cliffs(cliffs: list[str], store: Store) -> None:
    del cliffs
    graph = fw.trace(waves, X)
    program = fw.compile(graph, X, **OPTIONS)
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
    why = program.why()
    assert set(why.backend.replace(" polite=True", "").split(" + ")) == {"hills", "dales"}
    backends = {node.op: node.backend.split()[0] for node in why.nodes}
    assert (backends["sin"], backends["cos"]) == ("hills", "dales")
    (row,) = [row for row in why.tried if row.is_chosen]
    assert row.status == "right"
    assert row.name.endswith(("in 2 regions, cut at 3", "in 2 regions, cut at 4"))
    assert any("times as fast as" in note for note in why.notes)
    # The engines leave each other the cores.
    assert row.options == {"polite": True}
    again = fw.compile(graph, X, **OPTIONS)
    np.testing.assert_allclose(again(X), waves(X), rtol=1e-5)
    assert again.why().backend == why.backend
    assert [node.backend for node in again.why().nodes] == [node.backend for node in why.nodes]
    assert {row.cache for row in again.why().tried} == {"hit"}
    assert any(entry.key.kind == "measurement" for entry in store.entries())


@pytest.mark.parametrize("cliffs", [["ledge", "ravine"]], indirect=True)
def test_cut_is_moved_where_segments_alone_told_otherwise(cliffs: list[str]) -> None:
    del cliffs
    # In this process, so that a busy machine has time for all of it.
    program = fw.compile(fw.trace(waves, X), X, **OPTIONS, isolate="never")
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
    why = program.why()
    # Alone, tanh is faster on ravine; together with cos it is not.
    backends = {node.op: node.backend.split()[0] for node in why.nodes}
    assert (backends["sin"], backends["tanh"], backends["cos"]) == ("ledge", "ledge", "ravine")
    (row,) = [row for row in why.tried if row.is_chosen]
    # On a busy machine the first node, which is quick anywhere, may be on either.
    assert row.name.endswith(("in 2 regions, cut at 4", "in 3 regions, cut at 1, 4"))
    assert any(row.name.endswith(("cut at 3", "cut at 1, 3")) for row in why.tried)
    (note,) = [note for note in why.notes if note.startswith("Cuts were moved by one segment")]
    assert note.endswith(" tried, 1 kept.")


def test_one_move_is_one_segment_on_the_engine_beside_it() -> None:
    times = [[1.0, 4.0], [1.0, 1.0], [math.inf, 1.0], [2.0, 1.0]]
    known = SegmentTimes([], [], times, [9.0, 9.0])
    found = known.neighbours(Way((0, 0, 1, 1), 4.0))
    # The third segment is refused by the first engine.
    assert [way.engines for way in found] == [(0, 1, 1, 1)]
    assert found[0].seconds == 4.0
    # From within, either side of each cut.
    found = known.neighbours(Way((1, 0, 1, 1), 7.0))
    assert {way.engines for way in found} == {(0, 0, 1, 1), (1, 1, 1, 1)}


@pytest.mark.parametrize("cliffs", [["hills", "plains"]], indirect=True)
def test_nothing_is_split_where_one_engine_is_best_everywhere(cliffs: list[str]) -> None:
    del cliffs
    program = fw.compile(fw.trace(waves, X), X, **OPTIONS)
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
    assert program.why().backend == "hills"
    assert any("No split" in note for note in program.why().notes)


@pytest.mark.parametrize("cliffs", [["hills", "dales"]], indirect=True)
def test_split_keeps_to_the_most_crossings(cliffs: list[str]) -> None:
    program = fw.compile(fw.trace(waves, X), X, **OPTIONS, max_crossings=0)
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
    assert program.why().backend in cliffs


@pytest.mark.parametrize("cliffs", [["hills", "dales"]], indirect=True)
def test_lead_within_the_noise_is_no_lead(
    cliffs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusewire.choosing.split.lead", lambda result, before: 1.0)
    program = fw.compile(fw.trace(waves, X), X, **OPTIONS)
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
    assert program.why().backend in cliffs
    assert any("by more than the noise" in note for note in program.why().notes)


@pytest.mark.parametrize("cliffs", [["hills", "dales"]], indirect=True)
def test_segments_of_another_model_are_not_timed_again(
    cliffs: list[str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cliffs, store
    from fusewire.trials.trial import TrialRunner

    attempt, timed = TrialRunner.attempt, []

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        if named.get("child") and given[0].planned.plan.graph.name.startswith("segment"):
            timed.append(given[0].name)
        return attempt(self, *given, **named)

    monkeypatch.setattr(TrialRunner, "attempt", counted)
    fw.compile(fw.trace(waves, X), X, **OPTIONS)(X)
    first = len(timed)
    assert first
    longer = fw.trace(lambda x: np.tanh(waves(x)), X)
    fw.compile(longer, X, **OPTIONS)(X)
    assert len(timed) - first <= first / 2


def test_nodes_go_where_they_are_placed_and_nowhere_else() -> None:
    graph = traced()
    targets = [target("onnxruntime"), target("openvino")]
    numbers = [place % 2 for place in range(len(graph.nodes))]
    candidate = placed_candidate(
        graph, targets, placing_of(numbers), reference(), options={}, may_fall_back=False
    )
    assert candidate is not None
    planned = candidate.planned
    found = [planned.backend_of(node) for node in planned.plan.graph.nodes]
    assert found == [targets[number].name for number in numbers]
    assert candidate.name == "onnxruntime + openvino, in 6 regions, cut at 1, 2, 3, 4, 5"
    # As data, it is planned in the same way again.
    choice = Choice.from_data(candidate.choice().to_data())
    assert choice == candidate.choice()
    again = plan_choice(choice, graph, targets, reference(), may_fall_back=False)
    assert [again.backend_of(node) for node in again.plan.graph.nodes] == found


def test_one_engine_may_serve_twice_with_different_options() -> None:
    graph, plain = traced(), target("onnxruntime")
    asleep = replace(plain, options={"spinning": False})
    candidate = placed_candidate(
        graph, [plain, asleep], ((3, 0), (3, 1)), reference(), options={}, may_fall_back=False
    )
    assert isinstance(candidate, Candidate)
    assert candidate.engine_names == "onnxruntime + onnxruntime spinning=False"
    assert candidate.config(Config()).options == {}
    assert candidate.config(Config(), asleep).options == {"spinning": False}
    place = TargetPlace("onnxruntime", "cpu", {"spinning": False})
    assert candidate.choice().others == (place,)
    assert candidate.choice().config(Config(), place.name).options == {"spinning": False}


@pytest.mark.parametrize(
    "change",
    [
        {"others": [["openvino", "cpu", {}, 1]]},
        {"others": [["openvino", "cpu", []]]},
        {"others": [["onnxruntime", "cpu", {}]]},
        {"placing": [[1, 1]]},
        {"placing": [[-1, 0]]},
        {"placing": [[1]]},
        {"placing": [[True, 0]]},
        {"placing": "11"},
    ],
)
def test_malformed_choices_are_refused(change: dict[str, Any]) -> None:
    good = Choice("onnxruntime", "cpu").to_data()
    assert Choice.from_data(good) == Choice("onnxruntime", "cpu")
    with pytest.raises(StoreError):
        Choice.from_data({**good, **change})


def test_huge_counts_of_a_hostile_choice_cost_nothing() -> None:
    graph, targets = traced(), [target("onnxruntime")]
    choice = Choice("onnxruntime", "cpu", placing=((1 << 60, 0),))
    planned = plan_choice(choice, graph, targets, reference(), may_fall_back=False)
    assert planned.plan.is_whole


def test_segments_cover_the_graph_in_order_and_small_ones_are_joined() -> None:
    graph = fw.trace(
        lambda x, y: np.tanh(np.exp(np.sin(x @ y)) @ y), *[fw.Spec((64, 64), "float32")] * 2
    )
    for most in (2, 3, 99):
        found = segments(graph, {}, most)
        assert [node for part in found for node in part.nodes] == list(graph.nodes)
        assert len(found) == min(most, len(graph.nodes))
    # The products have the most to do: each is in a part of its own.
    two = segments(graph, {}, 2)
    assert [sum(node.op == "matmul" for node in part.nodes) for part in two] == [1, 1]
    assert segments(graph, {}, 1) == []


def test_ways_are_the_cheapest_for_each_number_of_changes() -> None:
    # The second engine is better at the middle; joining neighbours gains nothing.
    times = [[1.0, 3.0], [5.0, 1.0], [1.0, 3.0]]
    ways = cheapest_ways(times, [7.0, 7.0])
    assert (ways[0].engines, ways[0].seconds) == ((0, 1, 0), 3.0)
    assert ways[1].engines in {(0, 1, 1), (1, 1, 0)}
    # What an engine does not run is never part of a way.
    refused = cheapest_ways([[1.0, 3.0], [math.inf, 1.0], [1.0, 3.0]], [math.inf, 7.0])
    assert all(way.engines[1] == 1 for way in refused)
    # Whole graphs that gain much by being whole are expected to lose by a cut.
    together = cheapest_ways([[1.0, 0.9], [1.0, 1.1]], [1.0, 1.0])
    assert min(way.seconds for way in together) > 1.0


def test_spinning_must_be_told_in_plain_words() -> None:
    graph = fw.trace(waves, fw.Spec(X.shape, "float32"))
    with pytest.raises(OptionsError, match=r"has no spinning='no'\. It has True and False"):
        fw.compile(graph, backend="onnxruntime", backend_config={"spinning": "no"})(X)
    asleep = fw.compile(graph, backend="onnxruntime", backend_config={"spinning": False})
    np.testing.assert_allclose(asleep(X), waves(X), rtol=1e-5)
