"""Time a plan against the user's own function, in this process, and keep the faster one.

The function cannot go to a child, so both run here, in turns. A tie goes to the function: it is
what the user would have without us, and a program must not be slower.

Both are called until they are steady first. An engine's calls may take several times as long at the
beginning: the 20th call of XLA has a thread import jax, for half a second to three, and every call
meanwhile waits for the interpreter's lock, at most 5 ms each time.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from fusewire.choosing.measure import Comparison, Contender, Timing, compare, interval, settle
from fusewire.choosing.race import worth
from fusewire.errors import EngineError
from fusewire.ir.graph import HostValue
from fusewire.plan.runner import Runner
from fusewire.show.why import Tried

# Seconds that a duel takes; calls that are too long for this run a few times in turns.
SECONDS = 0.8
# Seconds that it may take if a lead is within the noise that so short a time shows.
MOST_SECONDS = 10.0
# The least that it takes when the budget is used up.
SHORTEST = 0.3
# Seconds for calling all until they are steady: the import of jax takes up to three.
WARMING = 5.0
# Seconds of calls in a burst; one is steady that took this share of the best before or more, and
# so many in a row end the warm-up, after so many calls: the 20th call of XLA starts that import.
_BURST, _STEADY, _CALM = 0.02, 0.95, 2
_LEAST_CALLS, _MOST_CALLS, _LONG = 30, 1000, 0.25
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
    warming: float = WARMING,
) -> Comparison:
    """Time runners on the same inputs, in turns; what they raise passes through.

    The first is the one that serves if no other is faster; see ``beats``. All are called until they
    are steady, for ``warming`` seconds at most, and then at least once, even if that takes longer
    than ``seconds``. Every turn is taken within what ``turn`` returns, which is not timed. If
    another leads by no more than the noise, all are timed again, for ``most`` seconds: a tie goes
    to the first, and should not for want of calls.
    """
    first, *others = runners
    contenders = {
        name: Contender(partial(_run, runner, inputs, partial(turn, name)), os.getpid)
        for name, runner in runners.items()
    }
    _warm(contenders, time.monotonic() + warming)
    comparison = _timed(contenders, seconds)
    is_tie = not any(beats(comparison, name, first) for name in others)
    is_ahead = any(comparison.lead(name, first) > 1 + _WORTH for name in others)
    if is_tie and is_ahead and most > seconds:
        return _timed(contenders, most)
    return comparison


def meet(
    first: str,
    serves: Runner,
    rivals: Mapping[str, Callable[[], Runner]],
    inputs: Sequence[HostValue],
    turn: Turn = nullcontext,
    left: float = math.inf,
) -> tuple[Comparison | None, str]:
    """Have what serves meet its rivals, until it is beaten; return the times, and who serves.

    The times are those of the last duel: of what serves, of the first rival, and of the latest. A
    rival that fails is passed over. Where it is what serves that fails, there are no times, and the
    first rival serves. All of it takes ``left`` seconds.
    """
    end, comparison, met = time.monotonic() + left, None, dict[str, Runner]()
    for name, make in rivals.items():
        seconds = max(end - time.monotonic(), SHORTEST)
        try:
            runners = {first: serves, **dict([*met.items()][:1]), name: make()}
            times = min(SECONDS, seconds), turn, min(MOST_SECONDS, seconds)
            comparison = duel(runners, inputs, *times, warming=min(WARMING, seconds / 2))
        except EngineError:
            if not _answers(serves, inputs):
                return None, name if comparison is None else next(iter(met))
            continue
        met[name] = runners[name]
        faster = [x for x in runners if x != first and beats(comparison, x, first)]
        if faster:
            timings = comparison.timings
            return comparison, min(faster, key=lambda x: timings[x].median)
    return comparison, first


def _answers(runner: Runner, inputs: Sequence[HostValue]) -> bool:
    try:
        runner.call(inputs)
    except EngineError:
        return False
    return True


def with_times(
    tried: Sequence[Tried], comparison: Comparison | None, chosen: str
) -> tuple[Tried, ...]:
    """Mark the chosen candidate, and add the times of a duel to those that it timed."""
    rows = []
    for row in tried:
        timing = None if comparison is None else comparison.timings.get(row.name)
        here, ends = (None, (None, None)) if timing is None else (timing.median, timing.interval)
        low, high = ends
        marked = replace(row, is_chosen=row.name == chosen)
        rows.append(replace(marked, here=here, here_low=low, here_high=high))
    return tuple(sorted(rows, key=worth))


def _warm(contenders: Mapping[str, Contender], end: float) -> None:
    """Call each until calls get no faster, and nothing runs in this process between them."""
    for contender in contenders.values():
        # The first call may load the engine.
        contender.run(1)
        once = contender.run(1)[0]
        count = round(min(max(_BURST / max(once, 1e-9), 1), _MOST_CALLS))
        least, calls, calm = once, 0, 0
        # Long calls are as long when they are warm.
        while once < _LONG and (calm < _CALM or calls < _LEAST_CALLS):
            if time.monotonic() > end:
                break
            seconds, calls = contender.run(count)[0], calls + count
            is_calm = settle([contender.pid()]) and seconds > _STEADY * least
            calm, least = calm + 1 if is_calm else 0, min(least, seconds)


def _timed(contenders: Mapping[str, Contender], seconds: float) -> Comparison:
    end = time.monotonic() + seconds
    once = {name: contender.run(1)[0] for name, contender in contenders.items()}
    if _CALLS * sum(once.values()) <= end - time.monotonic():
        comparison = compare(contenders, end - time.monotonic(), close=float("inf"))
        # On a busy machine, the first may use up the time of both.
        if comparison.timings.keys() == contenders.keys():
            return comparison
    return _in_turns(contenders, once, end)


def beats(comparison: Comparison, name: str, other: str) -> bool:
    """Tell whether one is faster than another."""
    return comparison.is_faster(name, other, _MOST_NOISE)


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
