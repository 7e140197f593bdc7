"""Where less precision everywhere errs too much, parts of a graph are computed in less."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.mixing import MeasuredPart, Mixing, best_set
from fusewire.ir.graph import HostValue
from fusewire.registry import REGISTRY
from fusewire.show.why import Tried, Why
from fusewire.store.disk import Store
from fusewire.trials.trial import CandidateTrial

X = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
BOUND = 5e-4


def ripples(x: Any) -> Any:
    """Errors of the first two cosines hardly show, and those of the last one do."""
    return np.cos(x + 0.01 * np.cos(np.cos(x)))


@pytest.fixture(params=["grains", "sieve"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = fw.register(f"tests.toy:{request.param}", request.param)
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: [name, "reference"])
    yield name
    fw.unregister(name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(ripples, X), path)
    return path


def explained(
    model: Path, engine: str, accuracy: float, said: list[str] | None = None, budget: float = 12.0
) -> Why:
    """Choose as a new process would."""
    program = fw.compile(
        model,
        backend=engine,
        accuracy=accuracy,
        start="measured",
        budget_seconds=budget,
        isolate="never",
        progress=None if said is None else lambda what, share: said.append(what),
    )
    exact = ripples(X.astype(np.float64))
    assert np.linalg.norm(program(X) - exact) <= accuracy * np.linalg.norm(exact)
    why = program.why()
    assert isinstance(why, Why)
    return why


def chosen(why: Why) -> Tried:
    return next(row for row in why.tried if row.is_chosen)


@pytest.mark.parametrize("engine", ["sieve"], indirect=True)
def test_mixture_is_chosen_that_meets_the_bound(store: Store, model: Path, engine: str) -> None:
    why = explained(model, engine, BOUND)
    whole = next(row for row in why.tried if row.name == f"{engine} coarse=True")
    assert (whole.status, whole.is_reduced) == ("inaccurate", True)
    best = chosen(why)
    assert (best.status, best.is_reduced) == ("right", True), why.notes
    assert 0 < (best.expected_error or 0) <= BOUND
    # It leaves the last cosine exact in one region.
    assert (best.options, best.regions) == ({"coarse": True, "exact_nodes": "4"}, 1)
    sentence = next(note for note in why.notes if "of its 3 parts in less" in note)
    assert sentence.startswith(f"{engine} coarse=True errs too much. With 2 of its 3 parts")
    # No engine is to blame for an error that the user did not accept.
    assert not list(store.entries("quarantine"))


@pytest.mark.parametrize("engine", ["grains"], indirect=True)
def test_engine_that_leaves_no_single_nodes_exact_has_no_mixture(
    store: Store, model: Path, engine: str
) -> None:
    why = explained(model, engine, BOUND)
    assert not chosen(why).is_reduced
    assert "grains coarse=True errs too much, and has no parts to leave exact." in why.notes


@pytest.mark.parametrize("engine", ["sieve"], indirect=True)
def test_mixture_is_recalled(store: Store, model: Path, engine: str) -> None:
    first = chosen(explained(model, engine, BOUND))
    said: list[str] = []
    why = explained(model, engine, BOUND, said)
    assert not any("trying" in text or "measuring" in text for text in said)
    assert (chosen(why).name, chosen(why).status) == (first.name, "right")


@pytest.mark.parametrize("engine", ["sieve"], indirect=True)
def test_bound_that_no_part_meets_keeps_all_exact(store: Store, model: Path, engine: str) -> None:
    why = explained(model, engine, 1e-6)
    assert not chosen(why).is_reduced
    assert any(note.startswith("No mixture of 3 parts of sieve coarse=True") for note in why.notes)


@pytest.mark.parametrize("engine", ["sieve"], indirect=True)
def test_bound_that_all_of_it_meets_needs_no_mixture(
    store: Store, model: Path, engine: str
) -> None:
    said: list[str] = []
    assert chosen(explained(model, engine, 0.1, said)).name == "sieve coarse=True"
    assert not any("measuring part" in text for text in said)


@pytest.mark.parametrize("engine", ["sieve"], indirect=True)
def test_nothing_is_timed_when_the_budget_is_used_up(
    store: Store, model: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[CandidateTrial] = []
    quick_seconds = CandidateTrial.quick_seconds

    def noted(trial: CandidateTrial, inputs: Sequence[HostValue]) -> float:
        timed.append(trial)
        return quick_seconds(trial, inputs)

    monkeypatch.setattr(CandidateTrial, "quick_seconds", noted)
    # The race has all the time that it needs, and nothing is left after it.
    monkeypatch.setattr(Mixing, "seconds_left", lambda mixing: 0.0)
    why = explained(model, engine, BOUND)
    assert not timed
    assert not chosen(why).is_reduced
    assert "No time was left to mix precisions. Raise budget_seconds." in why.notes


def test_most_gain_within_the_bound_is_taken() -> None:
    parts = [MeasuredPart(0, 0.03, 2.0), MeasuredPart(1, 0.04, 1.0), MeasuredPart(2, 0.2, 9.0)]

    def numbers(bound: float, most: int = 3) -> list[int]:
        return [part.number for part in best_set(parts, bound, most)]

    # Independent errors: the root of the sum of squares.
    assert numbers(0.05) == [0, 1]
    assert numbers(0.049) == [0]
    assert numbers(0.2) == [2]
    assert numbers(0.5) == [0, 1, 2]
    # All of it was judged already.
    assert numbers(0.5, most=2) == [0, 2]
    assert numbers(0.01) == []
    # What gains nothing stays exact.
    assert best_set([MeasuredPart(0, 0.0, -1.0)], 1.0, 1) == ()
