"""The quarantine: what went wrong is held against that version, and no other."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.records.quarantine import Fact, quarantine, quarantined, reconsider, release
from fusewire.store.disk import Store
from fusewire.store.exchange import export, take
from fusewire.store.key import Key

WRONG = Fact("wrong", "output[0] is 2, expected 1.", place="3", op="exp")
X = np.linspace(-1, 2, 24, dtype=np.float32).reshape(4, 6)
GRAPH = fw.trace(lambda x: np.tanh(x).sum(1), X)


def artifact(**fields: object) -> Key:
    given = {"region": "ab", "backend": "engine", "options": "{}", "its_engine": "1.0"}
    return Key.of("artifact", **{**given, **fields})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that programs use too."""
    monkeypatch.setattr("fusewire.session.context.shared_store", lambda: store)
    return store


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


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The cache of somebody else, who has another key."""
    with monkeypatch.context() as patch:
        patch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "theirs"))
        store = Store(tmp_path / "other")
        assert not store.is_off
    return store


def accused(store: Store, stranger: Store, code: str, **options: Any) -> Any:
    """Run a program, and have a stranger accuse what it runs; gives it compiled anew."""
    graph = fw.trace(lambda x: np.tanh(x).sum(1), X)
    fw.compile(graph, X, backend="onnxruntime", level=0)(X)
    (entry,) = store.entries("artifact")
    quarantine(stranger, entry.key, Fact(code, "\x1b[2Jnot to be trusted"))
    export(stranger, stranger.path / "known.fwx", {"quarantine"})
    assert take(store, stranger.path / "known.fwx").kept == {"quarantine": 1}
    options = {"backend": "onnxruntime", "level": 0, "fallback": "error", **options}
    options["start"] = "measured"
    # A graph: the user's own function is a candidate, too.
    return fw.compile(fw.trace(lambda x: np.tanh(x).sum(1), X), X, **options)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("code", ["wrong", "crashed"])
def test_accusation_of_a_stranger_has_an_engine_met_again_and_stops_nothing(
    code: str, level: int, whole: Store, stranger: Store
) -> None:
    program = accused(whole, stranger, code, level=level)
    np.testing.assert_allclose(program(X), np.tanh(X).sum(1), rtol=1e-5)
    why = program.why()
    assert why.backend == "onnxruntime"
    assert [entry.key for entry in whole.entries("quarantine")] == []
    if level == 0:
        # It was not loaded as it is: a child met it first.
        assert [contact.cache != "hit" for contact in why.contacts] == [True]
    else:
        assert [(way.status, way.cache) for way in why.tried] == [("right", "")]


def test_accusation_of_a_stranger_has_a_decision_made_again(whole: Store, stranger: Store) -> None:
    options = fw.Options(
        "onnxruntime", level=1, fallback="error", start="measured", budget_seconds=60.0
    )
    fw.compile(GRAPH, options=options)(X)
    artifacts = [entry.key for entry in whole.entries("artifact")]
    for key in artifacts:
        quarantine(stranger, key, WRONG)
    export(stranger, stranger.path / "known.fwx", {"quarantine"})
    take(whole, stranger.path / "known.fwx")
    for cache in ("", "hit"):
        again = fw.compile(GRAPH, options=options)
        np.testing.assert_allclose(again(X), np.tanh(X).sum(1), rtol=1e-5)
        assert again.why().tried[0].cache == cache


def test_own_accusation_keeps_its_force_when_it_comes_back(store: Store) -> None:
    quarantine(store, artifact(), WRONG)
    export(store, store.path / "known.fwx", {"quarantine"})
    release(store, artifact())
    take(store, store.path / "known.fwx")
    found = quarantined(store, artifact())
    assert found is not None
    assert not found.is_imported


def test_stranger_cannot_say_that_an_accusation_is_ours(store: Store, stranger: Store) -> None:
    quarantine(stranger, artifact(), replace(WRONG, is_imported=False))
    export(stranger, stranger.path / "known.fwx", {"quarantine"})
    take(store, stranger.path / "known.fwx")
    found = quarantined(store, artifact())
    assert found is not None
    assert found.is_imported
    assert reconsider(store, artifact())
    assert quarantined(store, artifact()) is None
    assert not reconsider(store, artifact())
