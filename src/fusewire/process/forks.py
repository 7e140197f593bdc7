"""Keep forks apart from imports in threads.

A forked process does not have the threads of its parent. A module that one of them was importing
stays half imported there, and whoever imports it waits for a thread that does not exist.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_LOCK = threading.RLock()


@contextlib.contextmanager
def without_forks() -> Iterator[None]:
    """Have other threads wait before they fork."""
    with _LOCK:
        yield


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )
