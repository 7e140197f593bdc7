"""Choose the rows of a call by measuring: the fewest that are about as fast as any."""

from __future__ import annotations

import time
from collections.abc import Callable

# Sizes double until a call takes so long, or two sizes in a row are no faster per row.
_LONGEST_CALL = 1.0
_ENOUGH = 0.05
_CALLS, _SECONDS = 5, 0.2
MOST_ROWS = 4096


def measured_batch_size(call: Callable[[int], object], most: int) -> tuple[int, dict[int, float]]:
    """Return the smallest size within 5% of the fastest, and rows per second by size.

    ``call`` runs that many rows; sizes are powers of two, at most ``most`` and MOST_ROWS.
    """
    rates: dict[int, float] = {}
    size, slower = 1, 0
    while size <= min(most, MOST_ROWS) and slower < 2:
        best = _seconds(call, size)
        rate = size / best
        slower = slower + 1 if rates and rate < (1 + _ENOUGH) * max(rates.values()) else 0
        rates[size] = rate
        if best > _LONGEST_CALL:
            break
        size *= 2
    fastest = max(rates.values())
    return min(size for size, rate in rates.items() if rate * (1 + _ENOUGH) >= fastest), rates


def _seconds(call: Callable[[int], object], size: int) -> float:
    """Time the quickest of a few calls; the first one may compile, and does not count."""
    call(size)
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while not times or (len(times) < _CALLS and time.perf_counter() < end):
        start = time.perf_counter()
        call(size)
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)
