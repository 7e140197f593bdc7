"""A pipe whose closing ends a process group: the kernel kills it, stuck in native code or not."""

from __future__ import annotations

import fcntl
import os
import signal
import sys

HAS_LIFELINES = sys.platform == "linux"


def tie(life: int, group: int) -> None:
    """Have the group killed when nobody holds the writing end of ``life`` any more.

    The setting is that of the pipe, not of the process that makes it: a parent makes it for a
    child that has not run yet, and on a busy machine will not for a while. PR_SET_PDEATHSIG would
    spoil it: it comes when a *thread* ends, which in a dying parent is before its pipes close, and
    the group would lose its watch.
    """
    assert sys.platform == "linux", "other kernels do not choose the signal"
    fcntl.fcntl(life, fcntl.F_SETOWN, -group)
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


def untie(life: int) -> None:
    """Have nobody killed any more: the process looks after itself."""
    fcntl.fcntl(life, fcntl.F_SETFL, 0)
