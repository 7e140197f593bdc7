"""Time a plan against the user's own function, in this process, and keep the faster one.

The function cannot go to a child, so both run here, in turns. A tie goes to the function: it is
what the user would have without us, and a program must not be slower.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeAlias

from fusewire.choosing.measure import Comparison, Contender, Timing, compare, interval
from fusewire.ir.graph import HostValue
from fusewire.runtime.entry import Runner

# Seconds that a duel takes; calls that are too long for this run a few times in turns.
SECONDS = 0.8
# Seconds that it may take if a lead is within the noise that so short a time shows.
MOST_SECONDS = 10.0
# How many calls of each a comparison makes at least, warm-ups included.
_CALLS = 10
# The fewest turns of long calls, unless one is clearly faster: by this factor.
_TURNS, _CLEAR = 3, 2.0
_MOST_TURNS = 12
# A lead of less is not worth the longer time.
_WORTH = 0.02
# On a machine with more noise than this, a lead of this size decides.
_MOST_NOISE = 0.25


# Makes what surrounds the turn of a runner, by its name.
Turn: TypeAlias = Callable[[str], AbstractContextManager[object]]


def duel(
    runners: Mapping[str, Runner],
    inputs: Sequence[HostValue],
    seconds: float = SECONDS,
    turn: Turn = nullcontext,
    most: float = MOST_SECONDS,
) -> Comparison:
    """Time two runners on the same inputs, in turns; what they raise passes through.

    The first is the one that serves if the other is not faster; see ``beats``. Both are called at
    least twice, even if that takes longer than ``seconds``. Every turn is taken within what
    ``turn`` returns, which is not timed. If the other leads by no more than the noise, both are
    timed again, for ``most`` seconds: a tie goes to the first, and should not for want of calls.
    """
    first, other = runners
    comparison = _timed(runners, inputs, seconds, turn)
    is_tie = not beats(comparison, other, first)
    if is_tie and _lead(comparison, other, first) > 1 + _WORTH and most > seconds:
        return _timed(runners, inputs, most, turn)
    return comparison


def _timed(
    runners: Mapping[str, Runner], inputs: Sequence[HostValue], seconds: float, turn: Turn
) -> Comparison:
    end = time.monotonic() + seconds
    contenders = {
        name: Contender(partial(_run, runner, inputs, partial(turn, name)), os.getpid)
        for name, runner in runners.items()
    }
    # The first call may load the engine.
    for contender in contenders.values():
        contender.run(1)
    once = {name: contender.run(1)[0] for name, contender in contenders.items()}
    if _CALLS * sum(once.values()) <= end - time.monotonic():
        comparison = compare(contenders, end - time.monotonic(), close=float("inf"))
        # On a busy machine, the first may use up the time of both.
        if comparison.timings.keys() == contenders.keys():
            return comparison
    return _in_turns(contenders, once, end)


def beats(comparison: Comparison, name: str, other: str) -> bool:
    """Tell whether one is faster than another by more than the noise."""
    return _lead(comparison, name, other) > 1 + min(comparison.noise, _MOST_NOISE)


def _lead(comparison: Comparison, name: str, other: str) -> float:
    """Return how many times as fast as another one is."""
    pairs = zip(comparison.timings[other].samples, comparison.timings[name].samples, strict=False)
    return statistics.median([slow / fast for slow, fast in pairs])


def _run(
    runner: Runner,
    inputs: Sequence[HostValue],
    turn: Callable[[], AbstractContextManager[object]],
    count: int,
) -> Sequence[float]:
    """Time calls together: the first of them wakes an engine's threads, and that counts, too."""
    with turn():
        call, start = runner.call, time.perf_counter()
        for _ in range(count):
            call(inputs)
        return [(time.perf_counter() - start) / count] * count


def _in_turns(
    contenders: Mapping[str, Contender], once: Mapping[str, float], end: float
) -> Comparison:
    """Compare calls that are too long for batches: one call each, until time is up."""
    samples = {name: [seconds] for name, seconds in once.items()}
    best = min(once, key=lambda name: once[name])
    again: list[float] = []
    while time.monotonic() + sum(once.values()) + once[best] < end and len(again) < _MOST_TURNS:
        for name, contender in contenders.items():
            samples[name].append(contender.run(1)[0])
        again.append(contenders[best].run(1)[0])
        if len(again) >= _TURNS and max(once.values()) > _CLEAR * once[best]:
            break
    ratios = [x / y for x, y in zip(again, samples[best][1:], strict=True)] or [1.0]
    noise = max(abs(x - 1) for x in interval(ratios))
    # A single call shows little: only a clear lead counts.
    noise = max(noise, 0.0 if len(again) >= _TURNS else _MOST_NOISE)
    timings = {name: Timing(tuple(times)) for name, times in samples.items()}
    fastest = min(timings, key=lambda name: timings[name].median)
    return Comparison(timings, fastest, (), noise, len(again) + 1)
