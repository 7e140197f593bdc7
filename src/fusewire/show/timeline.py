"""Times of the steps of a plan in real runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RegionTime:
    """One step of the run that is shown: when it began, and how long it took, in seconds.

    ``median``, ``low`` and ``high`` are those of the same step in all runs.
    """

    region: str
    backend: str
    start: float
    seconds: float
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timeline:
    """The run of median length among several, step by step.

    Steps are waited for one by one, so that a plan with devices takes longer than a call of it.
    """

    runs: int
    seconds: float
    spans: tuple[RegionTime, ...]
