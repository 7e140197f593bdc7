"""Rank candidates by the intervals of pairs: one is faster if its interval ends before the other's.

A candidate has times by protocol: those of the race, in children, and those of a duel, in the
process of the program. Only times of one protocol are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Those that may be chosen: judged answers come before unjudged ones.
ORDER = {"right": 0, "cannot say": 0, "not judged": 1}
# The interval of a median in a race, and in a duel.
_PROTOCOLS = (("low", "high"), ("here_low", "here_high"))
Interval = tuple[float | None, float | None]


def is_below(one: Interval, other: Interval) -> bool:
    """Tell whether one interval ends before another begins; one sample has no interval."""
    high, low = one[1], other[0]
    return high is not None and low is not None and high < low


def faster_than_chosen(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the candidates that may be right and are faster than the chosen one beyond intervals.

    The rows are those of ``Tried`` as plain data.
    """
    for chosen in [row for row in rows if row["is_chosen"]]:
        for row in rows:
            may_serve = row["status"] in ORDER and not row["is_barred"]
            if may_serve and any(_is_faster(row, chosen, *ends) for ends in _PROTOCOLS):
                yield row


def _is_faster(row: Mapping[str, Any], other: Mapping[str, Any], low: str, high: str) -> bool:
    return is_below((row[low], row[high]), (other[low], other[high]))


def open_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say that the chosen candidate is beaten in its own table; "" if it is not."""
    names = [str(row["name"]) for row in faster_than_chosen(rows)]
    if not names:
        return ""
    chosen = next(row["name"] for row in rows if row["is_chosen"])
    verb = "was" if len(names) == 1 else "were"
    return (
        f"Not settled: {chosen} is used, and {' and '.join(names)} {verb} faster in a comparison."
    )
