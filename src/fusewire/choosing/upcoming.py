"""Take items from an iterator that may be slow, without waiting for them forever."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable
from typing import Generic, TypeVar, final

from fusewire.errors import FusewireError

Item = TypeVar("Item")
# Seconds after which a thread sees that nobody waits for its item.
_TICK = 0.05


@final
class Upcoming(Generic[Item]):
    """Iterates in a thread, one item ahead of the caller.

    What the iterator raises, ``take`` raises. ``close`` lets the thread end after its current item.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = items
        # None is the end.
        self._queue: queue.Queue[Item | None] = queue.Queue(1)
        self._is_closed = threading.Event()
        self._error: BaseException | None = None
        self.is_done = False
        self._thread = threading.Thread(target=self._iterate, daemon=True)
        self._thread.start()

    def take(self, seconds: float) -> Item | None:
        """Return the next item; None at the end, or if it takes longer than so many seconds."""
        try:
            item = self._queue.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None
        if item is None and self._error is not None:
            raise self._error
        self.is_done = item is None
        return item

    def close(self) -> None:
        """Take no further items."""
        self._is_closed.set()

    def _iterate(self) -> None:
        # Unless the iterator ends, whatever stopped it is an error that nobody expected.
        self._error = RuntimeError("Listing the candidates ended with the error above.")
        try:
            for item in self._items:
                self._hand_over(item)
                if self._is_closed.is_set():
                    break
            self._error = None
        except (FusewireError, OSError, MemoryError, KeyboardInterrupt) as error:
            self._error = error
        finally:
            self._hand_over(None)

    def _hand_over(self, item: Item | None) -> None:
        """Wait until the caller takes the item, or nobody takes any more."""
        while not self._is_closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_TICK)
                return
