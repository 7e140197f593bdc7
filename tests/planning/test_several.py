"""Several targets in order: who gets which node, in what form, and what is said of it."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.backends.reference.engine import ReferenceBackend
from fusewire.contract.backend import Device
from fusewire.errors import RefusedError
from fusewire.ir.graph import Graph
from fusewire.ops.interpret import interpret
from fusewire.ops.table import verify
from fusewire.options import FALLBACK
from fusewire.plan.plan import HOST, Plan
from fusewire.planning.planner import Planned, make_plan, taken_whole
from fusewire.planning.target import Target
from tests.toy import picky_backend

CPU = Device("cpu", "test")
REFERENCE = Target(ReferenceBackend(), CPU)
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def target(name: str, *refused: str, shapes: Any = "dynamic") -> Target:
    return Target(picky_backend(name, refused, shapes), CPU)


def traced(function: Any, *specs: fw.Spec) -> Graph:
    return fw.trace(function, *(specs or (fw.Spec(("n", 4), "float32"),)))


def places(planned: Planned) -> dict[str, str]:
    return {node.op: planned.backend_of(node) for node in planned.plan.graph.nodes}


def values(plan: Plan, inputs: list[Any]) -> list[Any]:
    """Interpret the regions of a plan in order, each for itself."""
    held: list[Any] = [*inputs, *plan.constants, *[None] * plan.places]
    for step in plan.steps:
        verify(step.region.graph)
        outputs = interpret(step.region.graph, [held[place] for place in step.inputs])
        for place, value in zip(step.outputs, outputs, strict=True):
            held[place] = value
    return [held[place] for place in plan.outputs]


def same(graph: Graph, planned: Planned, *inputs: Any) -> None:
    for got, want in zip(values(planned.plan, [*inputs]), interpret(graph, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_each_node_goes_to_the_first_that_takes_it() -> None:
    graph = traced(lambda x: np.exp(np.sin(x)) + np.cos(np.floor(x)))
    order = [target("a", "sin", "cos", "floor"), target("b", "cos", "floor"), target("c", "floor")]
    planned = make_plan(graph, [*order, REFERENCE], REFERENCE)
    wanted = {"exp": "a", "add": "a", "sin": "b", "cos": "c", "floor": FALLBACK}
    assert places(planned) == wanted
    same(graph, planned, X)
    assert [node.op for node in planned.refused_nodes()] == ["sin", "floor", "cos"]
    (node,) = planned.fallback_nodes()
    assert node.op == "floor"
    assert planned.fallback_nodes()[node] == (
        "a does not run floor. b does not run floor. c does not run floor."
    )
    (warning,) = planned.warnings()
    assert warning.startswith("1 of 5 nodes run on none of a, b and c and run on reference")


def test_without_the_reference_others_still_take_their_part() -> None:
    graph = traced(lambda x: np.exp(np.sin(x)))
    planned = make_plan(graph, [target("a", "sin"), target("b")], REFERENCE)
    assert places(planned) == {"sin": "b", "exp": "a"}
    assert planned.warnings() == []
    assert planned.plan.crossings() == 1
    with pytest.raises(RefusedError, match=r"run on none of a, b\..*a does not run sin"):
        make_plan(graph, [target("a", "sin"), target("b", "sin")], REFERENCE)


def test_later_target_gets_simpler_ops_and_the_first_keeps_its_nodes() -> None:
    graph = traced(lambda x: np.tanh(np.expm1(np.sin(x))) * 2)
    # The first has neither the primitive nor its parts; the second has the parts.
    first = target("first", "expm1", "exp", "where", "subtract", "log", "sinh", "divide", "equal")
    planned = make_plan(graph, [first, target("second", "expm1"), REFERENCE], REFERENCE)
    assert FALLBACK not in places(planned).values()
    assert "expm1" not in places(planned)
    assert places(planned)["sin"] == places(planned)["tanh"] == "first"
    assert planned.claims["second"].expanded == {"expm1": "second does not run expm1."}
    assert set(planned.claims["first"].graph.nodes) == set(planned.plan.graph.nodes)
    (got,) = values(planned.plan, [X])
    np.testing.assert_allclose(got, np.tanh(np.expm1(np.sin(X))) * 2, rtol=1e-6)
    # What the first refused whole, it refuses in parts.
    refused = {node.op for node in planned.refused_nodes()}
    assert refused
    assert refused.isdisjoint({"sin", "tanh"})


def test_composite_in_part_goes_whole_to_a_later_target() -> None:
    graph = traced(lambda x: np.sin(ops.softmax(np.cos(x), axis=-1)))
    first = target("first", "softmax", "exp")
    planned = make_plan(graph, [first, target("second"), REFERENCE], REFERENCE)
    assert places(planned) == {"cos": "first", "softmax": "second", "sin": "first"}
    assert len(planned.plan.steps) == 3
    same(graph, planned, X)
    # All of it in parts on the first is better than any cut.
    whole = make_plan(graph, [target("first", "softmax"), target("second"), REFERENCE], REFERENCE)
    assert set(places(whole).values()) == {"first"}
    # Nobody takes it whole: each gets its parts.
    parts = make_plan(graph, [first, target("second", "softmax"), REFERENCE], REFERENCE)
    assert places(parts)["exp"] == "second"
    assert places(parts)["divide"] == "first"


def _choice(x: Any) -> Any:
    return ops.cond(
        np.sum(x) > 0, x, then=lambda v: np.sin(v) * 2, otherwise=lambda v: np.exp(v) / 2
    )


def test_control_flow_goes_whole_to_the_first_engine_that_takes_it() -> None:
    graph = traced(_choice)
    planned = make_plan(graph, [target("a", "sin"), target("b"), REFERENCE], REFERENCE)
    assert places(planned)["cond"] == "b"
    # The reference takes none whole, so that engines run what they take of the bodies.
    planned = make_plan(graph, [target("a", "sin"), target("b", "exp"), REFERENCE], REFERENCE)
    assert places(planned)["cond"] == HOST
    ((bodies),) = planned.bodies.values()
    assert places(bodies["then"]) == {"sin": "b", "multiply": "a"}
    assert places(bodies["otherwise"]) == {"exp": "a", "divide": "a"}
    planned = make_plan(graph, [target("a", "sin"), REFERENCE], REFERENCE)
    assert places(planned)["cond"] == HOST


def test_region_moves_only_to_a_target_that_takes_and_checks_as_much() -> None:
    graph = traced(lambda x: np.exp(np.sin(x)))
    mine = target("a")
    assert taken_whole(target("b"), graph, mine) == "dynamic"
    assert taken_whole(target("b", "sin"), graph, mine) is None
    # One executable serves all sizes, and this target compiles for each.
    assert taken_whole(target("b", shapes="static"), graph, mine) is None
    sized = traced(lambda x: np.exp(np.sin(x)), fw.Spec((3, 4), "float32"))
    assert taken_whole(target("b", shapes="static"), sized, mine) == "static"
    taking = traced(lambda x, i: np.take(x, i), fw.Spec((8,), "float32"), fw.Spec((2,), "int64"))
    assert taken_whole(target("b"), taking, mine) == "dynamic"
    # The reference checks indices, and the plan counts on that.
    assert taken_whole(target("b"), taking, REFERENCE) is None
