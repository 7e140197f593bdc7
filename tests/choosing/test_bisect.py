"""The first wrong node is found, alone or in the least company, with few compilations."""

import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.bisect import Build, engine, find_culprit
from fusewire.choosing.judge import Run
from fusewire.contract.backend import Config, Device
from fusewire.errors import EngineRaised
from fusewire.ir.graph import Graph, Node
from fusewire.ops.interpret import Interpreter
from fusewire.testing.wrong import Spoiler, WrongEngine

X = np.random.default_rng(5).normal(size=(8, 6)).astype(np.float32)
W = np.random.default_rng(6).normal(size=(6, 6)).astype(np.float32) / 3


def deep(x: Any) -> Any:
    for _ in range(12):
        x = np.tanh(x @ W) + 0.5 * x
    left, right = np.sin(x), np.cos(x)
    return left * right + np.exp(-np.abs(left @ right.T @ x))


GRAPH = fw.trace(deep, X)


def places(op: str) -> list[int]:
    return [place for place, node in enumerate(GRAPH.nodes) if node.op == op]


def wrong_at(chosen: Callable[[Graph], Node | None], kind: str = "element") -> Build:
    """Compile on an engine that is wrong at one node of a graph."""

    def build(graph: Graph) -> Run:
        node = chosen(graph)
        return Interpreter(graph) if node is None else WrongEngine(graph, Spoiler(kind), node)

    return build


def nth(op: str, count: int) -> Callable[[Graph], Node | None]:
    """Choose by the number of nodes of this op before it, as prefixes have them all."""

    def chosen(graph: Graph) -> Node | None:
        found = [node for node in graph.nodes if node.op == op]
        # Alone it is the only one.
        return (
            found[min(count, len(found) - 1)] if len(found) in (1, *range(count + 1, 99)) else None
        )

    return chosen


@pytest.mark.parametrize(("op", "count"), [("matmul", 0), ("tanh", 7), ("sin", 0), ("exp", 0)])
@pytest.mark.parametrize("kind", ["element", "nan", "second", "stale"])
def test_first_wrong_node_is_found_and_is_wrong_alone(op: str, count: int, kind: str) -> None:
    culprit = find_culprit(GRAPH, [X], wrong_at(nth(op, count), kind))
    assert culprit is not None
    assert (culprit.place, culprit.op) == (places(op)[count], op)
    assert culprit.alone
    assert [node.op for node in culprit.region.nodes] == [op]
    assert culprit.steps <= math.log2(len(GRAPH.nodes)) + 4
    assert culprit.judged.status == "wrong"


def test_right_engine_has_no_culprit() -> None:
    assert find_culprit(GRAPH, [X], Interpreter) is None


def test_mistake_of_a_fusion_is_shown_by_its_nodes_together() -> None:
    def pair(graph: Graph) -> Node | None:
        """Be wrong about a product whose operands the engine has not given away."""
        kept = {v.node for v in graph.outputs}
        for node in graph.nodes:
            makers = [v.node for v in node.operands]
            if node.op == "multiply" and all(
                m is not None and m.op in ("sin", "cos") and m not in kept for m in makers
            ):
                return node
        return None

    culprit = find_culprit(GRAPH, [X], wrong_at(pair))
    assert culprit is not None
    assert not culprit.alone
    assert sorted(node.op for node in culprit.region.nodes) == ["cos", "multiply", "sin"]
    assert culprit.judged.status == "wrong"
    got = wrong_at(pair)(culprit.region)(culprit.inputs)[0]
    off = np.abs(got - culprit.expected[0].wide) > culprit.expected[0].tolerance
    assert off.any()


def test_prefix_that_the_engine_does_not_run_is_passed_over() -> None:
    last = places("tanh")[8]

    def build(graph: Graph) -> Run:
        if len(graph.nodes) in (last, len(GRAPH.nodes) // 2):
            raise EngineRaised("it does not want to")
        return wrong_at(nth("tanh", 8))(graph)

    culprit = find_culprit(GRAPH, [X], build)
    assert culprit is not None
    assert abs(culprit.place - last) <= 1


def test_search_ends_when_time_is_up() -> None:
    assert find_culprit(GRAPH, [X], wrong_at(nth("exp", 0)), deadline=time.monotonic()) is None


def test_engine_in_a_child_is_searched_like_any() -> None:
    reference = "fusewire.testing.chaos:channel_at_run"
    graph = fw.trace(lambda x: np.tanh(np.exp(x) + 1) * x, X)
    culprit = find_culprit(graph, [X], engine(reference, Device("cpu", "chaos"), Config()))
    assert culprit is not None
    assert (culprit.place, culprit.op, culprit.alone) == (0, "exp", True)
    assert json.loads(json.dumps(culprit.to_data()))["nodes"] == ["exp"]


def test_graph_of_open_sizes_is_searched_at_the_sizes_given() -> None:
    graph = fw.trace(lambda x: np.tanh(x) + np.exp(x).sum(0), fw.Spec(("n", 6), "float32"))
    culprit = find_culprit(graph, [X], wrong_at(nth("exp", 0)))
    assert culprit is not None
    assert culprit.op == "exp"
    assert str(culprit.region.inputs[0].type) == "float32[8, 6]"
