"""Find the comparers that a process has started, and see them end."""

import os
import time
from pathlib import Path

from fusewire.system.processes import descendants


def comparers() -> list[int]:
    """List the comparers that this process has started."""
    found = []
    for pid in descendants(os.getpid()):
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"fusewire.session.comparer" in command.read_bytes():
            found.append(pid)
    return found


def comparer() -> int:
    """Wait for the comparer, and return its id."""
    end = time.monotonic() + 180
    while not (found := comparers()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found[0]


def is_running(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    # What has ended may wait for somebody who takes note of it.
    return words[0] not in "ZX"


def has_ended(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
