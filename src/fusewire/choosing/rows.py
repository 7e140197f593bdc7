"""Rows about candidates, as people read them: what each is, and which come first."""

from __future__ import annotations

import math

from fusewire.planning.candidates import Candidate, Unfit
from fusewire.runtime.why import Tried

# An answer that was judged comes before one that was not; whatever else there is, is no answer.
ORDER = {"right": 0, "cannot say": 0, "not judged": 1}


def worth(row: Tried) -> tuple[bool, bool, float, str]:
    """Sort rows: the chosen one, then the others by their time, then what gave no answer."""
    is_out = row.status not in ORDER
    return not row.is_chosen, is_out, row.seconds if row.seconds is not None else math.inf, row.name


def described(candidate: Candidate) -> Tried:
    """Say what a candidate is, before anything is known about it."""
    home, plan = candidate.home, candidate.planned.plan
    left = candidate.planned.left_over()
    first = next((f"{node!r}: {reason}" for node, reason in left.items()), "")
    return Tried(
        candidate.name,
        home.name,
        home.device.id,
        candidate.form,
        "not judged",
        regions=len(plan.regions()),
        elsewhere=len(left),
        elsewhere_why=first,
        is_software=home.device.is_software,
        options=dict(candidate.options),
    )


def unfit(found: Unfit) -> Tried:
    """Say why a backend is no candidate."""
    home = found.home
    return Tried(
        found.name,
        home.name,
        home.device.id,
        "native",
        "refused",
        found.reason,
        is_software=home.device.is_software,
    )
