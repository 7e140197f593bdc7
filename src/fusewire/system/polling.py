"""Wait for pipes and for the end of a process in one call: Linux has descriptors of both.

Thin, because calls to a child go through it: what is polled is a ``select.poll`` itself.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from typing import Any

CAN_POLL = sys.platform == "linux" and hasattr(select, "poll") and hasattr(os, "pidfd_open")
READ: int = getattr(select, "POLLIN", 1)
WRITE: int = getattr(select, "POLLOUT", 4)


def poller() -> Any:
    """Return a new ``select.poll``, which has no type on Windows."""
    if sys.platform == "win32":
        raise _missing()
    return select.poll()


def descriptor_of(pid: int) -> int:
    """Return a descriptor that can be read when a process has ended."""
    if sys.platform != "linux":
        raise _missing()
    return os.pidfd_open(pid)


def unblock(descriptor: int) -> None:
    """Have reads and writes return at once."""
    if sys.platform == "win32":
        raise _missing()
    os.set_blocking(descriptor, False)


def _missing() -> OSError:
    return OSError(errno.ENOSYS, f"{sys.platform} does not poll pipes and processes")
