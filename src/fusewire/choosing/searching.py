"""Searches that come after a race, found by entry point: each improves on the result before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fusewire.choosing.budget import DecisionBudget
from fusewire.choosing.race import Progress, Race, RaceResult
from fusewire.contract.backend import Config
from fusewire.errors import EngineError, NoneRightError, RegistryError
from fusewire.ir.graph import Graph, HostValue
from fusewire.options import Accuracy
from fusewire.process.guard import guarded
from fusewire.records.entries import Records
from fusewire.registry import REGISTRY
from fusewire.trials.trial import TrialRunner


@dataclass(frozen=True)
class SearchSetup:
    """What a search is given: the graph and the inputs of the race, and what the user asked for.

    ``tunes`` asks for configurations of kernels, and an ``accuracy`` that is not exact allows less
    precision. With ``is_thorough``, nothing is passed over.
    """

    graph: Graph
    inputs: Sequence[HostValue]
    runner: TrialRunner
    records: Records
    config: Config
    budget: DecisionBudget
    accuracy: Accuracy
    tunes: bool = False
    is_thorough: bool = False
    seed: int = 0
    progress: Progress = lambda what, share: None


# Races what it finds against the best candidate so far; a search that nobody asked for, or that
# finds nothing faster, returns the result as it is.
Improve: TypeAlias = Callable[[SearchSetup, Race, RaceResult], RaceResult]


def improved(setup: SearchSetup, race: Race, result: RaceResult) -> RaceResult:
    """Have the installed searches improve on a result, in the order of their names.

    One that cannot be imported, or fails, leaves the result as it is, and a note says so.
    """
    for name in REGISTRY.searches.names():
        try:
            search = REGISTRY.searches.get(name)
            better = guarded(name, "run", "the search", _attempt, search, setup, race, result)
        except RegistryError as error:
            result = _left_out(result, name, str(error))
        except EngineError as error:
            result = _left_out(result, name, error.reason)
        else:
            if isinstance(better, NoneRightError):
                raise better
            result = better
    return result


def _attempt(
    search: Improve, setup: SearchSetup, race: Race, result: RaceResult
) -> RaceResult | NoneRightError:
    """Search; returns the error that ends the race, which the guard would translate."""
    try:
        better = search(setup, race, result)
    except NoneRightError as error:
        return error
    if not isinstance(better, RaceResult):
        raise TypeError(f"it returned a {type(better).__name__}, not a RaceResult")
    return better


def _left_out(result: RaceResult, name: str, reason: str) -> RaceResult:
    return replace(result, notes=(*result.notes, f"The search {name!r} is left out. {reason}"))
