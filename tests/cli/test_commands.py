"""Every command: a table for people, JSON for programs, and help."""

import json

import pytest
from click.testing import CliRunner

from fusewire.cli import COMMANDS, main
from fusewire.ops.table import all_ops


def _run(*words: str) -> str:
    done = CliRunner().invoke(main, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


ARGUMENTS = {"conform": ("reference", "--op", "gelu", "--op", "add", "--slice", "1/8")}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_command_prints_a_table_and_json(name: str) -> None:
    words = (name, *ARGUMENTS.get(name, ()))
    assert "━" in _run(*words)
    assert json.loads(_run(*words, "--json"))


def test_help_lists_every_command() -> None:
    text = _run("--help")
    assert all(name in text for name in COMMANDS)


def test_ops_lists_every_op_with_its_dtypes_and_what_it_lacks() -> None:
    rows = {row["name"]: row for row in json.loads(_run("ops", "--json"))}
    assert rows.keys() == all_ops().keys()
    assert len(rows) >= 170
    for row in rows.values():
        assert row["dtypes"]
        assert {"empty", "scalar", "broadcast"} == {*row["cases"], *row["lacks"]}


def test_unknown_family_lists_the_known_ones() -> None:
    done = CliRunner().invoke(main, ["ops", "--family", "nothing"])
    assert done.exit_code == 2
    assert "elementwise" in done.output


def test_backends_name_the_reference_and_where_it_comes_from() -> None:
    (row,) = [row for row in json.loads(_run("backends", "--json")) if row["name"] == "reference"]
    assert row["state"] == "ready"
    assert row["distribution"] == "fusewire"
    assert row["devices"][0]["id"] == "cpu"
