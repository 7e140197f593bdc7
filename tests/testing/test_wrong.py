"""Engines that are wrong on purpose: each kind changes what it says, and a jury catches it."""

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.judge import Judge
from fusewire.contract.backend import Config, Device
from fusewire.contract.region import build
from fusewire.ir.graph import Graph
from fusewire.ops.interpret import Interpreter
from fusewire.plan.transfer import to_host
from fusewire.testing.chaos import ChaosBackend
from fusewire.testing.wrong import KINDS, SWAPPED, Spoiler, WrongEngine, moved, swapped

X = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)
ROWS = np.random.default_rng(4).integers(-9, 9, (6, 5)).astype(np.int32)


def model() -> Graph:
    return fw.trace(lambda x, n: (np.tanh(x) - x @ np.eye(5, dtype=np.float32), n * 3), X, ROWS)


@pytest.mark.parametrize("kind", [*KINDS, SWAPPED])
def test_chaos_is_wrong_by_name_and_the_jury_catches_it(kind: str) -> None:
    graph = model()
    executable = build(ChaosBackend(kind, "run"), graph, Device("cpu", "chaos"), Config())
    judged = Judge(graph, [X, ROWS]).judge(lambda given: list(executable.run(given)))
    assert judged.status == "wrong", kind
    assert judged.kind == ("edges" if kind == "special" else "given")


def test_jury_finds_nothing_where_chaos_does_nothing() -> None:
    graph = model()
    executable = build(ChaosBackend("none", "run"), graph, Device("cpu", "chaos"), Config())
    judged = Judge(graph, [X, ROWS]).judge(lambda given: list(executable.run(given)))
    assert judged.status == "right", judged.reason


def test_wrong_only_later_is_right_at_first() -> None:
    graph = model()
    executable = build(ChaosBackend("bias", "rerun"), graph, Device("cpu", "chaos"), Config())
    first, later = (to_host(executable.run([X, ROWS])[0]) for _ in range(2))
    right = Interpreter(graph)([X, ROWS])[0]
    assert np.array_equal(first, right)
    assert not np.array_equal(later, right)


def test_size_of_a_fault_is_what_was_asked_for() -> None:
    x = np.arange(40, dtype=np.float32).reshape(5, 8)
    for kind, wrong in KINDS.items():
        if wrong.is_sized and kind not in ("scaled", "coarse", "negative", "special"):
            spoiler = Spoiler(kind, [np.full(x.shape, 0.125)])
            first, (found,) = spoiler([x])[0], spoiler([x])
            off = np.abs(found - x)
            assert off.max() == 0.125, kind
            assert kind != "second" or np.array_equal(first, x)


def test_integers_and_booleans_move_by_a_step() -> None:
    mask = np.array([True, False])
    assert moved(np.array([3, 3], np.uint8), np.zeros(2), mask).tolist() == [4, 3]
    assert moved(np.array([True, True]), np.zeros(2), mask).tolist() == [False, True]


def test_fault_in_one_node_reaches_what_depends_on_it() -> None:
    graph = model()
    (node,) = [node for node in graph.nodes if node.op == "tanh"]
    found = WrongEngine(graph, Spoiler("element"), node)([X, ROWS])
    right = Interpreter(graph)([X, ROWS])
    assert np.sum(found[0] != right[0]) == 1
    assert np.array_equal(found[1], right[1])


def test_graph_without_operands_to_swap_is_left() -> None:
    assert swapped(fw.trace(np.exp, X)) is None
    graph = fw.trace(lambda x: np.tanh(x) - x, X)
    other = swapped(graph)
    assert other is not None
    assert np.array_equal(Interpreter(other)([X])[0], -Interpreter(graph)([X])[0])
