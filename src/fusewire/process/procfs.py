"""What the kernel tells about processes: memory in use, descendants."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


def resident(pid: int) -> int:
    """Give the bytes of memory that a process holds; 0 when it is gone."""
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def descendants(pid: int) -> list[int]:
    """List the children of a process, theirs, and so on; also those that left its group."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for listed in (_PROC / str(waiting.pop()) / "task").glob("*/children"):
            try:
                children = [int(word) for word in listed.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def available() -> int:
    """Give the bytes of memory that the machine could still hand out."""
    for line in (_PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * _PAGE
