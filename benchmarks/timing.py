"""Time several ways of doing the same thing fairly: interleaved, medians, the noise beside.

Machines are shared. Every round runs every way once, in an order that turns, with a pause between
them so that threads which spin after a call do not take the next way's core.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def start_environment() -> dict[str, str]:
    """Return the variables of a process whose start is timed: modules are compiled once for all.

    Those of an installed wheel are.
    """
    return {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Timing:
    """Seconds a call took, each round one sample."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, over the median."""
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / 2 / self.median


def interleaved(
    ways: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    rounds: int = 1000,
    least: int = 9,
    pause: float = 0.002,
    warm: int = 3,
    burst: float = 0.0,
) -> dict[str, Timing]:
    """Time every way in turn, for so many seconds or rounds, at least ``least`` times.

    A call shorter than ``burst`` seconds is timed in a row of calls that takes about as long, after
    one that is not timed, and a sample is the mean of the row: a pause leaves cold caches, which
    cost a short call more than itself.
    """
    for call in ways.values():
        for _ in range(warm):
            call()
    names = list(ways)
    counts = {name: _count(call, burst) for name, call in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    done = 0
    while done < least or (done < rounds and time.perf_counter() < end):
        turn = done % len(names)
        for name in names[turn:] + names[:turn]:
            time.sleep(pause)
            found[name].append(_sample(ways[name], counts[name]))
        done += 1
    return {name: Timing(tuple(samples)) for name, samples in found.items()}


def _count(call: Callable[[], object], burst: float) -> int:
    """Say how many calls make a sample."""
    return max(1, round(burst / min(_sample(call, 1) for _ in range(3)))) if burst else 1


def _sample(call: Callable[[], object], count: int) -> float:
    """Time one call as it comes, or several in a row after one that is not timed."""
    if count > 1:
        call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def ratio(left: Timing, right: Timing) -> float:
    """Give the median of the rounds' ratios: what disturbs a round disturbs both."""
    pairs = zip(left.samples, right.samples, strict=True)
    return statistics.median(a / b for a, b in pairs)
