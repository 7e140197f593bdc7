"""Every rule fires on its example, alone and in the pipeline, keeps types and keeps values."""

from __future__ import annotations

import numpy as np
import pytest

from fusewire.dtypes import dtype
from fusewire.facts.known import Facts
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.interpret import interpret
from fusewire.ops.movement import transpose
from fusewire.rewrite import pipeline
from fusewire.rewrite.pattern import maker
from fusewire.rewrite.pipeline import run_pipeline
from fusewire.rewrite.rule import Outcome, Rule, on
from fusewire.rewrite.rules import TABLES
from tests.rewrite.check import rule_problems

RULES = [rule for table in TABLES for rule in table.rules]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_fires_on_its_example_and_keeps_its_meaning(rule: Rule) -> None:
    problems = rule_problems(rule)
    assert not problems, "\n".join(problems)


def test_rules_have_names_of_their_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("first", "between", "last", "is_short"),
    [
        # What stops at a limit must not wrap, and what rounds must not stay exact.
        ("int32", "float64", "int8", False),
        ("int8", "float32", "uint8", False),
        ("uint32", "float64", "int32", False),
        ("int32", "float32", "int64", False),
        ("int8", "float32", "int32", True),
        ("uint16", "float32", "int32", True),
        ("int32", "int64", "int8", True),
        ("int32", "float64", "float32", True),
    ],
)
def test_cast_by_way_of_another_dtype_is_shortened_where_nothing_changes(
    first: str, between: str, last: str, is_short: bool
) -> None:
    x = Value(TensorType(dtype(first), (7,)), "x")
    graph = Graph([x], [cast(cast(x, dtype=between), dtype=last)])
    rewritten = run_pipeline(graph).graph
    assert [node.op for node in rewritten.nodes] == ["cast"] * (1 if is_short else 2)
    least, most = dtype(first).range
    numbers = [least, most, most - 1, 0, 1, min(300, most), max(-300, least)]
    array = np.array(numbers, dtype(first).numpy)
    (expected,), (answer,) = (interpret(of, [array]) for of in (graph, rewritten))
    np.testing.assert_array_equal(answer, expected)


def _swap_back(node: Node, facts: Facts) -> Outcome:
    inner = maker(node.inputs[0], "transpose")
    is_undone = inner is not None and inner.attrs["perm"] == node.attrs["perm"] == (0, 2, 1)
    return inner.inputs[0] if inner and is_undone else None


SWAPPED_TWICE = Rule(
    "swapped-twice",
    ("transpose",),
    "Axes that are swapped twice are where they were.",
    on(lambda x: transpose(transpose(x, perm=(0, 2, 1)), perm=(0, 2, 1)), "T[n, 3, 2]"),
    _swap_back,
)


def test_rule_that_an_earlier_one_makes_dead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "RULES", [*RULES, SWAPPED_TWICE])
    (problem,) = rule_problems(SWAPPED_TWICE)
    assert "does not fire on its example in the pipeline" in problem
    monkeypatch.setattr(pipeline, "RULES", [SWAPPED_TWICE, *RULES])
    assert not rule_problems(SWAPPED_TWICE)
