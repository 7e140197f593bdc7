"""The quarantine: what went wrong is held against that version, and no other."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fusewire.records.quarantine import Fact, quarantine, quarantined, release
from fusewire.store.disk import Store
from fusewire.store.key import Key

WRONG = Fact("wrong", "output[0] is 2, expected 1.", place="3", op="exp")


def artifact(**fields: object) -> Key:
    given = {"region": "ab", "backend": "engine", "options": "{}", "its_engine": "1.0"}
    return Key.of("artifact", **{**given, **fields})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def test_fact_is_found_by_another_process(store: Store) -> None:
    assert quarantined(store, artifact()) is None
    assert quarantine(store, artifact(), WRONG)
    found = quarantined(Store(store.path), artifact())
    assert found is not None
    assert replace(found, when="") == WRONG
    assert found.when.startswith("20")
    assert "node 3 (exp)" in found.sentence()


@pytest.mark.parametrize("change", ["region", "backend", "options", "its_engine"])
def test_fact_is_held_against_nothing_else(store: Store, change: str) -> None:
    quarantine(store, artifact(), WRONG)
    assert quarantined(store, artifact(**{change: "other"})) is None


def test_artifact_of_the_same_fields_is_not_the_fact(store: Store) -> None:
    quarantine(store, artifact(), WRONG)
    assert store.get(artifact()) is None


def test_hang_is_forgiven_who_has_more_time(store: Store) -> None:
    quarantine(store, artifact(), Fact("hung", "no answer in 5 s.", seconds=5.0))
    assert quarantined(store, artifact(), 5.0) is not None
    assert quarantined(store, artifact(), 60.0) is None
    quarantine(store, artifact(), Fact("crashed", "SIGSEGV.", seconds=5.0))
    assert quarantined(store, artifact(), 60.0) is not None


@pytest.mark.parametrize("code", ["raised", "out-of-memory", "unsupported"])
def test_what_the_engine_says_itself_is_no_fact(store: Store, code: str) -> None:
    assert not quarantine(store, artifact(), Fact(code, "it said so."))
    assert quarantined(store, artifact()) is None


def test_released_artifact_is_free(store: Store) -> None:
    quarantine(store, artifact(), WRONG)
    release(store, artifact())
    assert quarantined(store, artifact()) is None


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"[" * 100_000,
        b"[]",
        b"{}",
        *(
            json.dumps({**asdict(WRONG), **x}).encode()
            for x in (
                {"code": "fine"},
                {"code": 1},
                {"seconds": "5"},
                {"seconds": True},
                {"more": ""},
            )
        ),
    ],
)
def test_entry_that_is_no_fact_is_dropped(store: Store, held: Any) -> None:
    key = Key("quarantine", artifact().fields)
    store.put(key, held)
    assert quarantined(store, artifact()) is None
    assert store.get(key) is None
