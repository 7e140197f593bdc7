"""SECURITY.md: every clause names tests, and every test that is named exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HEAD = "| Clause | Shown by |"


@cache
def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def clauses() -> list[str]:
    """Give the rows of the tables of clauses."""
    tables = PAGE.split(HEAD)[1:]
    return [
        line
        for table in tables
        for line in table.partition("\n\n")[0].splitlines()
        if line.startswith("| ")
    ]


def test_the_page_has_clauses_for_every_stage() -> None:
    stages = [line for line in PAGE.splitlines() if line.startswith("### ")]
    assert len(stages) == PAGE.count(HEAD) >= 4
    assert len(clauses()) >= 20


@pytest.mark.parametrize("clause", clauses())
def test_clause_names_tests_that_exist(clause: str) -> None:
    named = NAMED.findall(clause)
    assert named, "a clause without a test"
    for file, name in named:
        assert name.startswith("test_")
        assert name in functions_in(ROOT / file), f"{file}::{name}"
