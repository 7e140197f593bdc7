"""Run steps of a plan that do not depend on each other at the same time, on two threads.

The calling thread takes the steps in order, and a helper takes others that are ready. If no helper
comes, the caller does all of it, so that nothing can wait for ever. Only plans for which this was
measured to be faster come here: see choosing/overlap.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, final

from fusewire.ops.limits import Meter
from fusewire.process.forks import in_forked_child
from fusewire.process.guard import settle
from fusewire.runtime.plan import ALONE, Plan, Step

# The most calls that have a helper at the same time; others run their steps one after the other.
_HELPERS = 8
# Checks a step and runs it; takes its number and the values of the run.
RunStep = Callable[[int, list[Any]], list[Any]]


@final
class Helpers:
    """The threads that help callers."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], object]) -> Future[Any] | None:
        """Have a thread do some work; None if there can be none."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_HELPERS, thread_name_prefix="fusewire-steps")
            # Python ends, or can start no thread.
            with contextlib.suppress(RuntimeError):
                return self._executor.submit(copy_context().run, work)
        return None

    def forget(self) -> None:
        """Start without threads in a forked process."""
        self._executor, self._lock = None, threading.Lock()


HELPERS = Helpers()
in_forked_child(HELPERS.forget)


def places_read(step: Step) -> set[int]:
    """List the places that a step reads, for its region or for what is checked before it."""
    sizes = {place for guard in step.guards for _, place, _ in guard.sizes}
    return {*step.inputs, *(guard.place for guard in step.guards), *sizes}


def waits(plan: Plan) -> tuple[frozenset[int], ...]:
    """List for each step those that it waits for.

    They make what it reads, or check it: the first step that takes a value checks it for all.
    """
    makers: dict[int, int] = {}
    checkers: dict[int, list[int]] = {}
    found = []
    for number, step in enumerate(plan.steps):
        places = places_read(step)
        own = {makers[place] for place in places if place in makers}
        own |= {x for place in step.inputs for x in checkers.get(place, ())}
        found.append(frozenset(own))
        makers |= dict.fromkeys(step.outputs, number)
        for guard in step.guards:
            checkers.setdefault(guard.place, []).append(number)
    return tuple(found)


def overlapping(plan: Plan) -> list[tuple[int, int]]:
    """List the pairs of steps that may run at the same time; they wait for different turns."""
    before: list[set[int]] = []
    for own in waits(plan):
        before.append(set(own).union(*(before[x] for x in own)))
    return [
        (first, second)
        for second, earlier in enumerate(before)
        for first in range(second)
        if first not in earlier and _may_overlap(plan.turns[first], plan.turns[second])
    ]


def _may_overlap(turn: str, other: str) -> bool:
    return ALONE not in (turn, other) and (not turn or turn != other)


@final
class ConcurrentSteps:
    """The steps of a plan, and what each waits for."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.waits = waits(plan)
        freed = {place for step in plan.steps for place in step.frees}
        # The places that each step uses, of those that are freed, and how many steps use each.
        self.uses = [(places_read(step) | {*step.outputs}) & freed for step in plan.steps]
        self.users = Counter(place for places in self.uses for place in places)

    def run(self, values: list[Any], borrowed: int, meter: Meter, run_step: RunStep) -> None:
        """Run all steps on the values of a call; the first ``borrowed`` of them are not its own.

        Raises what running them one after the other would raise.
        """
        _ConcurrentCall(self, values, borrowed, meter, run_step).run()


@final
class _ConcurrentCall:
    """One run: the steps that are left, those that run, and what went wrong."""

    def __init__(
        self,
        steps: ConcurrentSteps,
        values: list[Any],
        borrowed: int,
        meter: Meter,
        run_step: RunStep,
    ) -> None:
        self._steps, self._plan = steps, steps.plan
        self._values, self._borrowed = values, borrowed
        self._meter, self._run_step = meter, run_step
        self._left = list(range(len(steps.waits)))
        self._done: set[int] = set()
        self._running: set[int] = set()
        # The step that the caller took last.
        self._own: int | None = None
        self._users = steps.users.copy()
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def run(self) -> None:
        """Run the steps, and have a thread help."""
        helper = HELPERS.submit(partial(self._work, is_caller=False))
        try:
            self._work(is_caller=True)
        finally:
            # Also after an interrupt: what runs uses memory of this call.
            with self._lock:
                self._left.clear()
                # The caller is here, and runs it no more.
                self._running -= {self._own}
                while self._running:
                    self._changed.wait()
            if helper is not None:
                helper.cancel()
        if self._errors:
            raise self._errors[min(self._errors)]

    def _work(self, is_caller: bool) -> None:
        while (number := self._take(is_caller)) is not None:
            outcome: Future[None] = Future()
            settle(outcome, self._run_and_keep, number)
            self._end(number, outcome.exception())

    def _take(self, is_caller: bool) -> int | None:
        """Take the first step that may run now, or wait for one; None if none is left."""
        with self._lock:
            while True:
                for number in self._left:
                    if self._may_start(number):
                        self._left.remove(number)
                        self._own = number if is_caller else self._own
                        self._running.add(number)
                        return number
                # The caller returns last: it has the results.
                if not self._running or not (self._left or is_caller):
                    return None
                self._changed.wait()

    def _may_start(self, number: int) -> bool:
        turns = self._plan.turns
        return self._steps.waits[number] <= self._done and all(
            _may_overlap(turns[number], turns[other]) for other in self._running
        )

    def _run_and_keep(self, number: int) -> None:
        """Run a step, keep what it made, and free what no other needs."""
        outputs = self._run_step(number, self._values)
        with self._lock:
            self._meter.hold(outputs)
            for place, value in zip(self._plan.steps[number].outputs, outputs, strict=True):
                self._values[place] = value
            self._free(self._steps.uses[number])

    def _end(self, number: int, error: BaseException | None) -> None:
        """Let the steps begin that waited for one, or none after it if it failed."""
        with self._lock:
            if error is None:
                self._done.add(number)
            else:
                self._fail(number, error)
            self._running.discard(number)
            self._changed.notify_all()

    def _fail(self, number: int, error: BaseException) -> None:
        """Run only the steps before it, whose errors would have come first."""
        is_interrupt = not isinstance(error, Exception)
        self._errors[-1 if is_interrupt else number] = error
        first = min(self._errors)
        self._left = [other for other in self._left if other < first]

    def _free(self, places: set[int]) -> None:
        for place in places:
            self._users[place] -= 1
            if not self._users[place]:
                if place >= self._borrowed:
                    self._meter.drop((self._values[place],))
                self._values[place] = None


def is_worth_asking(plan: Plan, interpreted: Sequence[str]) -> bool:
    """Tell whether steps of two engines may run at the same time."""
    names = [step.region.backend for step in plan.steps]
    return any(
        not {names[first], names[second]} & {*interpreted} for first, second in overlapping(plan)
    )
