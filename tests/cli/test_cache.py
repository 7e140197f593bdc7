"""`fusewire cache`: every subcommand as a table and as JSON, with its exit codes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fusewire.cli import main
from fusewire.store.disk import Store
from fusewire.store.key import Key

NEW = Key.of("measurement", graph="ab", engine="openvino 2026.4", threads=2)
OLD = Key.of("measurement", graph="ab", engine="openvino 2026.3", threads=2)
CODE = Key.of("artifact", graph="ab", engine="openvino 2026.4")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["cache", *words], catch_exceptions=False)


def read(*words: str) -> Any:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("FUSEWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    found = Store()
    for key in (NEW, OLD):
        found.put(key, b'{"seconds": 1}')
    found.put(CODE, bytes(2000))
    return found


def bad_file(store: Store, key: Key) -> None:
    (store.path / f"{key.digest}.entry").write_bytes(b"rubbish")


def test_ls_counts_kinds_and_lists_one(store: Store) -> None:
    counts = {row["kind"]: row["entries"] for row in read("ls")["kinds"]}
    assert (counts["measurement"], counts["artifact"], counts["plan"]) == (2, 1, 0)
    (row,) = read("ls", "artifact")["entries"]
    assert row["digest"] == CODE.digest
    assert row["fields"] == {"graph": "ab", "engine": "openvino 2026.4"}
    assert "2.2 kB" in run("ls").output
    assert CODE.digest[:12] in run("ls", "artifact").output


def test_why_names_what_differs_from_the_nearest(store: Store) -> None:
    found = read("why", NEW.digest[:8])
    assert found["is_right"]
    assert found["nearest"] == OLD.digest
    assert found["differs"] == [
        {"field": "engine", "nearest": "openvino 2026.3", "this": "openvino 2026.4"}
    ]
    assert "openvino 2026.3" in run("why", NEW.digest[:8]).output
    assert "no other artifact" in run("why", CODE.digest[:8]).output


@pytest.mark.parametrize(
    "words",
    [
        ("why", "zz"),
        ("why", ""),
        ("prune", "--to", "much"),
        ("ls", "nothing"),
        ("export", "f", "--kind", "artifact"),
        ("import", "missing"),
    ],
)
def test_wrong_words_end_with_2(store: Store, words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


def test_verify_ends_with_1_when_something_was_bad_and_then_with_0(store: Store) -> None:
    bad_file(store, OLD)
    done = run("verify", "--json")
    assert done.exit_code == 1
    assert len(json.loads(done.output)["bad"]) == 1
    assert read("verify") == {"good": 2, "bad": [], "swept": 0}


@pytest.mark.parametrize(("to", "left"), [("1GB", 3), ("1.5kB", 2), ("0", 0), ("2 KiB", 2)])
def test_prune_leaves_what_was_used_last(store: Store, to: str, left: int) -> None:
    assert store.get(OLD) is not None
    os.utime(store.path / f"{CODE.digest}.entry", (1, 1))
    assert read("prune", "--to", to)["entries"] == left


def test_export_and_import_carry_data(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("export", "file") == {"kept": {"measurement": 2}, "present": 0, "refused": []}
    assert read("export", "code", "--with-code")["kept"] == {"measurement": 2, "artifact": 1}
    monkeypatch.setenv("FUSEWIRE_CACHE", str(store.path.parent / "other"))
    assert read("import", "file")["kept"] == {"measurement": 2}
    assert read("import", "file")["present"] == 2
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(store.path.parent / "theirs"))
    assert "1 refused" in run("import", "code").output


def test_import_of_something_else_ends_with_1(store: Store) -> None:
    Path("file").write_bytes(b"something else")
    done = run("import", "file")
    assert done.exit_code == 1
    assert "was not written by" in done.output


def test_cache_that_cannot_be_used_ends_with_1_and_the_reason(store: Store) -> None:
    store.path.chmod(0o755)
    done = run("ls")
    assert done.exit_code == 1
    assert "chmod 700" in done.output


def test_text_of_strangers_does_not_reach_the_terminal(store: Store) -> None:
    store.put(Key.of("tuning", name="\x1b[31m[red]x[/]\ud800"), b"{}")
    shown = run("ls", "tuning").output
    assert "\x1b" not in shown
    assert "[red]" in shown
