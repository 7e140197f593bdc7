"""Engines that compile for long are left out of quick searches, which say so."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.findings import Findings
from fusewire.contract.backend import Artifact
from fusewire.options import LONG_BUDGET, Options
from fusewire.planning.candidates import Candidate
from fusewire.records.keys import decision_fields, file_key
from fusewire.registry import REGISTRY
from fusewire.session.context import CompileContext
from fusewire.session.decider import Decider
from fusewire.show.ranks import ORDER
from fusewire.show.why import Tried
from tests.toy import SLOW_COMPILE_SECONDS

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.usefixtures("store")
def test_quick_search_leaves_it_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["inductor", "reference"])
    asked: list[str] = []
    meet = type(REGISTRY).meet

    def seen(self: Any, name: str, **options: Any) -> Any:
        asked.append(name)
        return meet(self, name, **options)

    monkeypatch.setattr(type(REGISTRY), "meet", seen)
    program = fw.compile(fw.trace(lambda x: np.exp(x) + 1, X), start="measured", budget_seconds=5)
    program(X)
    (row,) = [row for row in program.why().tried if row.backend == "inductor"]
    assert row.status == "left out"
    assert "compiling takes about 30 s" in row.reason
    assert f"budget of {LONG_BUDGET:.0f} s or more, ask for level=2" in row.reason
    # Not even its device is looked for.
    assert "inductor" not in asked


def test_engine_whose_compiler_is_missing_is_left_out_of_every_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick, long = (Decider(CompileContext(Options(budget_seconds=x))) for x in (20, LONG_BUDGET))
    assert quick.with_long_budget() is not None
    assert long.with_long_budget() is None
    monkeypatch.setenv("PATH", "/nowhere")
    for decider in (quick, long):
        assert "compiles with g++, which is not here" in decider._left_out()["inductor"]
        # A longer search would change nothing.
        assert decider.with_long_budget() is None


def test_decisions_of_quick_and_of_long_searches_have_different_keys() -> None:
    quick, long = Options(), Options(budget_seconds=LONG_BUDGET)
    assert decision_fields(quick, 1, REGISTRY) != decision_fields(long, 1, REGISTRY)
    assert file_key("digest", (), True, quick) != file_key("digest", (), True, long)
    assert file_key("digest", (), True, quick) == file_key(
        "digest", (), True, Options(budget_seconds=LONG_BUDGET - 1)
    )
    assert decision_fields(Options(level=2), 2, REGISTRY) != decision_fields(quick, 2, REGISTRY)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have one engine besides the reference, which compiles for long."""
    name = fw.register("tests.toy:slow")
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: [name, "reference"])
    yield
    fw.unregister(name)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("level", "is_left_out"), [(1, True), (2, False), (3, False)])
def test_level_2_includes_it_whatever_the_budget(level: int, is_left_out: bool) -> None:
    graph = fw.trace(grown, X)
    program = fw.compile(graph, X, start="measured", level=level, budget_seconds=30)
    (row,) = [row for row in program.why().tried if row.backend == "slow"]
    assert (row.status == "left out") == is_left_out
    assert (row.status in ORDER) != is_left_out


def raced(function: Any, **options: Any) -> Tried:
    """Race with time for slow compilers, and return the row of the one there is."""
    program = fw.compile(
        fw.trace(function, X), start="measured", budget_seconds=LONG_BUDGET, **options
    )
    np.testing.assert_allclose(program(X), function(X), rtol=1e-5)
    (row,) = [row for row in program.why().tried if row.backend == "slow"]
    return row


def grown(x: Any) -> Any:
    return np.exp(x) + 1


@pytest.mark.timing
@pytest.mark.usefixtures("store", "slow")
def test_what_takes_long_to_compile_is_compiled_once() -> None:
    first = raced(grown)
    assert first.status in ORDER
    assert first.compile_seconds is not None
    assert first.compile_seconds >= SLOW_COMPILE_SECONDS
    # Another question: nothing else of the first race is recalled for it.
    second = raced(grown, max_crossings=5)
    assert second.status in ORDER
    assert second.compile_seconds is not None
    assert second.compile_seconds < SLOW_COMPILE_SECONDS


@pytest.mark.usefixtures("store", "slow")
def test_recorded_artifact_that_does_not_load_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raced(grown)
    recalled = Findings.slow_artifact

    def spoilt(self: Findings, candidate: Candidate) -> Artifact | None:
        artifact = recalled(self, candidate)
        return artifact and replace(artifact, payload=b"spoilt")

    monkeypatch.setattr(Findings, "slow_artifact", spoilt)
    row = raced(grown, max_crossings=5)
    assert row.status in ORDER
    assert row.compile_seconds is not None
    assert row.compile_seconds >= SLOW_COMPILE_SECONDS


@pytest.mark.usefixtures("store", "slow")
def test_slow_compiler_is_compared_only_where_it_takes_all_of_a_graph() -> None:
    row = raced(lambda x: np.exp(np.sin(np.cos(x))))
    assert row.status == "refused"
    assert "only where it takes all of it. slow does not run sin." in row.reason
