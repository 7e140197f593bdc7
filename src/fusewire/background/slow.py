"""Compare slow compilers behind a program that has been settled, and is still there, for a while.

Compiling takes half a minute, so a program is worth it that has been settled for as long.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, final

from fusewire.ir.graph import HostValue
from fusewire.process.forks import in_forked_child, without_forks
from fusewire.program.entry import Entry, State
from fusewire.program.serving import ServingRunner

if TYPE_CHECKING:
    from fusewire.background.search import BackgroundSearch

Answer = TypeVar("Answer")
# Seconds for which a program has been settled before slow compilers are compared for it.
DELAY = 30.0


@final
class SlowSearch:
    """Follows a settled entry, whose calls it does not touch until the search begins."""

    def __init__(
        self, search: BackgroundSearch, settled: Entry, inputs: Sequence[HostValue]
    ) -> None:
        self._search = search
        self._settled = settled
        self._inputs = inputs
        self._swap: weakref.WeakMethod[Callable[[Any, Entry], None]] | None = None
        self._is_cancelled = False

    @property
    def state(self) -> State:
        """The program counts as settled."""
        return "settled"

    @property
    def is_attached(self) -> bool:
        """Whether a program takes the entry to keep."""
        return self._swap is not None

    def attach(self, swap: Callable[[Any, Entry], None]) -> None:
        """Say which method of a program takes an entry; the wait begins now."""
        self._swap = weakref.WeakMethod(swap)
        _clock().put(self)

    def around(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Make a call as it is."""
        return call(*arguments)

    def wait(self, timeout: float | None) -> bool:
        """Return at once: nobody waits for slow compilers."""
        return True

    def cancel(self) -> None:
        """Stay with what was settled on."""
        self._is_cancelled = True
        self._search.cancel()

    def begin(self) -> None:
        """Have calls counted, and the search begin."""
        swap = None if self._swap is None else self._swap()
        if swap is None or self._is_cancelled:
            return
        runner = self._settled.runner
        with without_forks():
            serving = ServingRunner(runner, self._search, self._inputs, is_late=True)
            swap(self, replace(self._settled, runner=serving, serving=serving))
            serving.begin()


@final
class _Clock:
    """Begins searches when it is time, in a thread that is there while one waits."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, weakref.ref[SlowSearch]]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        in_forked_child(self._forget)

    def put(self, search: SlowSearch) -> None:
        """Add a search; those that were put first are due first."""
        with self._lock:
            self._waiting.append((time.monotonic() + DELAY, weakref.ref(search)))
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="fusewire-slow", daemon=True)
        thread.start()
        self._thread = thread

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._waiting:
                        return
                    due, waiting = self._waiting.popleft()
                time.sleep(max(due - time.monotonic(), 0.0))
                if (search := waiting()) is not None:
                    search.begin()
                del search
        finally:
            with self._lock:
                self._thread = None
                # One has raised, or one was put just now: those that wait are not forgotten.
                if self._waiting:
                    self._start()

    def _forget(self) -> None:
        self._waiting, self._lock, self._thread = deque(), threading.Lock(), None


@functools.cache
def _clock() -> _Clock:
    return _Clock()
