"""Engines that compile for long are left out of quick searches, which say so."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.context import CompileContext
from fusewire.decider import Decider
from fusewire.options import LONG_BUDGET, Options
from fusewire.records.keys import decision_fields, file_key
from fusewire.registry import REGISTRY

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
    assert f"budget of {LONG_BUDGET:.0f} s or more" in row.reason
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
    assert decision_fields(quick, 1) != decision_fields(long, 1)
    assert file_key("digest", (), True, quick) != file_key("digest", (), True, long)
    assert file_key("digest", (), True, quick) == file_key(
        "digest", (), True, Options(budget_seconds=LONG_BUDGET - 1)
    )
