"""A page of memory that tells another process when calls run in this one.

Whoever measures on the same cores discards what a call may have disturbed.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
from typing import final

_BYTES = mmap.PAGESIZE


@final
class CallPage:
    """Counts calls that have started and ended; one process writes, others read."""

    def __init__(self, descriptor: int) -> None:
        self._counts = memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")
        self._lock = threading.Lock()

    def start(self) -> None:
        """Count a call that starts."""
        with self._lock:
            self._counts[0] += 1

    def end(self) -> None:
        """Count a call that has ended."""
        with self._lock:
            self._counts[1] += 1

    def mark(self) -> int | None:
        """Return how many calls there were; None while one is running."""
        ended, started = self._counts[1], self._counts[0]
        return started if started == ended else None


def new_page() -> int:
    """Return the descriptor of an empty page, which the caller closes."""
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fusewire-calls")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _BYTES)
    return descriptor
