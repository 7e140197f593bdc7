"""Time ways of doing the same thing honestly, and say which is fastest or that nobody can tell.

Every round runs every way once, in an order that turns, so that what disturbs a round disturbs
all. A way starts when the one before has gone quiet: engines spin on after a call, and the next
would pay for it. The best of many measurements flatters itself, so finalists are timed anew, the
leader against itself as well: that is the noise, and a lead within it is none.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from fusewire.errors import StoreError
from fusewire.process.procfs import scheduled

# A sample is the median of so many seconds of calls, or of one call that is longer.
_BATCH = 0.01
_MOST_CALLS = 1000
# Batches before the first sample.
_WARMS = 4
# Threads that spin after a call end within this; those of ONNX Runtime take 50 ms.
_SETTLES, _TICK = 0.25, 0.004
# A sample during which threads waited this share of the time for a core is taken again.
_STOLEN, _RETAKES = 0.1, 2
# Ways that are this much slower leave after three rounds; any lead that is clear, after seven.
_HOPELESS, _LEAD = 1.5, 1.02
_FIRST, _CLEAR, _MOST_ROUNDS = 3, 7, 25
# Who is this close to the leader comes to the final, at most so many.
_CLOSE, _FINALISTS = 1.15, 3
AGAIN = "again"


@dataclass(frozen=True)
class Contender:
    """Runs a number of times and gives the seconds of each; ``pid`` is the process that works.

    It is asked for each time: a child that has done many jobs gives way to a new one.
    """

    run: Callable[[int], Sequence[float]]
    pid: Callable[[], int | None] = lambda: None


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: one sample for each round, and how many were taken again."""

    samples: tuple[float, ...]
    disturbed: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the median lies, with 95% confidence if there are six samples or more."""
        return interval(self.samples)

    @property
    def spread(self) -> float:
        """Half of that interval, over the median."""
        low, high = self.interval
        return (high - low) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True)
class Comparison:
    """What was found: the fastest, who cannot be told from it, and the noise.

    ``noise`` is how far the ratio of a way to itself may be from 1.
    """

    timings: Mapping[str, Timing]
    fastest: str
    ties: tuple[str, ...]
    noise: float
    rounds: int

    def without(self, name: str) -> Comparison | None:
        """Give what was found of the others; None if there are none."""
        rest = {other: timing for other, timing in self.timings.items() if other != name}
        if not rest:
            return None
        fastest = min(rest, key=lambda other: rest[other].median)
        return Comparison(rest, fastest, (), self.noise, self.rounds)

    def to_data(self) -> dict[str, Any]:
        """Give it as what JSON has."""
        return asdict(self)

    @staticmethod
    def from_data(held: Any) -> Comparison:
        """Read it back; StoreError when it is none."""
        try:
            timings = {
                str(name): Timing(tuple(map(float, row["samples"])), int(row["disturbed"]))
                for name, row in held["timings"].items()
            }
            found = Comparison(
                timings,
                str(held["fastest"]),
                tuple(map(str, held["ties"])),
                float(held["noise"]),
                int(held["rounds"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise StoreError(f"A comparison holds what is not of its kind: {error}.") from error
        if found.fastest not in timings or not set(found.ties) <= set(timings):
            raise StoreError("A comparison names ways that it does not have.")
        samples = [x for timing in timings.values() for x in timing.samples]
        is_good = all(timing.samples for timing in timings.values()) and found.noise >= 0
        if not is_good or not all(0 < x < math.inf for x in (*samples, 1 + found.noise)):
            raise StoreError("A comparison holds times that are none.")
        return found


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Give the samples between which the median lies with 95% confidence.

    Of fewer than six it is all of them, with less: 75% of three, 94% of five.
    """
    ordered = sorted(samples)
    out = _outside(len(ordered))
    return ordered[out], ordered[-1 - out]


@cache
def _outside(count: int) -> int:
    """Say how many samples at either end may be left out.

    Each is above or below the median as a coin falls: all intervals are missed in whole numbers.
    """
    out, missed = 0, 1 + count
    while 40 * missed <= 2**count:
        out += 1
        missed += math.comb(count, out + 1)
    return out


def compare(
    ways: Mapping[str, Contender],
    seconds: float,
    progress: Callable[[str], None] = lambda said: None,
    close: float = _CLOSE,
) -> Comparison:
    """Time ways, given in the order of preference, for about so many seconds.

    Those that take no more than ``close`` times as long as the best come to the final.
    """
    assert ways, "there is something to time"
    end = time.monotonic() + seconds
    names = list(ways)
    heats = _Rounds(ways)
    # A third is kept for the final.
    heats.go(names, time.monotonic() + seconds * 0.6, progress)
    found = heats.timings()
    best = min(names, key=lambda name: found[name].median)
    limit = close * found[best].median
    first = sorted((n for n in names if found[n].median <= limit), key=lambda n: found[n].median)
    finalists = [name for name in names if name in first[:_FINALISTS]]
    final = _Rounds({**{n: ways[n] for n in finalists}, AGAIN: ways[best]}, heats.calls)
    final.go([*finalists, AGAIN], end, progress, keep=(best, AGAIN))
    anew = final.timings()
    fastest = min(finalists, key=lambda name: anew[name].median)
    noise = final.noise(best)
    ties = [n for n in finalists if n != fastest and not final.is_behind(n, fastest, noise)]
    anew.pop(AGAIN)
    # Who cannot be told apart from the fastest, is as fast as far as was seen, and is preferred, is
    # taken. In loud surroundings most cannot be told apart, and the fastest is the better guess.
    limit = _LEAD * anew[fastest].median
    chosen = next(n for n in names if n == fastest or (n in ties and anew[n].median <= limit))
    others = tuple(name for name in finalists if name != chosen and name in (fastest, *ties))
    return Comparison({**found, **anew}, chosen, others, noise, final.rounds)


class _Rounds:
    """Samples of ways, by round; a way that has left has fewer."""

    def __init__(
        self, ways: Mapping[str, Contender], calls: Mapping[str, int] | None = None
    ) -> None:
        self._ways = ways
        self._samples: dict[str, list[float]] = {name: [] for name in ways}
        self._disturbed = dict.fromkeys(ways, 0)
        self.calls = dict(calls or {})
        self.rounds = 0

    def go(
        self,
        names: Sequence[str],
        end: float,
        progress: Callable[[str], None],
        keep: tuple[str, ...] = (),
    ) -> None:
        """Run rounds until all but one have left, the time is over, or enough was seen."""
        active = list(names)
        while self.rounds < _MOST_ROUNDS:
            turn = self.rounds % len(active)
            for name in active[turn:] + active[:turn]:
                progress(name)
                self._samples[name].append(self._sample(name))
            self.rounds += 1
            if time.monotonic() > end and self.rounds >= _FIRST:
                return
            active = self._left(active, keep)
            if self.rounds >= _CLEAR and len(active) <= max(1, len(keep)):
                return

    def _left(self, active: list[str], keep: tuple[str, ...]) -> list[str]:
        """Let those go that cannot win."""
        if self.rounds < _FIRST:
            return active
        best = min(active, key=lambda name: statistics.median(self._samples[name]))
        others = [name for name in active if name not in (best, *keep)]
        if AGAIN in keep and self.rounds >= _CLEAR:
            # Rounds go on until a lead is beyond the noise: the more of them, the less it is.
            noise = self.noise(keep[0])
            out = [name for name in others if self.is_behind(name, best, noise)]
        else:
            lead = _HOPELESS if self.rounds < _CLEAR else _LEAD
            out = [name for name in others if self.is_slower(name, best, lead)]
        return [name for name in active if name not in out]

    def is_behind(self, name: str, than: str, noise: float) -> bool:
        """Tell whether one is slower for sure, and by more than the noise."""
        return self.is_slower(name, than, 1.0) and (
            statistics.median(self._ratios(name, than)) > 1 + noise
        )

    def is_slower(self, name: str, than: str, lead: float) -> bool:
        """Tell whether one is slower by this factor, as far as the rounds of both show."""
        low, _ = interval(self._ratios(name, than))
        return low > lead

    def noise(self, name: str) -> float:
        """Tell how far the ratio of a way to itself is from 1."""
        return max(abs(end - 1) for end in interval(self._ratios(AGAIN, name)))

    def _ratios(self, name: str, than: str) -> list[float]:
        pairs = zip(self._samples[name], self._samples[than], strict=False)
        return [left / right for left, right in pairs]

    def timings(self) -> dict[str, Timing]:
        """Give what was found so far."""
        return {n: Timing(tuple(x), self._disturbed[n]) for n, x in self._samples.items() if x}

    def _sample(self, name: str) -> float:
        way = self._ways[name]
        if name not in self.calls:
            # The first call is not like the others; then threads wake up and caches fill, and only
            # calls that follow on each other tell how many make a sample.
            for _ in range(_WARMS):
                start, count = time.perf_counter(), self.calls.get(name, 1)
                found = way.run(count)
                wall = time.perf_counter() - start
                # Seconds of a device's own clock are not all that a call takes.
                once = max(_taken(found, wall), wall / count)
                self.calls[name] = round(min(max(_BATCH / max(once, 1e-9), 1), _MOST_CALLS))
        attempt = 0
        while True:
            self._settle()
            pid = way.pid()
            before, start = scheduled(pid), time.perf_counter()
            found = way.run(self.calls[name])
            wall = time.perf_counter() - start
            waited = scheduled(pid).waited - before.waited
            if waited <= _STOLEN * wall or attempt == _RETAKES:
                return _taken(found, wall)
            attempt += 1
            self._disturbed[name] += 1

    def _settle(self) -> None:
        """Wait until none of the processes works any more."""
        pids = {way.pid() for way in self._ways.values()} - {None}
        end = time.monotonic() + _SETTLES
        before = [scheduled(pid).ran for pid in pids]
        while time.monotonic() < end:
            time.sleep(_TICK)
            now = [scheduled(pid).ran for pid in pids]
            if all(b - a < _TICK / 8 for a, b in zip(before, now, strict=True)):
                return
            before = now


def _taken(found: Sequence[float], wall: float) -> float:
    """Give the seconds of a call; of all around it where a clock is coarse or runs backwards."""
    taken = statistics.median(found)
    return taken if 0 < taken < math.inf else max(wall / len(found), 1e-9)
