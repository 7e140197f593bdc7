"""Every rule fires on its example, keeps types and keeps values."""

from __future__ import annotations

import pytest

from fusewire.rewrite.rule import Rule
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
