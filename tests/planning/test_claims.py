"""Claims at their edges: places that are not in the graph, mixed shapes, nodes passed over."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.choosing.decide import _few_crossings
from fusewire.contract.backend import Config, Device, Offer, Refusal
from fusewire.errors import EngineError, RefusedError
from fusewire.ir.graph import Graph
from fusewire.planning.candidates import Candidate, Unfit, candidates, plan_choice
from fusewire.planning.claims import ask, ask_safely
from fusewire.planning.planner import make_plan
from fusewire.planning.policy import choose, soonest
from fusewire.planning.target import Target
from fusewire.records.plans import Choice
from tests.staged import ONE, TWO
from tests.toy import ToyBackend, picky_backend

CPU = Device("cpu", "test")


def _network(x: Any) -> Any:
    return np.exp(np.sin(x)) + np.cos(x)


GRAPH = fw.trace(_network, fw.Spec(("n",), "float32"))
REST = Target(picky_backend("rest", []), CPU)


def claiming(*answers: Offer | Refusal) -> Target:
    return Target(ToyBackend("staged", answers=lambda graph, device: list(answers)), ONE)


@pytest.mark.parametrize("places", [(0, 99), (0, -1), (99,), (-1,), (4,), (0, 1, 4)])
@pytest.mark.parametrize("kind", ["offer", "refusal"])
def test_claim_of_a_place_outside_the_graph_is_a_fault(places: Any, kind: str) -> None:
    assert len(GRAPH.nodes) == 4
    answer = Offer(places) if kind == "offer" else Refusal(places, "odd", "It is odd.")
    target = claiming(answer)
    with pytest.raises(EngineError, match="nodes outside of the 4 of the graph"):
        ask(target, GRAPH)
    claimed = ask_safely(target, GRAPH)
    assert claimed.fault is not None
    assert not claimed.shapes
    assert len(claimed.refusals) == 4
    planned = make_plan(GRAPH, [target, REST])
    assert {region.backend for region in planned.plan.regions()} == {"rest"}
    with pytest.raises(RefusedError, match="nodes outside of the 4 of the graph"):
        make_plan(GRAPH, [target])


def test_node_that_nobody_speaks_of_is_refused() -> None:
    claimed = ask(claiming(Offer((0, 1)), Offer((3,))), GRAPH)
    assert [claimed.shapes.get(node) for node in GRAPH.nodes] == [
        "static",
        "static",
        None,
        "static",
    ]
    assert not claimed.takes_all()
    (refusal,) = claimed.refusals.values()
    assert refusal.nodes == (2,)
    assert refusal.reason == "staged: the node was neither offered nor refused."


def test_node_that_is_offered_and_refused_is_offered_as_first_said() -> None:
    answers = (
        Offer((0, 1), "dynamic"),
        Refusal((1, 2), "odd", "first"),
        Refusal((2,), "odd", "second"),
    )
    claimed = ask(claiming(*answers, Offer((0, 3), "static")), GRAPH)
    first, second, third, last = GRAPH.nodes
    assert claimed.shapes == {first: "dynamic", second: "dynamic", last: "static"}
    assert {node: why.reason for node, why in claimed.refusals.items()} == {third: "first"}


def test_region_is_static_if_any_of_its_nodes_is() -> None:
    def shapes(*offered: Any) -> list[str]:
        target = claiming(*(Offer((place,), kind) for place, kind in enumerate(offered)))
        return [region.shapes for region in make_plan(GRAPH, [target]).plan.regions()]

    assert shapes("dynamic", "dynamic", "dynamic", "dynamic") == ["dynamic"]
    assert shapes("dynamic", "static", "dynamic", "dynamic") == ["static"]
    assert shapes("static", "dynamic", "dynamic", "dynamic") == ["static"]
    assert shapes("dynamic", "dynamic", "dynamic", "static") == ["static"]
    assert shapes("static", "static", "static", "static") == ["static"]


def test_each_region_has_the_device_of_its_target() -> None:
    backend = ToyBackend("staged", answers=lambda graph, device: [Offer((0, 1))])
    for device in (ONE, TWO):
        planned = make_plan(GRAPH, [Target(backend, device), REST])
        assert {r.backend: r.device.id for r in planned.plan.regions()} == {
            "staged": device.id,
            "rest": "cpu",
        }


def test_first_target_that_takes_a_node_gets_it() -> None:
    first, second = picky_backend("first", ["cos"]), picky_backend("second", [])
    planned = make_plan(GRAPH, [Target(first, CPU), Target(second, CPU), REST])
    backends = {n.op: r.backend for r in planned.plan.regions() for n in r.graph.nodes}
    assert backends == {"sin": "first", "exp": "first", "add": "first", "cos": "second"}
    assert set(planned.claims) == {"first", "second"}
    refused = {n for n in planned.plan.graph.nodes if n.op == "cos"}
    assert planned.refused_nodes().keys() == refused
    # Another engine runs it, and not the fallback.
    assert planned.fallback_nodes() == {}
    assert planned.warnings() == []
    assert make_plan(GRAPH, [REST]).warnings() == []


def test_backend_that_faults_is_not_asked_for_bodies() -> None:
    asked: list[Graph] = []

    def odd(graph: Graph, device: Device) -> list[Offer | Refusal]:
        asked.append(graph)
        return [Offer((999,))]

    def choice(x: Any) -> Any:
        return ops.cond(np.sum(x) > 0, x, then=np.sin, otherwise=np.cos)

    graph = fw.trace(choice, fw.Spec((4,), "float32"))
    make_plan(graph, [Target(ToyBackend("odd", answers=odd), ONE), REST])
    assert len(asked) == 1


# -- candidates


def listed(*targets: Target, may_fall_back: bool = True, graph: Graph = GRAPH) -> list[Any]:
    return list(candidates(graph, targets, REST, Config(), may_fall_back=may_fall_back))


def test_every_device_is_a_candidate_of_its_own() -> None:
    backend = ToyBackend("staged", devices=(ONE, TWO))
    names = [c.name for c in listed(*(Target(backend, device) for device in (ONE, TWO)))]
    assert names == ["staged (cpu:1)", "staged (cpu:2)"]


def test_target_that_takes_nothing_does_not_fit() -> None:
    refusing = Target(picky_backend("none", ["sin", "cos", "exp", "add"]), CPU)
    (unfit,) = listed(refusing)
    assert isinstance(unfit, Unfit)
    assert unfit.reason == "none takes none of it. none does not run sin."
    (faulty,) = listed(claiming(Offer((99,))))
    assert "nodes outside of the 4" in faulty.reason


def test_what_is_refused_needs_leave_to_fall_back() -> None:
    picky = Target(picky_backend("picky", ["cos"]), CPU)
    (fallen,) = listed(picky)
    assert isinstance(fallen, Candidate)
    (unfit,) = listed(picky, may_fall_back=False)
    assert isinstance(unfit, Unfit)
    assert "picky does not run cos" in unfit.reason


def test_composites_are_also_raced_in_parts() -> None:
    graph = fw.trace(lambda x: ops.softmax(x, axis=-1), fw.Spec((3, 4), "float32"))
    names = [c.name for c in listed(Target(picky_backend("picky", []), CPU), graph=graph)]
    assert names == ["picky", "picky expanded"]
    choice = Choice("picky", "cpu", "expanded", {})
    planned = plan_choice(choice, graph, [Target(picky_backend("picky", []), CPU)], REST, True)
    assert "softmax" not in {node.op for node in planned.plan.graph.nodes}
    native = Choice("picky", "cpu", "native", {})
    planned = plan_choice(native, graph, [Target(picky_backend("picky", []), CPU)], REST, True)
    assert {node.op for node in planned.plan.graph.nodes} == {"softmax"}


def test_plans_with_too_many_crossings_are_left_out_and_told() -> None:
    picky = listed(Target(picky_backend("picky", ["exp"]), CPU))
    (candidate,) = picky
    crossings = candidate.planned.plan.crossings()
    assert crossings > 0
    assert list(_few_crossings(picky, None)) == picky
    assert list(_few_crossings(picky, crossings)) == picky
    (unfit,) = _few_crossings(picky, crossings - 1)
    assert isinstance(unfit, Unfit)
    assert unfit.reason == (
        f"picky would hand over {crossings} tensors, and {crossings - 1} are allowed."
    )


@pytest.mark.parametrize(
    ("refused", "first"), [([], "some"), (["sin"], "some"), (["sin", "cos", "exp"], "all")]
)
def test_engine_that_takes_most_of_a_graph_serves_first(refused: list[str], first: str) -> None:
    some, whole = (Target(picky_backend(*x), CPU) for x in (("some", refused), ("all", [])))
    asked = [some, whole]
    finder: Any = SimpleNamespace(
        registry=SimpleNamespace(default="auto", first_of_ours=lambda: "some"),
        targets=lambda name: [some],
        all_targets=lambda: iter(asked),
    )
    assert soonest("auto", None, GRAPH, finder).name == first
    # Whoever must not share a graph gets the engine that takes all of it.
    expected = "all" if refused else "some"
    assert choose("auto", None, GRAPH, finder).name == expected


def test_device_that_interprets_kernels_does_not_serve_first() -> None:
    slow = Target(picky_backend("some", []), Device("interpreter", "slow", facts={"interprets": 1}))
    whole = Target(picky_backend("all", []), CPU)
    finder: Any = SimpleNamespace(
        registry=SimpleNamespace(default="auto", first_of_ours=lambda: "some"),
        targets=lambda name: [slow],
        all_targets=lambda: iter([slow, whole]),
    )
    assert soonest("auto", None, GRAPH, finder).name == "all"
