"""Facts about processes from the kernel: memory in use, time on and off a core, descendants.

Linux tells them in /proc, macOS by libproc, Windows by its process functions. A process that is
gone, or a system that does not tell, is 0 or an empty list; ``can_measure`` says which of the two.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from pathlib import Path
from typing import NamedTuple

_PAGE = mmap.PAGESIZE
_PROC = Path("/proc")
_NANOSECONDS = 1e-9
_LOWEST = 19


def can_measure() -> bool:
    """Tell whether this system says how much memory a process uses."""
    return resident(os.getpid()) > 0


def resident(pid: int) -> int:
    """Return the resident bytes of a process; 0 if it is gone, or the system does not tell."""
    if sys.platform == "darwin":
        return _usage(pid).resident_size
    if sys.platform == "win32":
        return _windows_resident(pid)
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used, all threads together; 0 if unknown."""
    if sys.platform == "darwin":
        usage = _usage(pid)
        return (usage.user_time + usage.system_time) * _tick()
    try:
        words = _stat(pid)
        return (int(words[11]) + int(words[12])) / _clock_ticks()
    except (OSError, IndexError, ValueError):
        return 0.0


def is_asleep(pid: int) -> bool:
    """Tell whether a process waits, and not for a core or a disk; False if unknown."""
    try:
        return _stat(pid)[0] == "S"
    except (OSError, IndexError, ValueError):
        return False


def _stat(pid: int) -> list[str]:
    """Return what the kernel says about a process after its name, from its state on."""
    # The name of the program, in parentheses, may hold anything.
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _clock_ticks() -> int:
    return int(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100


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
    if sys.platform == "darwin":
        return _darwin_children(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for listed in (_PROC / str(pid) / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, listed.read_text().split())
    return found


class Scheduled(NamedTuple):
    """Seconds for which the threads of a process ran, and for which they waited for a core."""

    ran: float
    waited: float


def scheduled(pid: int | None, but: int | None = None) -> Scheduled:
    """Sum over the threads of a process, but one by its native id; zeros if unknown."""
    ran = waited = 0
    with contextlib.suppress(OSError):
        for listed in (_PROC / str(pid) / "task").glob("*/schedstat") if pid is not None else ():
            if listed.parent.name == str(but):
                continue
            try:
                words = listed.read_text().split()
                ran, waited = ran + int(words[0]), waited + int(words[1])
            except (OSError, IndexError, ValueError):
                continue
    return Scheduled(ran * _NANOSECONDS, waited * _NANOSECONDS)


def share_idleness(pid: int) -> None:
    """Give a child in a session of its own as little of the cores as this process asks for.

    The scheduler divides time between sessions first (autogroups, see sched(7)): there, the policy
    of a process counts against others of its session only.
    """
    if sys.platform == "linux" and hasattr(os, "sched_getscheduler"):
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_IDLE:
                (_PROC / str(pid) / "autogroup").write_text("19")


def take_what_is_left() -> None:
    """Take only the time that nobody else wants; what this process starts does the same."""
    if sys.platform == "win32":
        kernel = ctypes.windll.kernel32
        kernel.SetPriorityClass(ctypes.c_void_p(_CURRENT), _IDLE_PRIORITY)
        return
    with contextlib.suppress(OSError):
        if sys.platform == "linux" and hasattr(os, "sched_setscheduler"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        elif hasattr(os, "nice"):
            os.nice(_LOWEST)


def limit_processor(pid: int, seconds: int) -> None:
    """Have the kernel end a process that uses more processor time, where it can."""
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
            import resource

            _, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
            resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, hard))


def limit_descriptors(most: int) -> None:
    """Let this process have at most so many files open, where the system limits that."""
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, most), hard))


def limit_for_good(name: str, most: int) -> None:
    """Lower a limit of this process, such as RLIMIT_CORE, where there is one."""
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            import resource

            which = getattr(resource, name)
            _, hard = resource.getrlimit(which)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(which, (most, most))


def peak_memory() -> int | None:
    """Return the most bytes that this process ever held; None if the system does not tell."""
    if sys.platform == "win32":
        return _windows_memory(_CURRENT).PeakWorkingSetSize
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, others kilobytes.
    return most if sys.platform == "darwin" else most * 1024


if sys.platform == "darwin":
    # Children that are listed at once.
    _MOST_CHILDREN = 1024

    class _Usage(ctypes.Structure):
        """rusage_info_v0; times are in ticks of the processor's clock."""

        user_time: int
        system_time: int
        resident_size: int
        _fields_ = (
            ("uuid", ctypes.c_uint8 * 16),
            *(
                (name, ctypes.c_uint64)
                for name in (
                    *("user_time", "system_time", "pkg_idle_wkups", "interrupt_wkups"),
                    *("pageins", "wired_size", "resident_size", "phys_footprint"),
                    *("proc_start_abstime", "proc_exit_abstime"),
                )
            ),
        )

    def _usage(pid: int) -> _Usage:
        """Ask for what a process uses; zeros if it is gone, or is not ours."""
        found = _Usage()
        ctypes.CDLL(None).proc_pid_rusage(ctypes.c_int(pid), 0, ctypes.byref(found))
        return found

    def _tick() -> float:
        """Return the seconds of one tick."""
        ratio = (ctypes.c_uint32 * 2)()
        ctypes.CDLL(None).mach_timebase_info(ratio)
        return int(ratio[0]) / max(int(ratio[1]), 1) * _NANOSECONDS

    def _darwin_children(pid: int) -> list[int]:
        listed = (ctypes.c_int * _MOST_CHILDREN)()
        count = ctypes.CDLL(None).proc_listchildpids(pid, listed, ctypes.sizeof(listed))
        return list(listed[: max(0, min(count, _MOST_CHILDREN))])


if sys.platform == "win32":
    _QUERY, _CURRENT, _IDLE_PRIORITY = 0x1000, -1, 0x40

    class _MemoryCounters(ctypes.Structure):
        """PROCESS_MEMORY_COUNTERS."""

        PeakWorkingSetSize: int
        WorkingSetSize: int
        _fields_ = (
            ("cb", ctypes.c_uint32),
            ("PageFaultCount", ctypes.c_uint32),
            ("PeakWorkingSetSize", ctypes.c_size_t),
            ("WorkingSetSize", ctypes.c_size_t),
            ("QuotaPeakPagedPoolUsage", ctypes.c_size_t),
            ("QuotaPagedPoolUsage", ctypes.c_size_t),
            ("QuotaPeakNonPagedPoolUsage", ctypes.c_size_t),
            ("QuotaNonPagedPoolUsage", ctypes.c_size_t),
            ("PagefileUsage", ctypes.c_size_t),
            ("PeakPagefileUsage", ctypes.c_size_t),
        )

    def _windows_memory(handle: int) -> _MemoryCounters:
        """Ask for the memory of a process; zeros if it is gone."""
        found = _MemoryCounters(cb=ctypes.sizeof(_MemoryCounters))
        given = ctypes.c_void_p(handle), ctypes.byref(found), ctypes.c_uint32(found.cb)
        ctypes.windll.kernel32.K32GetProcessMemoryInfo(*given)
        return found

    def _windows_resident(pid: int) -> int:
        kernel = ctypes.WinDLL("kernel32")
        kernel.OpenProcess.restype = ctypes.c_void_p
        handle = kernel.OpenProcess(_QUERY, False, pid)
        if not handle:
            return 0
        try:
            return _windows_memory(handle).WorkingSetSize
        finally:
            kernel.CloseHandle(ctypes.c_void_p(handle))
