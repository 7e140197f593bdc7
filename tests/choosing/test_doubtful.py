"""A doubtful candidate is not used, not banned, and judged again on other inputs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.canary import Canary
from fusewire.choosing.measure import Comparison, Timing
from fusewire.errors import FallbackWarning, MiscompileWarning
from fusewire.ops.interpret import Interpreter
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store
from tests.toy import MARK, OFF

X = np.linspace(MARK, 2, 24, dtype=np.float32).reshape(4, 6)


def program(x: Any) -> Any:
    return np.exp(x) @ np.cos(x).T


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(program, X), path)
    return path


@pytest.fixture(autouse=True)
def slight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have one engine besides the reference, which seems to be faster."""

    def compare(contenders: Any, *rest: object, **more: object) -> Comparison:
        names = sorted(contenders, key=lambda name: name != "slight")
        return Comparison({name: Timing((1.0,)) for name in names}, names[0], (), 0.0, 1)

    name = fw.register("tests.toy:slight")
    names = [name, "reference"]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: names)
    monkeypatch.setattr("fusewire.choosing.race.compare", compare)
    yield
    fw.unregister(name)


def chosen(path: Path, x: Any) -> tuple[Any, bool]:
    """Choose as a new process would; tell why, and whether candidates raced."""
    said: list[str] = []
    options = fw.Options(
        level=1,
        start="measured",
        budget_seconds=60.0,
        fallback="allow",
        progress=lambda what, share: said.append(what),
    )
    made = fw.compile(path, options=options)
    np.testing.assert_allclose(made(x), program(x), rtol=1e-4)
    return made.why(), "trying slight" in said


def test_doubtful_one_is_not_used_and_not_banned(store: Store, model: Path) -> None:
    why, _ = chosen(model, X)
    rows = {row.backend: row for row in why.tried}
    assert why.backend == "reference"
    assert rows["slight"].status == "doubtful"
    assert 1 < (rows["slight"].error or 0) < 10
    assert any("slight is doubtful, and is not used this time" in note for note in why.notes)
    assert not list(store.entries("quarantine"))
    # The same inputs need no other race; another set does, and finds it right.
    assert not chosen(model, X)[1]
    why, raced = chosen(model, X[::-1])
    assert (why.backend, raced) == ("slight", True)
    # From then on it is settled, also for the first inputs.
    why, raced = chosen(model, X)
    assert (why.backend, raced) == ("slight", False)


def test_after_three_different_inputs_the_choice_is_settled(store: Store, model: Path) -> None:
    doubtful = [np.concatenate([X[:1], X[1:] * np.float32(scale)]) for scale in (1, 0.9, 0.8, 0.7)]
    assert [chosen(model, x)[1] for x in doubtful] == [True, True, True, False]
    assert not list(store.entries("quarantine"))


@pytest.mark.usefixtures("store")
def test_reference_serves_with_one_warning_if_nothing_is_right(model: Path) -> None:
    made = fw.compile(model, level=1, start="measured", budget_seconds=60.0)
    with pytest.warns(FallbackWarning, match="all of it runs on reference") as caught:
        found = made(X)
    np.testing.assert_array_equal(found, Interpreter(fw.trace(program, X))([X])[0])
    # The test run turns a second warning into an error.
    made(X)
    assert len(caught) == 1


def test_canary_checks_the_calls_after_a_doubtful_one_and_bans_nobody() -> None:
    graph = fw.trace(program, X)
    (right,) = Interpreter(graph)([X])
    canary = Canary(graph, 2, "slight", lambda inputs, verdict: pytest.fail("replanned"))

    def watch(answer: Any) -> str:
        verdict = canary.watch([X], [answer])
        return "" if verdict is None else verdict.status

    assert [watch(right), watch(right * OFF)] == ["", "doubtful"]
    # The next call is checked too, and clears it.
    assert [watch(right), watch(right), watch(right)] == ["right", "right", ""]
    with pytest.warns(MiscompileWarning, match="doubtful") as caught:
        found = [watch(right * OFF) for _ in range(6)]
    assert found == ["doubtful", "doubtful", "doubtful", "", "doubtful", ""][: len(found)]
    assert len(caught) == 1
