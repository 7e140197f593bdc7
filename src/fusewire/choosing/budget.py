"""The budget of a decision: a bound in wall-clock time that every part of it keeps to.

A decision may take a quarter more than its budget, plus two seconds: the start of engines, the
oracle and the verdicts are within that. The parts end one after another, so that what comes last,
choosing the fastest right candidate, always has time.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

# Budgets to suggest.
_STEPS = (5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)


@dataclass(frozen=True)
class DecisionBudget:
    """So many seconds from ``start``, a time of ``time.monotonic()``."""

    seconds: float
    start: float = field(default_factory=lambda: time.monotonic())

    @property
    def used(self) -> float:
        """The share of the budget that is used; more than 1 once it is exceeded."""
        return (time.monotonic() - self.start) / max(self.seconds, 1e-3)

    def end(self, share: float, extra: float = 0.0) -> float:
        """Return the time at which a share of the budget, and so many seconds more, are used."""
        return self.start + share * self.seconds + extra

    @property
    def attempts_end(self) -> float:
        """When a candidate that is still compiling is given up."""
        return self.end(0.85, 0.5)

    @property
    def judging_ends(self) -> float:
        """When verdicts end that are not needed to choose."""
        return self.end(0.95, 0.5)

    @property
    def oracle_ends(self) -> float:
        """When the oracle must have its answer: then the fastest candidate is chosen unjudged."""
        return self.end(1.05, 0.75)

    @property
    def latest(self) -> float:
        """When an oracle that had to wait must have its answer."""
        return self.end(1.2, 1.0)


def left_until(end: float) -> float:
    """Return the seconds until a time, 0 if it is past."""
    return max(end - time.monotonic(), 0.0)


@dataclass(frozen=True)
class Coverage:
    """How many candidates were compared, of how many that could be, and a budget for all."""

    compared: int
    candidates: int
    budget_seconds: float

    @staticmethod
    def of(compared: int, left: int, seconds: float) -> Coverage:
        """Estimate the budget that covers all, after so many seconds covered some."""
        wanted = 1.5 * max(seconds, 1.0) * (compared + left) / max(compared, 1)
        fitting = (step for step in _STEPS if step >= wanted)
        return Coverage(compared, compared + left, next(fitting, math.ceil(wanted)))

    def sentence(self) -> str:
        """Say what was left out, and what would cover it."""
        return (
            f"{self.compared} of {self.candidates} candidates were compared; "
            f"budget_seconds={self.budget_seconds:g} compares all."
        )
