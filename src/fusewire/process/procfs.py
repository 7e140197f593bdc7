"""Facts about processes from the kernel: memory in use, time on and off a core, descendants."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def resident(pid: int) -> int:
    """Return the resident bytes of a process; 0 if it is gone."""
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used, all threads together; 0 if gone."""
    try:
        words = _stat(pid)
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def is_asleep(pid: int) -> bool:
    """Tell whether a process waits, and not for a core or a disk; False if it is gone."""
    try:
        return _stat(pid)[0] == "S"
    except (OSError, IndexError, ValueError):
        return False


def _stat(pid: int) -> list[str]:
    """Return what the kernel says about a process after its name, from its state on."""
    # The name of the program, in parentheses, may hold anything.
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def descendants(pid: int) -> list[int]:
    """List all descendants of a process, including those that left its group."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    """List the children of all threads of a process; it may end at any moment."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for listed in (_PROC / str(pid) / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, listed.read_text().split())
    return found


def available() -> int:
    """Return the bytes of memory that the machine has available."""
    for line in (_PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * _PAGE


@functools.cache
def quarter_of_machine() -> int:
    """Return a quarter of the memory of the machine, or of the container that this runs in."""
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE
    with contextlib.suppress(OSError, ValueError):
        # "max" if the container has no limit.
        memory = min(memory, int(_CONTAINER.read_text()))
    return memory // 4


class Scheduled(NamedTuple):
    """Seconds for which the threads of a process ran, and for which they waited for a core."""

    ran: float
    waited: float


def scheduled(pid: int | None) -> Scheduled:
    """Sum over the threads of a process; zeros if unknown."""
    ran = waited = 0
    for listed in (_PROC / str(pid) / "task").glob("*/schedstat") if pid is not None else ():
        try:
            words = listed.read_text().split()
            ran, waited = ran + int(words[0]), waited + int(words[1])
        except (OSError, IndexError, ValueError):
            continue
    return Scheduled(ran * 1e-9, waited * 1e-9)


def share_idleness(pid: int) -> None:
    """Give a child in a session of its own as little of the cores as this process asks for.

    The scheduler divides time between sessions first (autogroups, see sched(7)): there, the policy
    of a process counts against others of its session only.
    """
    if not hasattr(os, "SCHED_IDLE") or os.sched_getscheduler(0) != os.SCHED_IDLE:
        return
    with contextlib.suppress(OSError):
        (_PROC / str(pid) / "autogroup").write_text("19")
