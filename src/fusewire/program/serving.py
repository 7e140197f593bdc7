"""Serve calls with a first plan until a search behind them has settled on the plan to keep.

While it is searched, every call is counted in a page that the measuring process reads. A swap
replaces what the next call runs: one that is running keeps its plan, and nothing is left behind
that a later call would pay for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, final

import numpy as np

from fusewire.contract.backend import Held
from fusewire.errors import NoQuietError
from fusewire.ir.graph import HostValue
from fusewire.plan.plan import Plan
from fusewire.plan.runner import Runner
from fusewire.plan.transfer import to_host
from fusewire.process.calls import CallPage, new_page
from fusewire.program.entry import Details, Entry, State
from fusewire.show.why import Tried, Why

Answer = TypeVar("Answer")


class Search(Protocol):
    """Finds the plan to keep, in the background."""

    def begin(self, serving: ServingRunner, inputs: Sequence[HostValue]) -> None:
        """Start without waiting; ends with ``serving.settle``."""

    def cancel(self) -> None:
        """Stop soon; may be called at any time, more than once."""


# Seconds for which calls are kept out while one is running, and between looks at it. Not longer: a
# function that calls its own program would wait for itself.
_GRACE, _TICK = 0.5, 0.0005
# The most seconds that a call waits for a turn.
_LONGEST_TURN = 10.0


@dataclass(frozen=True, eq=False)
class _Turn:
    """The time of one thread, in which no calls of others run."""

    owner: int
    is_over: threading.Event


@final
class ServingRunner:
    """Runs the first plan of an entry, and has the search begin after the first answer.

    ``example`` are the inputs to compare on if nobody calls the program before ``wait``. With
    ``is_late`` the program was settled before, and counts as settled meanwhile.
    """

    def __init__(
        self,
        runner: Runner,
        search: Search,
        example: Sequence[HostValue],
        is_late: bool = False,
    ) -> None:
        self.runner = runner
        self._is_late = is_late
        self._state: State = "serving-first"
        self._search = search
        self._example = example
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._swap: weakref.WeakMethod[Callable[[ServingRunner, Entry], None]] | None = None
        self.page_descriptor = new_page()
        weakref.finalize(self, os.close, self.page_descriptor)
        self._page: CallPage | None = CallPage(self.page_descriptor)
        self._turn: _Turn | None = None

    def call(self, inputs: Sequence[Held]) -> list[Any]:
        """Run on the first plan, and count the call."""
        outputs = self.around(self.runner.call, inputs)
        if self._state == "serving-first" and self._page is not None:
            self._begin([to_host(value) for value in inputs])
        return outputs

    def around(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Count a call of what serves first, whoever makes it."""
        page = self._page
        if page is None:
            return call(*arguments)
        page.start()
        if self._turn is not None:
            self._let_pass(page)
        try:
            return call(*arguments)
        finally:
            page.end()

    def _let_pass(self, page: CallPage) -> None:
        """Wait for the turn that somebody else has between calls."""
        while (turn := self._turn) is not None and turn.owner != threading.get_ident():
            page.end()
            is_over = turn.is_over.wait(_LONGEST_TURN)
            page.start()
            if not is_over:
                return

    @contextlib.contextmanager
    def between_calls(self, seconds: float) -> Iterator[None]:
        """Have no call run meanwhile: calls that come wait for as long as this takes.

        NoQuietError if calls that are running do not end in so many seconds.
        """
        end = time.monotonic() + seconds
        while not self._take_turn():
            if time.monotonic() > end:
                raise NoQuietError(
                    f"The calls of the program left no moment between them in {seconds:.0f} s."
                )
            time.sleep(_TICK)
        try:
            yield
        finally:
            self._end_turn()

    def _take_turn(self) -> bool:
        """Keep calls out; returns False, and lets them in, if one is running for long."""
        page, end = self._page, time.monotonic() + _GRACE
        self._turn = _Turn(threading.get_ident(), threading.Event())
        while page is not None and page.mark() is None:
            if time.monotonic() > end:
                self._end_turn()
                return False
            time.sleep(_TICK)
        return True

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.is_over.set()

    def _begin(self, inputs: Sequence[HostValue]) -> None:
        with self._lock:
            if self._state != "serving-first":
                return
            self._state = "comparing"
        self._example = ()
        # The caller may change the arrays after the call.
        self._search.begin(self, list(map(_copied, inputs)))

    @property
    def state(self) -> State:
        """How far the search is."""
        return "settled" if self._is_late else self._state

    @property
    def is_attached(self) -> bool:
        """Whether a program takes the entry to keep."""
        return self._swap is not None

    def attach(self, swap: Callable[[ServingRunner, Entry], None]) -> None:
        """Say which method of a program takes the entry to keep; the program may be forgotten."""
        self._swap = weakref.WeakMethod(swap)

    def settle(self, entry: Entry) -> None:
        """Have the program use an entry from now on."""
        swap = None if self._swap is None else self._swap()
        if swap is not None:
            swap(self, entry)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._state = "settled"
        self._settled.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is settled; returns whether it is."""
        self.begin()
        return self._is_late or self._settled.wait(timeout)

    def begin(self) -> None:
        """Have the search begin, if no call did."""
        self._begin(self._example)

    def close(self) -> None:
        """End the search, and close the first plan."""
        self.cancel()
        self.runner.close()

    def cancel(self) -> None:
        """End the search: the first plan stays."""
        self._search.cancel()
        self._end()

    def abandon(self) -> None:
        """Stay with the first plan in a forked process: the search goes on in its parent."""
        # A thread that is not here may have held the lock, and the page is shared with the parent.
        self._lock, self._settled, self._page = threading.Lock(), threading.Event(), None
        self._turn = None
        self._end()


@final
class OpenDecision:
    """What serves is beaten in the table of its own comparison: the next process decides again."""

    state: State = "serving-first"
    is_attached = True

    def attach(self, swap: Callable[[Any, Entry], None]) -> None:
        """Nothing is swapped any more."""

    def around(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Make a call as it is."""
        return call(*arguments)

    def wait(self, timeout: float | None) -> bool:
        """Return at once: this process does not settle it."""
        return False

    def cancel(self) -> None:
        """Nothing is under way."""


def _copied(value: HostValue) -> HostValue:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


@dataclass(frozen=True, eq=False)
class NotedDetails:
    """The details of an entry, and what its search has to say.

    ``tried`` replaces the candidates that the details list, unless it is empty.
    """

    details: Details
    notes: tuple[str, ...]
    tried: tuple[Tried, ...] = ()

    @property
    def plan(self) -> Plan:
        return self.details.plan

    def why(self) -> Why:
        why = self.details.why()
        return replace(why, notes=(*self.notes, *why.notes), tried=self.tried or why.tried)
