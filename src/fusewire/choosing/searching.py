"""What searches share that come after a race: each improves on the result of the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusewire.choosing.budget import DecisionBudget
from fusewire.choosing.race import Progress, Race, RaceResult
from fusewire.contract.backend import Config
from fusewire.ir.graph import Graph, HostValue
from fusewire.options import Accuracy
from fusewire.records.entries import Records
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
