"""What an exact form loses of a NaN or an infinity is found by one run of the reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.judge import Judge
from fusewire.ir.graph import Graph, HostValue
from fusewire.ops.interpret import Interpreter

X = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
SPEC = fw.Spec((3, 4), "float32")


def traced(function: Any) -> Graph:
    return fw.trace(function, SPEC)


def judged(graph: Graph, run: Any) -> Any:
    return Judge(graph, [X]).judge(run, keeps_nan=True)


LOSSES = {
    "max": lambda x: np.max(x, axis=1),
    "relu": lambda x: np.maximum(x, 0),
    "whole": lambda x: np.max(x) - x,
    "exp": np.exp,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_wrong_and_named(name: str) -> None:
    graph = traced(LOSSES[name])
    honest = Interpreter(graph)
    assert judged(graph, honest).status == "right"
    assert "poison" in judged(graph, honest).sets

    def losing(inputs: Sequence[HostValue]) -> list[HostValue]:
        return honest([np.nan_to_num(np.asarray(x)) for x in inputs])

    found = judged(graph, losing)
    assert (found.status, found.kind) == ("wrong", "poison")
    assert "loses a NaN or an infinity of an input" in found.reason
    # Own nodes that are mended otherwise are not asked for it.
    assert Judge(graph, [X]).judge(losing).status == "right"


@pytest.mark.parametrize("poison", [np.inf, -np.inf])
def test_an_infinity_alone_counts(poison: float) -> None:
    graph = traced(lambda x: x * 2)
    honest = Interpreter(graph)

    def losing(inputs: Sequence[HostValue]) -> list[HostValue]:
        return [np.where(x == poison, np.float32(3e38), x) for x in honest(inputs)]

    assert judged(graph, losing).kind == "poison"


def test_what_the_reference_leaves_open_is_not_held_against_an_engine() -> None:
    zeros = np.zeros((4, 2), np.float32)
    weights = np.array([[0, 1], [0, 1], [0, 1], [0, 1]], np.float32)

    def skips_zeros(inputs: Sequence[HostValue]) -> list[HostValue]:
        (found,) = Interpreter(graph)(inputs)
        made = np.asarray(found).copy()
        made[:, (weights == 0).all(0)] = 0
        return [made]

    # A term of a sum that is multiplied by zero.
    for constant in (zeros, weights):
        graph = traced(lambda x, constant=constant: x @ constant)
        weights = constant
        assert judged(graph, skips_zeros).status == "right"

    # 0 times infinity is a NaN that another formula of the same function does not have.
    graph = traced(lambda x: x / (1 + np.exp(-x)))

    def silu(inputs: Sequence[HostValue]) -> list[HostValue]:
        (x,) = map(np.asarray, inputs)
        return [np.where(np.isneginf(x), np.float32(0), np.asarray(Interpreter(graph)(inputs)[0]))]

    assert judged(graph, silu).status == "right"


def test_a_graph_that_does_not_take_it_leaves_it_out() -> None:
    graph = traced(lambda x: fw.ops.check(x + 1, np.sum(x) < 1e6, message="too large"))
    found = judged(graph, Interpreter(graph))
    assert found.status == "right"
    assert any(
        reason.startswith("poison: the reference does not take it") for reason in found.left_out
    )


def test_integers_have_none() -> None:
    graph = fw.trace(lambda x: x + 1, fw.Spec((3,), "int32"))
    found = Judge(graph, [np.arange(3, dtype=np.int32)]).judge(Interpreter(graph), keeps_nan=True)
    assert "poison: no input has floats" in found.left_out
