"""A pipe whose closing ends a process group.

On Linux the kernel kills the group, stuck in native code or not. Elsewhere a thread of the process
waits for it, which an engine that holds the interpreter lock keeps from running; Windows kills what
is in a job object besides.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

try:
    import fcntl

    HAS_LIFELINES = sys.platform == "linux" and hasattr(fcntl, "F_SETSIG")
except ImportError:
    HAS_LIFELINES = False


def tie(life: int, group: int) -> None:
    """Have the group killed when nobody holds the writing end of ``life`` any more.

    The setting is that of the pipe, not of the process that makes it: a parent makes it for a
    child that has not run yet, and on a busy machine will not for a while. PR_SET_PDEATHSIG would
    spoil it: it comes when a *thread* ends, which in a dying parent is before its pipes close, and
    the group would lose its watch.
    """
    if sys.platform == "linux":
        fcntl.fcntl(life, fcntl.F_SETOWN, -group)
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


def untie(life: int) -> None:
    """Have nobody killed any more: the process looks after itself."""
    if sys.platform == "linux":
        fcntl.fcntl(life, fcntl.F_SETFL, 0)


def watch(life: int) -> None:
    """End this process, and its group, when ``life`` is closed, if the kernel does not."""
    if not HAS_LIFELINES:
        threading.Thread(target=_wait_and_end, args=(life,), daemon=True).start()


def _wait_and_end(life: int) -> None:
    try:
        os.read(life, 1)
    finally:
        if sys.platform != "win32" and hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
