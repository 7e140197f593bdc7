"""Random graphs mean the same after every rewrite; `benchmarks/random_graphs.py` runs many more."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusewire.ops.elementwise import add
from fusewire.ops.table import verify
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.rule import Rule, on
from tests.random_graphs import FromHypothesis, FromRandom, random_graph
from tests.rewrite import random_check
from tests.rewrite.random_check import Tally, failures

QUIET = settings(
    deadline=None, derandomize=True, suppress_health_check=[*HealthCheck], max_examples=40
)


@QUIET
@given(st.data())
def test_rewrites_keep_what_random_graphs_compute(data: st.DataObject) -> None:
    found = random_graph(FromHypothesis(data), 8)
    problems = list(failures(found, Tally()))
    assert not problems, "\n".join([*problems, str(found.graph)])


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_are_valid_and_the_same_for_the_same_seed(seed: int) -> None:
    first, second = (random_graph(FromRandom(seed), 10).graph for _ in range(2))
    verify(first)
    assert [node.op for node in first.nodes] == [node.op for node in second.nodes]


def test_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Rule(
        "wrong",
        ("add",),
        "Loses the second operand.",
        on(add, "T[n]", "T[n]"),
        lambda node, facts: x if (x := node.operands[0]).type == node.types[0] else None,
    )
    planted = {"planted": lambda graph: simplify(graph, [wrong])}
    monkeypatch.setattr(random_check, "REWRITES", planted)
    graphs = (random_graph(FromRandom(seed), 10) for seed in range(60))
    assert any(problem for found in graphs for problem in failures(found, Tally()))
