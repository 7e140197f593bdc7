"""A memory limit chooses the fastest plan that keeps to it, and refuses only if none does."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import BudgetError
from fusewire.ir.live import bytes_at_peak, call_bytes
from fusewire.store.disk import Store

X = np.linspace(-1, 1, 1 << 18, dtype=np.float32).reshape(512, 512)
OPTIONS: Any = {"start": "measured", "level": 1, "isolate": "never", "budget_seconds": 30.0}


def fused(x: Any) -> Any:
    """Op by op, three arrays are live at once; a compiler that fuses holds one and a row."""
    return np.sum(np.exp(x) * np.sin(x), axis=0)


def chosen(limit: int | None, **more: Any) -> Any:
    options = {**OPTIONS, **more}
    return fw.compile(fw.trace(fused, X), X, backend="auto", memory_limit=limit, **options)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have these engines alone, in this order."""
    from fusewire.registry import REGISTRY

    def choose(*names: str) -> None:
        monkeypatch.setattr(REGISTRY.backends, "names", lambda: list(names))

    return choose


def test_limit_chooses_an_engine_that_holds_less(only: Any, store: Store) -> None:
    del store
    only("onnxruntime", "xla")
    program = chosen(2 * X.nbytes)
    np.testing.assert_allclose(program(X), fused(X), rtol=1e-3, atol=1e-3)
    why = program.why()
    assert why.backend == "xla"
    rows = {row.backend: row for row in why.tried}
    assert f"holds {3 * X.nbytes:,} bytes at once" in rows["onnxruntime"].reason
    faster = (rows["onnxruntime"].seconds or 1) < (rows["xla"].seconds or 0)
    said = [note for note in why.notes if f"because memory_limit={2 * X.nbytes:,}" in note]
    assert bool(said) == faster
    (change,) = program.explain().changes
    assert "onnxruntime needs more" in change.sentence()
    # The plan is recalled, and so is why.
    again = chosen(2 * X.nbytes)
    np.testing.assert_array_equal(again(X), program(X))
    assert again.why().backend == "xla"
    assert [note for note in again.why().notes if "because memory_limit" in note] == said


def test_note_says_what_the_fastest_plan_needs() -> None:
    from fusewire.choosing.race import Race
    from fusewire.show.why import Tried

    race = Race.__new__(Race)
    rows = {"a": 0.001, "b": 0.002}
    race._memory_limit, race._bytes = 100, {"a": 300, "b": 50}
    race._rows = {n: Tried(n, n, "cpu", "native", "right", seconds=s) for n, s in rows.items()}
    race._trials = dict.fromkeys(rows)  # type: ignore[assignment] # only names are looked at
    assert list(race._memory_notes("b")) == [
        "b is chosen because memory_limit=100: the fastest plan, a, needs 300 bytes at once, and b "
        "50."
    ]
    race._memory_limit = 1000
    assert list(race._memory_notes("a")) == []


def test_without_a_limit_or_within_it_nothing_changes(only: Any) -> None:
    only("onnxruntime")
    for limit in (None, 4 * X.nbytes):
        why = chosen(limit).why()
        assert why.backend == "onnxruntime"
        assert not any("memory_limit" in note for note in why.notes)


def test_refusal_names_the_smallest_plan(only: Any) -> None:
    only("onnxruntime", "openvino")
    count = f"{3 * X.nbytes:,}"
    with pytest.raises(
        BudgetError, match=rf"The smallest, \w+, needs {count}\. Raise memory_limit"
    ):
        chosen(2 * X.nbytes)(X)


def test_calls_of_an_engine_that_plans_its_memory_go_by_its_plan() -> None:
    options: Any = {"backend": "xla", "level": 0, "isolate": "never", "memory_limit": 2 * X.nbytes}
    program = fw.compile(fused, X, **options)
    np.testing.assert_allclose(program(X), fused(X), rtol=1e-3, atol=1e-3)
    # What it returns alone is too large.
    large = fw.compile(lambda x: (np.exp(x), np.sin(x), np.cos(x)), X, **options)
    with pytest.raises(BudgetError, match="Raise memory_limit"):
        large(X)


def test_xla_plans_what_a_run_takes() -> None:
    program = fw.compile(fused, X, backend="xla", level=0, isolate="never")
    program(X)
    program(X)
    (entry,) = program._entries.values()
    runner: Any = entry.runner
    (loaded,) = runner._runners[0]._made.values()
    assert X.shape[1] * 4 <= loaded.run_bytes() < 2 * X.nbytes


def test_xla_is_not_asked_what_it_planned_unless_there_is_a_limit(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    del store
    from fusewire.backends.xla import loading

    asked = []

    def count(executable: Any) -> int:
        asked.append(executable)
        return 1

    monkeypatch.setattr(loading, "planned_bytes", count)
    for _ in range(2):
        # The second time it is loaded from the records.
        program = fw.compile(fused, X, backend="xla", level=0, isolate="first")
        program(X)
        program(X)
    assert asked == []


def test_call_in_a_child_goes_by_what_the_engine_planned_there() -> None:
    def many(x: Any) -> Any:
        parts = [np.exp(x * i) for i in range(14)]
        whole = sum(parts)
        # All of them are live until their sum is known.
        return np.sum(sum(part * whole for part in parts), axis=0)

    # The limit holds for the child with the engine's library, too.
    x = np.full((3584, 3584), 0.1, np.float32)
    limit = 12 * x.nbytes
    options: Any = {"backend": "xla", "level": 0, "isolate": "always", "memory_limit": limit}
    program = fw.compile(many, x, **options)
    for _ in range(2):
        np.testing.assert_allclose(program(x), many(x), rtol=1e-3)
    assert program.why().backend == "xla"


@pytest.mark.parametrize("backend", ["onnxruntime", "xla"])
def test_refused_call_builds_nothing(backend: str) -> None:
    options: Any = {"level": 0, "isolate": "never", "memory_limit": 1 << 20, "cache": False}
    rows = fw.Spec(("n", 512), "float32")
    program = fw.compile(lambda x: np.exp(x) * np.sin(x), rows, backend=backend, **options)
    with pytest.raises(BudgetError, match="Raise memory_limit"):
        program(np.zeros((1024, 512), np.float32))
    assert program.why().contacts == ()
    assert program(X[:8]).shape == (8, 512)


def test_first_answer_waits_for_a_plan_that_fits(only: Any) -> None:
    only("onnxruntime", "xla", "reference")
    program = chosen(2 * X.nbytes, start="now")
    np.testing.assert_allclose(program(X), fused(X), rtol=1e-3, atol=1e-3)
    assert program.state == "settled"
    assert program.why().backend == "xla"


def test_bodies_count() -> None:
    def loop(x: Any) -> Any:
        start = np.zeros((), np.int64), x
        return fw.ops.while_(
            *start, condition=lambda i, s: i < 3, body=lambda i, s: (i + 1, np.exp(s) * np.sin(s))
        )[1]

    graph = fw.trace(loop, fw.Spec(("n", 64), "float32"))
    size = 512 * 64 * 4
    # The result, what the round before made, and what is live within a round: exp, sin, product.
    assert call_bytes(graph, [(512, 64)]) >= 5 * size
    assert call_bytes(graph, [(512, 64)]) < 6 * size
    plain = fw.trace(lambda x: np.exp(x) * np.sin(x), X)
    assert bytes_at_peak(plain, {}) == 3 * X.nbytes
    program = fw.compile(
        loop, fw.Spec(("n", 64), "float32"), memory_limit=4 * size, level=0, isolate="never"
    )
    assert program(np.zeros((64, 64), np.float32)).shape == (64, 64)
    with pytest.raises(BudgetError, match="memory_limit"):
        program(np.zeros((512, 64), np.float32))
