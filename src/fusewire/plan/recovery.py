"""Decide the calls that an engine failed, and when to leave an engine that keeps failing.

The fallback runs a failed call in the engine's place. If the fallback fails too, the values were at
fault: the caller gets its error, which names no engine, and the engine stays. Otherwise the engine
was at fault, and the answer is the fallback's. An engine that fails nearly every call rests, longer
each time, and is then tried again.

Imported at the first failure: nothing here costs anything before it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import final
from weakref import WeakMethod

from fusewire.contract.backend import Exchange, Executable, Held, Into
from fusewire.errors import EngineError, EngineGarbage, EngineRaised, RefusedError, warn_outside
from fusewire.ops.limits import RunLimits, limited
from fusewire.plan.transfer import fetched
from fusewire.process.guard import CALLERS, Run, guarded_run, waited

LOG = logging.getLogger("fusewire")
LOG.addHandler(logging.NullHandler())
# Other errors are of an engine that died or met a limit, and so might the fallback.
DECIDABLE = (EngineRaised, EngineGarbage)
# An engine rests after this many failures, if they are nearly all of its calls: to run the fallback
# alone saves what the engine takes to fail, and costs much more in each call that would succeed.
_FAILURES = 3
_SHARE = 0.9
# After this many calls without a rest, the calls of an engine are not counted any more.
_COUNTED = 100
# The first rest, which doubles each time. It is also this many times as long as the failed attempt,
# so that an engine that takes long to fail, such as in compiling, takes 1% of the time.
_REST_SECONDS = 1.0
_REST_ATTEMPTS = 100
_MOST_DOUBLINGS = 10


@final
class Recovery:
    """Decides the failed calls of one region, and counts them; safe for threads.

    ``may_answer``: the answers of the fallback are given; ``warns``: a warning says so, once.
    """

    def __init__(
        self,
        engine: str,
        fallback: str,
        executable: Executable,
        exchange: Exchange,
        *,
        may_answer: bool,
        warns: bool,
    ) -> None:
        self.engine = engine
        self.fallback = fallback
        self.executable = executable
        self.exchange = exchange
        self._may_answer = may_answer
        self._warns = warns
        self._lock = threading.Lock()
        self._is_said = False
        self._deciding = 0
        # The most calls that were decided at once: so many failures may be counted late.
        self.most_deciding = 1
        self.by_caller = 0
        self.by_engine = 0
        self.rests = 0
        self.recoveries = 0
        self.resting = 0
        self.reason = ""

    def decide(self, inputs: Sequence[Held], error: EngineError) -> list[Held]:
        """Answer a call that the engine failed, or raise: what the values or the engine did."""
        if not isinstance(error, DECIDABLE) or self.engine == self.fallback:
            raise error
        with self._lock:
            self._deciding += 1
            self.most_deciding = max(self.most_deciding, self._deciding)
        try:
            outputs = self.run(inputs)
        except CALLERS:
            with self._lock:
                self.by_caller += 1
            raise
        finally:
            with self._lock:
                self._deciding -= 1
        self._blame(error)
        if not self._may_answer:
            raise RefusedError(f"{error} Fallback is not allowed, so the program stops.") from error
        return outputs

    def run(self, inputs: Sequence[Held]) -> list[Held]:
        """Run the fallback on values from anywhere."""
        arrays = [fetched(value) for value in inputs]
        return guarded_run(self.fallback, self.executable.run, arrays, waits=True)

    def _blame(self, error: EngineError) -> None:
        with self._lock:
            self.by_engine += 1
            self.reason = error.reason
            is_first, self._is_said = not self._is_said, True
        LOG.info("%s %s answers this call.", error.reason, self.fallback)
        if is_first and self._warns:
            warn_outside(
                f"{error} {self.fallback} answers calls that {self.engine} fails; this is said "
                "once, and program.why() counts them."
            )

    def rest(self, seconds: float) -> None:
        """Count a rest of the engine."""
        with self._lock:
            self.rests += 1
            self.resting += 1
        text = "%s is left for %.0f s, and %s runs its calls: %s"
        LOG.warning(text, self.engine, seconds, self.fallback, self.reason)

    def try_again(self) -> None:
        """Count the end of a rest."""
        with self._lock:
            self.resting -= 1
        LOG.info("%s is tried again.", self.engine)

    def recovered(self) -> None:
        """Count a recovery: the engine answers again after a rest."""
        with self._lock:
            self.recoveries += 1
        LOG.info("%s answers again, and is used again.", self.engine)


@final
class CircuitBreaker:
    """Counts calls and failures of one executable, and says when it rests and for how long."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._lock = threading.Lock()
        self._calls = self._failures = self._running = 0
        # Rests since the engine last went well for a while.
        self._rests = 0
        self._until: float | None = None
        self._is_back = False

    def start(self) -> bool:
        """Count a call; True if so many went well that counting may stop."""
        with self._lock:
            self._calls += 1
            self._running += 1
            answered = self._calls - self._running - self._failures
            is_recovery = self._is_back and answered > 0
            self._is_back = self._is_back and not is_recovery
            is_well = self._calls >= _COUNTED
            if is_well:
                self._failures = self._rests = 0
                self._calls = self._running
        if is_recovery:
            self._recovery.recovered()
        return is_well

    def end(self) -> None:
        """Count the end of a call that ``start`` counted."""
        with self._lock:
            self._running -= 1

    def fail(self, is_first: bool) -> bool:
        """Count a failure; True if the engine is to rest.

        With ``is_first`` the counting begins: of calls before, nobody knows how many went well.
        """
        with self._lock:
            if is_first:
                self._calls, self._failures = self._running, 0
            self._failures += 1
            # The failure that began the counting was not counted as a call. Calls that run still
            # count: beside other threads, what has ended so far tells too little.
            calls = max(self._calls, self._failures)
            least = _FAILURES * self._recovery.most_deciding
            is_often = self._failures >= (1 if self._rests else least)
            return is_often and self._failures >= _SHARE * calls

    def rest(self, seconds: float = 0.0) -> None:
        """Have the engine rest, after a failed attempt that took so many seconds."""
        with self._lock:
            pause = max(_REST_SECONDS, _REST_ATTEMPTS * seconds)
            pause *= 2 ** min(self._rests, _MOST_DOUBLINGS)
            self._rests += 1
            self._calls = self._failures = 0
            self._until = monotonic() + pause
        self._recovery.rest(pause)

    def is_over(self) -> bool:
        """Tell whether a rest is over; True once."""
        if self._until is None or monotonic() < self._until:
            return False
        with self._lock:
            is_mine, self._until = self._until is not None, None
            self._is_back = is_mine
        if is_mine:
            self._recovery.try_again()
        return is_mine

    def counted(self, run: Run, stop: WeakMethod[Callable[[], None]]) -> Run:
        """Count the calls of ``run``; ``stop`` is called once it did well for a while."""

        def counted_run(inputs: Sequence[Held], into: Into) -> list[Held]:
            if self.start() and (stop_counting := stop()) is not None:
                stop_counting()
            try:
                return run(inputs, into)
            finally:
                self.end()

        return counted_run


@final
class LimitedExecutable(Executable):
    """An executable of the fallback, under the limits of a call."""

    def __init__(self, executable: Executable, limits: RunLimits) -> None:
        self._executable = executable
        self._limits = limits

    @property
    def is_reentrant(self) -> bool:
        """As the executable is."""
        return self._executable.is_reentrant

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end."""
        with limited(self._limits):
            return waited(self._executable.run(inputs, into))


@final
class RestingEngine(Executable):
    """Runs the fallback in the place of an engine until its rest is over."""

    def __init__(
        self, fallback: Executable, breaker: CircuitBreaker, end_rest: Callable[[], object]
    ) -> None:
        self._fallback = fallback
        self._breaker = breaker
        self._end_rest = end_rest

    @property
    def is_reentrant(self) -> bool:
        """As the fallback is."""
        return self._fallback.is_reentrant

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run the fallback; after the rest, the next call has the engine again."""
        if self._breaker.is_over():
            self._end_rest()
        return self._fallback.run(inputs, into)
