"""Every rule fires on its example, alone and in the pipeline, keeps types and keeps values."""

from __future__ import annotations

import pytest

from fusewire.ir.graph import Node
from fusewire.ops.movement import transpose
from fusewire.rewrite import pipeline
from fusewire.rewrite.facts import Facts
from fusewire.rewrite.pattern import maker
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
