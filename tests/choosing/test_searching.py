"""Searches after a race are found by entry point, ours like anybody's."""

import sys
from importlib.metadata import EntryPoint
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing import mixing, tune
from fusewire.choosing.race import Race, RaceResult
from fusewire.choosing.searching import SearchSetup, improved
from fusewire.errors import EngineRaised, NoneRightError
from fusewire.registry import REGISTRY
from fusewire.registry.plugins import Plugins

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
NOTHING: Any = None
GROUP = "fusewire.searches"
seen: list[str] = []


def improve(setup: SearchSetup, race: Race, result: RaceResult) -> RaceResult:
    """Note what the race came to."""
    seen.append(result.chosen.name)
    return result


def failing(setup: SearchSetup, race: Race, result: RaceResult) -> RaceResult:
    raise KeyError("oops")


def crashing(setup: SearchSetup, race: Race, result: RaceResult) -> RaceResult:
    raise EngineRaised("Its engine raised.", "Run it on another backend.")


def none_right(setup: SearchSetup, race: Race, result: RaceResult) -> RaceResult:
    raise NoneRightError("No engine here gives a right answer.")


def forgetful(setup: SearchSetup, race: Race, result: RaceResult) -> None:
    """Return nothing."""


class NotOne:
    """What is no function."""


def install(monkeypatch: pytest.MonkeyPatch, **references: str) -> None:
    points = [EntryPoint(name, x, GROUP) for name, x in references.items()]
    monkeypatch.setattr(REGISTRY, "searches", Plugins(GROUP, FunctionType, points))


def notes(monkeypatch: pytest.MonkeyPatch, **references: str) -> tuple[str, ...]:
    """Improve on a result that has one note."""
    install(monkeypatch, **references)
    return improved(NOTHING, NOTHING, RaceResult((), NOTHING, notes=("The first.",))).notes


def test_ours_are_installed_and_in_order() -> None:
    names = REGISTRY.searches.names()
    assert names == ["mixtures", "tuning"], (
        "Entry points are those of an older pyproject.toml: run .ci/setup"
    )
    assert [REGISTRY.searches.get(x) for x in names] == [mixing.improve, tune.improve]


def test_search_of_another_package_gets_the_result_of_the_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen.clear()
    install(monkeypatch, own=f"{__name__}:improve")
    program = fw.compile(np.tanh, backend="reference", level=1, start="measured")
    np.testing.assert_allclose(program(X), np.tanh(X), rtol=1e-6)
    assert seen == ["reference"]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("no_such_module:improve", "No module named 'no_such_module'. Give a module"),
        (f"{__name__}:missing", "cannot be created"),
        (f"{__name__}:NotOne", "is a NotOne, not a function"),
        (f"{__name__}:failing", "own failed while running the search: KeyError: 'oops'"),
        (f"{__name__}:crashing", "Its engine raised."),
        (f"{__name__}:forgetful", "it returned a NoneType, not a RaceResult"),
    ],
)
def test_search_that_does_not_work_leaves_the_result_as_it_is(
    monkeypatch: pytest.MonkeyPatch, reference: str, says: str
) -> None:
    first, last = notes(monkeypatch, own=reference)
    assert first == "The first."
    assert last.startswith("The search 'own' is left out. ")
    assert says in last
    assert "another backend" not in last


def test_search_may_find_that_none_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoneRightError, match="No engine here"):
        notes(monkeypatch, own=f"{__name__}:none_right")


def test_no_search_is_imported_before_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, own="searches_that_wait:improve")
    fw.compile(np.tanh, backend="reference", level=0)(X)
    assert REGISTRY.searches.made("own") is None
    assert "searches_that_wait" not in sys.modules
