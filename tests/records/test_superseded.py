"""Records of splits and of concurrent regions, by earlier versions: engines are compared again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
# What earlier versions recorded of a choice, or of its plan, by level 2.
SUPERSEDED = {"placing": [[1, 0], [2, 0]], "is_concurrent": True, "turns": ["onnxruntime"]}
SENTENCE = "which Fusewire no longer does."


def model(x: Any) -> Any:
    return np.exp(x) @ np.cos(x).T


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file, and few engines."""
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["onnxruntime", "reference"])
    fw.save_onnx(fw.trace(model, X), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def raced(path: Path, **options: Any) -> bool:
    """Compile the file as another process would; tell whether engines were compared."""
    said: list[str] = []
    options = {"level": 2, "start": "measured", "budget_seconds": 60.0, **options}
    program = fw.compile(path, **options, progress=lambda what, share: said.append(what))
    np.testing.assert_allclose(program(X), model(X), rtol=1e-4)
    return any(what.startswith("trying") for what in said)


def write_into(store: Store, fields: dict[str, Any]) -> None:
    """Give all plans and decisions of the store fields that earlier versions wrote."""
    for entry in list(store.entries("plan")):
        data = json.loads(store.get(entry.key) or b"")
        saved = data.get("row", data)
        for name, value in fields.items():
            part = saved.get("plan") if name == "turns" else saved["choice"]
            if part is not None:
                part[name] = value
        store.put(entry.key, json.dumps(data).encode())


def test_records_with_nothing_of_it_are_used(store: Store, path: Path) -> None:
    assert raced(path)
    write_into(store, {name: type(value)() for name, value in SUPERSEDED.items()})
    assert not raced(path)


@pytest.mark.parametrize("name", ["placing", "is_concurrent"])
def test_records_with_it_are_refused_with_a_sentence_and_compared_again(
    name: str, store: Store, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert raced(path)
    write_into(store, {name: SUPERSEDED[name]})
    caplog.set_level("INFO", "fusewire")
    assert raced(path)
    said = [x.getMessage() for x in caplog.records if SENTENCE in x.getMessage()]
    assert [x.partition(".")[0] for x in said] == [
        "A recorded plan is not used",
        "A recorded decision is not used",
    ]
    # That is recorded in their place.
    caplog.clear()
    assert not raced(path)
    assert not [x for x in caplog.records if SENTENCE in x.getMessage()]


def test_plan_with_turns_is_refused_with_a_sentence_and_planned_again(
    store: Store, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert raced(path)
    write_into(store, {"turns": SUPERSEDED["turns"]})
    caplog.set_level("INFO", "fusewire")
    # The decision says nothing of them.
    assert not raced(path)
    (said,) = [x.getMessage() for x in caplog.records if SENTENCE in x.getMessage()]
    assert said.startswith("A recorded plan is not used. It runs regions at the same time")
