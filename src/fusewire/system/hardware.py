"""The cores and the memory of this machine, or of the container that this process runs in."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
from pathlib import Path

_PROC = Path("/proc")
_CONTAINER = Path("/sys/fs/cgroup/memory.max")
# What limits are made of where no system says how much memory there is.
ASSUMED_BYTES = 4 << 30


def usable_cores() -> int:
    """Return how many cores this process may use, as far as the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    # process_cpu_count is new in Python 3.13.
    count: int | None = getattr(os, "process_cpu_count", os.cpu_count)()
    return count or 1


@functools.cache
def total_memory() -> int | None:
    """Return the bytes of memory of the machine; None if no system says."""
    pages = _configured("SC_PHYS_PAGES")
    if pages is not None:
        return pages * mmap.PAGESIZE
    if sys.platform == "darwin":
        return darwin_number("hw.memsize")
    if sys.platform == "win32":
        return _memory_status().ullTotalPhys
    return None


def available_memory() -> int | None:
    """Return the bytes of memory that the machine has available; None if no system says."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    pages = _configured("SC_AVPHYS_PAGES")
    if pages is not None:
        return pages * mmap.PAGESIZE
    if sys.platform == "darwin":
        counts = [darwin_number(f"vm.page_{name}_count") for name in ("free", "speculative")]
        return sum(filter(None, counts)) * mmap.PAGESIZE or None
    if sys.platform == "win32":
        return _memory_status().ullAvailPhys
    return None


@functools.cache
def quarter_of_machine() -> int:
    """Return a quarter of the memory of the machine, or of the container that this runs in."""
    memory = total_memory() or ASSUMED_BYTES
    with contextlib.suppress(OSError, ValueError):
        # "max" if the container has no limit.
        memory = min(memory, int(_CONTAINER.read_text()))
    return memory // 4


def _configured(name: str) -> int | None:
    """Ask sysconf for a number; None if there is no such function, or no such name."""
    sysconf = getattr(os, "sysconf", None)
    if sysconf is None:
        return None
    try:
        found = int(sysconf(name))
    except (ValueError, OSError):
        return None
    return found if found > 0 else None


if sys.platform == "darwin":

    def darwin_number(name: str) -> int | None:
        """Return a number that sysctl knows by name."""
        found, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
        given = name.encode(), ctypes.byref(found), ctypes.byref(size), None, ctypes.c_size_t(0)
        # Little-endian: a number of four bytes leaves the others as they are.
        return found.value if ctypes.CDLL(None).sysctlbyname(*given) == 0 else None

    def darwin_text(name: str) -> str:
        """Return a text that sysctl knows by name; "" if it does not."""
        held = ctypes.create_string_buffer(256)
        size = ctypes.c_size_t(len(held))
        given = name.encode(), held, ctypes.byref(size), None, ctypes.c_size_t(0)
        is_known = ctypes.CDLL(None).sysctlbyname(*given) == 0
        return held.value.decode(errors="replace") if is_known else ""


if sys.platform == "win32":

    class _MemoryStatus(ctypes.Structure):
        """MEMORYSTATUSEX."""

        ullTotalPhys: int  # noqa: N815 - the names of the Windows headers
        ullAvailPhys: int  # noqa: N815
        _fields_ = (
            ("dwLength", ctypes.c_uint32),
            ("dwMemoryLoad", ctypes.c_uint32),
            ("ullTotalPhys", ctypes.c_uint64),
            ("ullAvailPhys", ctypes.c_uint64),
            ("ullTotalPageFile", ctypes.c_uint64),
            ("ullAvailPageFile", ctypes.c_uint64),
            ("ullTotalVirtual", ctypes.c_uint64),
            ("ullAvailVirtual", ctypes.c_uint64),
            ("ullAvailExtendedVirtual", ctypes.c_uint64),
        )

    def _memory_status() -> _MemoryStatus:
        found = _MemoryStatus(dwLength=ctypes.sizeof(_MemoryStatus))
        if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(found)):
            raise ctypes.WinError()
        return found
