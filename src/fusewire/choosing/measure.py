"""Time contenders against each other, and name the fastest and those that tie with it.

Every round runs every contender once, in rotating order, so that a disturbance hits all of them
alike. A contender starts when the one before it has gone quiet: engine threads spin after a call,
and would slow down the next. The best of many measurements is biased towards luck, so finalists
are timed again, and the leader also against itself: the difference is the noise, and a lead within
the noise does not count.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from fusewire.choosing.quiet import CallWatch
from fusewire.errors import StoreError
from fusewire.show.ranks import is_below
from fusewire.system.processes import scheduled

# A sample is the median of the calls that fit into this many seconds, and of at least one.
_BATCH = 0.01
_MOST_CALLS = 1000
# Warm-up batches before the first sample; one is enough for calls longer than so many seconds.
_WARMS, _LONG = 4, 0.25
# Of long calls, one that takes so many times as long as the best is not sampled again.
_FAR = 3.0
# The noise is at least this after fewer than three rounds.
_FEW_NOISE = 0.1
# Seconds after its end at which a comparison stops even within a round.
_OVERTIME = 1.5
# Seconds within which threads stop to spin after a call (ONNX Runtime: 50 ms).
_SETTLES, _TICK = 0.25, 0.004
# A sample is repeated if threads waited for a core during this share of it.
_STOLEN, _RETAKES = 0.1, 2
# A contender this much slower leaves after three rounds; after seven, any clear lead suffices.
_HOPELESS, _LEAD = 1.5, 1.02
_FIRST, _CLEAR, _MOST_ROUNDS = 3, 7, 25
# Contenders this close to the leader reach the final, up to this number.
CLOSE, _FINALISTS = 1.15, 3
# The share of the time that a second final may take beyond the end.
_REMATCH = 0.2
AGAIN = "again"


@dataclass(frozen=True)
class Contender:
    """Runs a number of times and returns the seconds of each run; ``pid`` is the process it uses.

    ``pid`` is called each time: a child that has done many jobs is replaced by a new one. Samples
    that calls of a watched process overlapped are discarded.
    """

    run: Callable[[int], Sequence[float]]
    pid: Callable[[], int | None] = lambda: None
    watch: CallWatch | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: one sample per round, and how many samples were repeated."""

    samples: tuple[float, ...]
    disturbed: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """The interval of the median, with 95% confidence from six samples on; None for one."""
        return interval(self.samples) if len(self.samples) > 1 else (None, None)


@dataclass(frozen=True)
class Comparison:
    """Timings by name, the fastest contender, those that tie with it, and the noise.

    ``noise`` is how far the ratio of a contender to itself may be from 1.
    """

    timings: Mapping[str, Timing]
    fastest: str
    ties: tuple[str, ...]
    noise: float
    rounds: int

    def is_faster(self, name: str, than: str, most_noise: float) -> bool:
        """Tell whether one is faster: beyond the intervals, or in pairs by more than the noise.

        Noise above ``most_noise`` counts as that.
        """
        one, other = self.timings[name], self.timings[than]
        limit = 1 + min(self.noise, most_noise)
        return is_below(one.interval, other.interval) or self.lead(name, than) > limit

    def lead(self, name: str, over: str) -> float:
        """Return how many times as fast as another one is, by the median of pairs."""
        pairs = zip(self.timings[over].samples, self.timings[name].samples, strict=False)
        return statistics.median(slow / fast for slow, fast in pairs)

    def without(self, name: str) -> Comparison | None:
        """Return the comparison of the other contenders; None if there are none."""
        rest = {other: timing for other, timing in self.timings.items() if other != name}
        if not rest:
            return None
        fastest = min(rest, key=lambda other: rest[other].median)
        return Comparison(rest, fastest, (), self.noise, self.rounds)

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data for JSON."""
        return asdict(self)

    @staticmethod
    def from_data(data: Any) -> Comparison:
        """Read plain data; StoreError if it is not a comparison."""
        try:
            timings = {
                str(name): Timing(tuple(map(float, row["samples"])), int(row["disturbed"]))
                for name, row in data["timings"].items()
            }
            comparison = Comparison(
                timings,
                str(data["fastest"]),
                tuple(map(str, data["ties"])),
                float(data["noise"]),
                int(data["rounds"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise StoreError(f"A recorded comparison has a wrong field: {error}.") from error
        if comparison.fastest not in timings or not set(comparison.ties) <= set(timings):
            raise StoreError("A recorded comparison names a contender that it has no times of.")
        samples = [x for timing in timings.values() for x in timing.samples]
        is_good = all(timing.samples for timing in timings.values()) and comparison.noise >= 0
        if not is_good or not all(0 < x < math.inf for x in (*samples, 1 + comparison.noise)):
            raise StoreError("A recorded comparison has times that are not positive numbers.")
        return comparison


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the samples between which the median lies with 95% confidence.

    With fewer than six samples it is the whole range, at lower confidence: 75% for three samples,
    94% for five.
    """
    ordered = sorted(samples)
    out = _outside(len(ordered))
    return ordered[out], ordered[-1 - out]


@cache
def _outside(count: int) -> int:
    """Return how many samples at either end lie outside of the interval.

    Each sample is above or below the median with equal chance, so the tails of the binomial
    distribution are counted, in integers.
    """
    out, missed = 0, 1 + count
    while 40 * missed <= 2**count:
        out += 1
        missed += math.comb(count, out + 1)
    return out


def compare(
    contenders: Mapping[str, Contender],
    seconds: float,
    progress: Callable[[str], None] = lambda name: None,
    close: float = CLOSE,
    expected: Callable[[str], float] = lambda name: 0.0,
) -> Comparison:
    """Time contenders, given in order of preference, for about this many seconds.

    Those that take at most ``close`` times as long as the best reach the final. Those ``expected``
    to be quickest come first: if time is up within the first round, the rest is not timed.
    """
    assert contenders, "there is something to time"
    end = time.monotonic() + seconds
    names = list(contenders)
    heats = _Rounds(contenders)
    # The rest of the time is kept for the final.
    heats.go(sorted(names, key=expected), time.monotonic() + seconds * 0.6, progress)
    timings = heats.timings()
    names = [name for name in names if name in timings]
    best = min(names, key=lambda name: timings[name].median)
    limit = close * timings[best].median
    close_ones = [name for name in names if timings[name].median <= limit]
    close_ones.sort(key=lambda name: timings[name].median)
    finalists = [name for name in names if name in close_ones[:_FINALISTS]]
    final = _final(contenders, heats.calls, finalists, best, end, progress)
    timings = {**timings, **final.timings}
    # The machine may have slowed down since the heats: who seems faster now was timed before.
    ahead = [n for n in names if is_below(timings[n].interval, timings[final.fastest].interval)]
    if ahead:
        again = max(end, time.monotonic() + seconds * _REMATCH)
        finalists = [name for name in names if name in (*finalists, *ahead)]
        final = _final(contenders, heats.calls, finalists, best, again, progress)
    return replace(final, timings={**timings, **final.timings})


def _final(
    contenders: Mapping[str, Contender],
    calls: Mapping[str, int],
    finalists: Sequence[str],
    best: str,
    end: float,
    progress: Callable[[str], None],
) -> Comparison:
    """Time the finalists, and the best of the heats also against itself."""
    final = _Rounds({**{n: contenders[n] for n in finalists}, AGAIN: contenders[best]}, calls)
    final.go([*finalists, AGAIN], end, progress, keep=(best, AGAIN))
    timings = final.timings()
    fastest = min(finalists, key=lambda name: timings[name].median)
    noise = max(final.noise(best), 0.0 if final.rounds >= _FIRST else _FEW_NOISE)
    ties = [n for n in finalists if n != fastest and not final.is_behind(n, fastest, noise)]
    timings.pop(AGAIN)
    # Among ties, the preferred one wins if its median is about as low. On a noisy machine most
    # contenders tie, and the fastest is the better guess.
    limit, least = _LEAD * timings[fastest].median, timings[fastest].interval
    preferred = [n for n in ties if timings[n].median <= limit]
    chosen = next(
        n
        for n in finalists
        if n == fastest or (n in preferred and not is_below(least, timings[n].interval))
    )
    others = tuple(name for name in finalists if name != chosen and name in (fastest, *ties))
    return Comparison(timings, chosen, others, noise, final.rounds)


class _Rounds:
    """Samples of contenders by round; a contender that has left has fewer."""

    def __init__(
        self, contenders: Mapping[str, Contender], calls: Mapping[str, int] | None = None
    ) -> None:
        self._contenders = contenders
        self._samples: dict[str, list[float]] = {name: [] for name in contenders}
        self._disturbed = dict.fromkeys(contenders, 0)
        self.calls = dict(calls or {})
        self.rounds = 0

    def go(
        self,
        names: Sequence[str],
        end: float,
        progress: Callable[[str], None],
        keep: tuple[str, ...] = (),
    ) -> None:
        """Run rounds until one contender remains, time is up, or the most rounds are done."""
        active = list(names)
        while self.rounds < _MOST_ROUNDS:
            turn = self.rounds % len(active)
            for name in active[turn:] + active[:turn]:
                if self._is_over(keep, end):
                    return
                progress(name)
                self._samples[name].append(self._sample(name))
            self.rounds += 1
            if time.monotonic() > end and self.rounds >= _FIRST:
                return
            active = self._remaining(active, keep)
            if self.rounds >= _CLEAR and len(active) <= max(1, len(keep)):
                return

    def _is_over(self, keep: tuple[str, ...], end: float) -> bool:
        """Tell whether to stop within a round: calls are so long that few of them fit."""
        samples = self._samples.values()
        # Every finalist has a sample at least.
        is_enough = all(samples) if keep else any(samples)
        return is_enough and time.monotonic() > end + _OVERTIME

    def _remaining(self, active: list[str], keep: tuple[str, ...]) -> list[str]:
        """Return the contenders without those that cannot win."""
        best = min(active, key=lambda name: statistics.median(self._samples[name]))
        if self.rounds < _FIRST:
            limit = max(_FAR * self._samples[best][-1], _LONG)
            return [n for n in active if n in keep or self._samples[n][-1] <= limit]
        others = [name for name in active if name not in (best, *keep)]
        if AGAIN in keep and self.rounds >= _CLEAR:
            # Rounds go on until a lead exceeds the noise, which falls with their number.
            noise = self.noise(keep[0])
            out = [name for name in others if self.is_behind(name, best, noise)]
        else:
            lead = _HOPELESS if self.rounds < _CLEAR else _LEAD
            out = [name for name in others if self.is_slower(name, best, lead)]
        return [name for name in active if name not in out]

    def is_behind(self, name: str, than: str, noise: float) -> bool:
        """Tell whether one is surely slower than another, and by more than the noise."""
        return self.is_slower(name, than, 1.0) and (
            statistics.median(self._ratios(name, than)) > 1 + noise
        )

    def is_slower(self, name: str, than: str, lead: float) -> bool:
        """Tell whether one is slower than another by this factor, in the rounds of both."""
        low, _ = interval(self._ratios(name, than))
        return low > lead

    def noise(self, name: str) -> float:
        """Return how far the ratio of a contender to itself is from 1."""
        return max(abs(end - 1) for end in interval(self._ratios(AGAIN, name)))

    def _ratios(self, name: str, than: str) -> list[float]:
        pairs = zip(self._samples[name], self._samples[than], strict=False)
        return [left / right for left, right in pairs]

    def timings(self) -> dict[str, Timing]:
        """Return the timings so far."""
        return {n: Timing(tuple(x), self._disturbed[n]) for n, x in self._samples.items() if x}

    def _sample(self, name: str) -> float:
        contender = self._contenders[name]
        if name not in self.calls:
            # The first call is slower, and in the next ones threads wake up and caches fill: only
            # consecutive calls show how many of them make a sample.
            for _ in range(_WARMS):
                start, count = time.perf_counter(), self.calls.get(name, 1)
                seconds = contender.run(count)
                wall = time.perf_counter() - start
                # A device's own clock does not show all the time that a call takes.
                once = max(_per_call(seconds, wall), wall / count)
                self.calls[name] = round(min(max(_BATCH / max(once, 1e-9), 1), _MOST_CALLS))
                if once > _LONG:
                    break
        attempt = 0
        while True:
            settle(contender.pid() for contender in self._contenders.values())
            pid, watch = contender.pid(), contender.watch
            mark = 0 if watch is None else watch.mark()
            before, start = scheduled(pid), time.perf_counter()
            seconds = contender.run(self.calls[name])
            wall = time.perf_counter() - start
            waited = scheduled(pid).waited - before.waited
            if watch is not None and not watch.is_quiet(mark):
                self._disturbed[name] += 1
                continue
            if waited <= _STOLEN * wall or attempt == _RETAKES:
                return _per_call(seconds, wall)
            attempt += 1
            self._disturbed[name] += 1


def settle(pids: Iterable[int | None]) -> bool:
    """Wait until all of the processes are idle, for a quarter of a second; return whether."""
    known = set(pids) - {None}
    # Reading the times of some fifty threads of this process takes more than one is idle with.
    ours = threading.get_native_id()
    end = time.monotonic() + _SETTLES
    before = [scheduled(pid, ours).ran for pid in known]
    while time.monotonic() < end:
        time.sleep(_TICK)
        now = [scheduled(pid, ours).ran for pid in known]
        if all(b - a < _TICK / 8 for a, b in zip(before, now, strict=True)):
            return True
        before = now
    return False


def _per_call(seconds: Sequence[float], wall: float) -> float:
    """Return the median; the wall time per call where the clock is coarse or runs backwards."""
    median = statistics.median(seconds)
    return median if 0 < median < math.inf else max(wall / len(seconds), 1e-9)
