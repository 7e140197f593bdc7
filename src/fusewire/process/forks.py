"""Keep forks apart from imports in threads.

A forked process does not have the threads of its parent. A module that one of them was importing
stays half imported there, and whoever imports it waits for a thread that does not exist.
"""

from __future__ import annotations

# Hooks before a fork run in the opposite order of imports. Were these imported later, a fork would
# hold their locks and wait for a thread that has ours, which may log or fork, and wait for theirs.
import concurrent.futures.thread as _futures  # noqa: F401
import contextlib
import logging as _logging  # noqa: F401
import os
import threading
from collections.abc import Callable, Iterator

_LOCK = threading.RLock()


@contextlib.contextmanager
def without_forks() -> Iterator[None]:
    """Have other threads wait before they fork."""
    with _LOCK:
        yield


def in_forked_child(
    clean: Callable[[], object], before: Callable[[], object] | None = None
) -> None:
    """Have ``clean`` called in every process that is forked from this one, if any can be.

    ``before`` is called in this process, before it forks.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before or _nothing, after_in_child=clean)


def _nothing() -> None: ...


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )
