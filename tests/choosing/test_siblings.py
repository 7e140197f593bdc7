"""An engine that compiles for long is not tried where it was behind with the same blocks."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.options import LONG_BUDGET
from fusewire.registry import REGISTRY
from fusewire.runtime.why import Tried
from fusewire.store.disk import Store
from fusewire.store.key import Key

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
OPTIONS: Any = {
    "start": "measured",
    "budget_seconds": LONG_BUDGET,
    "level": 2,
    "fallback": "error",
    "isolate": "never",
}
Model = Callable[[Any], Any]


def blocks(x: Any) -> Any:
    """Eight nodes, of which ``glacier`` and ``hills`` are slow at one."""
    return np.tanh(np.exp(np.tanh(np.cos(np.exp(np.tanh(np.exp(np.tanh(x))))))))


def like(x: Any) -> Any:
    return np.sqrt(blocks(x))


def half(x: Any) -> Any:
    """Half of it is the same."""
    for function in (np.arctan, np.sinh, np.arctan, np.sinh, np.arctan, np.sinh):
        x = function(x)
    return blocks(x)


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = [fw.register(f"tests.toy:{x}", x) for x in ("dales", "hills", "glacier", "slope")]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: [*names[:3], "reference"])
    yield
    for name in names:
        fw.unregister(name)


def rows(function: Model, folder: Path | None = None, **options: Any) -> dict[str, Tried]:
    """Compile a function, as a file if a folder is given, and return what was tried."""
    model: Any = fw.trace(function, X)
    if folder is not None:
        fw.save_onnx(model, folder / f"{function.__name__}.onnx")
        model = folder / f"{function.__name__}.onnx"
    program = fw.compile(model, X, **OPTIONS | options)
    np.testing.assert_allclose(program(X), function(X), rtol=1e-5)
    return {row.name: row for row in program.why().tried}


def notes(store: Store) -> list[Key]:
    return [x.key for x in store.entries("measurement") if "segment" in dict(x.key.fields)]


def test_file_with_the_same_blocks_leaves_it_out(store: Store, tmp_path: Path) -> None:
    assert rows(blocks, tmp_path)["glacier"].seconds
    found = rows(like, tmp_path)
    assert found["glacier"].status == "not tried"
    reason = found["glacier"].reason
    assert " times as long as " in reason
    assert "for a model that shares 90% of its work with this one" in reason
    assert "compiles for about 30 s. `fusewire bench` tries it all the same." in reason
    # As slow, and quick to compile: it may be part of a split.
    assert found["hills"].seconds


def test_options_that_were_far_behind_are_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["dales", "slope", "glacier", "reference"]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: names)
    first = rows(blocks)
    assert first["slope uphill=True"].seconds
    assert first["glacier"].seconds
    found = rows(like)
    assert found["slope uphill=True"].status == "not tried"
    reason = found["slope uphill=True"].reason
    assert "of its work with this one. `fusewire bench` tries it" in reason
    # As it is, it may be part of a split.
    assert found["slope"].seconds
    # What the second model noted keeps what the first one did.
    found = rows(lambda x: np.cbrt(blocks(x)))
    assert {found[name].status for name in ("glacier", "slope uphill=True")} == {"not tried"}


def test_model_of_which_half_is_known_is_searched_in_full(store: Store) -> None:
    rows(blocks)
    assert rows(half)["glacier"].seconds


def test_small_part_of_a_model_says_nothing_about_it(store: Store) -> None:
    # All that it consists of is known, and is a little of what was raced.
    rows(half)
    assert rows(lambda x: np.arctan(np.sinh(x)))["glacier"].seconds


def test_other_settings_do_not_count(store: Store) -> None:
    rows(blocks)
    assert rows(like, threads=1)["glacier"].seconds


def test_only_what_was_behind_one_that_is_tried_is_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(blocks)
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["hills", "glacier"])
    rows(like)
    keys = notes(store)
    for key in keys:
        held = json.loads(store.get(key) or b"[]")
        store.put(key, json.dumps([{**row, "rival": "another"} for row in held]).encode())
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["dales", "hills", "glacier"])
    assert rows(lambda x: np.sqrt(like(x)))["glacier"].seconds


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"{}",
        b"[1]",
        b'[{"graph": "a", "share": 1.0, "name": "glacier", "rival": "dales", "times": 1'
        + b"0" * 400
        + b"}]",
        b'[{"graph": "a", "share": 1.0, "name": "glacier", "rival": "dales", "times": Infinity}]',
        b'[{"graph": "a", "share": 9.0, "name": "glacier", "rival": "dales", "times": 2.0}]',
        b'[{"graph": "a", "share": 1.0, "name": "glacier", "rival": "dales", "times": 0.5}]',
    ],
)
def test_records_that_make_no_sense_are_not_used(store: Store, payload: bytes) -> None:
    rows(blocks)
    for key in notes(store):
        store.put(key, payload)
    assert rows(like)["glacier"].seconds
