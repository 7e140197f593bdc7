"""Independent regions run at the same time where that is measured to be faster, and only there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.measure import Comparison, Timing
from fusewire.choosing.overlap import leads
from fusewire.contract.backend import Config
from fusewire.errors import StoreError
from fusewire.records.plans import Choice
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store

X = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
OPTIONS: Any = {"start": "measured", "budget_seconds": 60.0, "fallback": "error"}


def heads(x: Any) -> Any:
    """Each branch has one op that takes 20 ms."""
    return np.tanh(x @ x) + np.sin(x @ x.T)


def small(x: Any) -> Any:
    return np.exp(x) + np.cos(x)


@pytest.fixture
def cliffs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    names = [fw.register(f"tests.toy:{name}", name) for name in request.param]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: [*names, "reference"])
    yield names
    for name in names:
        fw.unregister(name)


@pytest.mark.parametrize("cliffs", [["mesa", "butte"]], indirect=True)
def test_regions_of_a_list_of_engines_run_at_the_same_time(cliffs: list[str], store: Store) -> None:
    del store
    graph = fw.trace(heads, X)
    program = fw.compile(graph, X, **OPTIONS, level=1, backend=cliffs)
    np.testing.assert_allclose(program(X), heads(X), rtol=1e-4, atol=1e-4)
    why = program.why()
    assert why.is_concurrent, why.notes
    assert why.to_data()["is_concurrent"]
    (row,) = [row for row in why.tried if row.is_chosen]
    assert row.status == "right"
    assert "at the same time" in row.name
    (note,) = [note for note in why.notes if note.startswith("Independent regions")]
    assert "ms one after the other (noise" in note
    again = fw.compile(graph, X, **OPTIONS, level=1, backend=cliffs)
    np.testing.assert_array_equal(again(X), program(X))
    assert again.why().is_concurrent
    assert {row.cache for row in again.why().tried} == {"hit"}
    assert note in again.why().notes


@pytest.mark.parametrize("cliffs", [["plains", "butte"]], indirect=True)
def test_branches_are_placed_on_two_engines_at_level_2(cliffs: list[str]) -> None:
    del cliffs

    def branches(x: Any) -> Any:
        return np.sin(np.sin(x @ x)) + np.sin(np.sin(x @ x.T))

    program = fw.compile(fw.trace(branches, X), X, **OPTIONS, level=2)
    np.testing.assert_allclose(program(X), branches(X), rtol=1e-4, atol=1e-4)
    why = program.why()
    assert why.is_concurrent, why.notes
    assert len({node.backend for node in why.nodes if node.op == "sin"}) == 2


@pytest.mark.parametrize("cliffs", [["plains", "butte"]], indirect=True)
def test_small_branches_run_one_after_the_other(cliffs: list[str]) -> None:
    del cliffs
    x = np.ones((2, 2), np.float32)

    def tiny(x: Any) -> Any:
        return np.exp(np.exp(x)) + np.sqrt(np.abs(x))

    program = fw.compile(fw.trace(tiny, x), x, **OPTIONS, level=2)
    np.testing.assert_allclose(program(x), tiny(x), rtol=1e-5)
    assert not program.why().is_concurrent
    assert any("one after the other: " in note for note in program.why().notes)


@pytest.mark.parametrize("cliffs", [["mesa", "butte"]], indirect=True)
def test_lead_within_the_noise_keeps_them_one_after_the_other(
    cliffs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusewire.choosing.overlap.leads", lambda comparison, name, other: False)
    program = fw.compile(fw.trace(heads, X), X, **OPTIONS, level=1, backend=cliffs)
    np.testing.assert_allclose(program(X), heads(X), rtol=1e-4, atol=1e-4)
    assert not program.why().is_concurrent


@pytest.mark.parametrize("cliffs", [["mesa", "butte"]], indirect=True)
@pytest.mark.parametrize("options", [{"level": 0}, {"level": 1, "memory_limit": 1 << 30}])
def test_without_a_measurement_or_with_a_memory_limit_nothing_overlaps(
    cliffs: list[str], options: Any
) -> None:
    program = fw.compile(fw.trace(heads, X), X, **OPTIONS, backend=cliffs, **options)
    np.testing.assert_allclose(program(X), heads(X), rtol=1e-4, atol=1e-4)
    assert not program.why().is_concurrent


def test_lead_must_be_more_than_the_noise() -> None:
    def found(fast: float, slow: float, ties: tuple[str, ...] = ()) -> Comparison:
        timings = {"a": Timing((fast,) * 5), "b": Timing((slow,) * 5)}
        return Comparison(timings, "a", ties, 0.1, 5)

    assert leads(found(1.0, 1.2), "a", "b")
    assert not leads(found(1.0, 1.05), "a", "b")
    assert not leads(found(1.0, 1.2, ("b",)), "a", "b")


def test_decision_travels_in_a_bundle(tmp_path: Path) -> None:
    choice = Choice("onnxruntime", "cpu", is_concurrent=True, threads=1)
    assert Choice.from_data(choice.to_data()) == choice
    assert choice.config(Config(threads=4)).threads == 1
    # A choice of 0.1 has neither.
    old = {k: v for k, v in choice.to_data().items() if k not in ("is_concurrent", "threads")}
    assert Choice.from_data(old) == Choice("onnxruntime", "cpu")
    for change in ({"is_concurrent": 1}, {"threads": 0}, {"threads": True}, {"threads": 10**6}):
        with pytest.raises(StoreError):
            Choice.from_data({**choice.to_data(), **change})
