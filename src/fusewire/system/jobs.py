"""Job objects of Windows: processes that end together, and with whoever holds the job.

Written against the documentation of the Windows API, and never run: no Windows machine was at hand.
"""

from __future__ import annotations

import ctypes
import sys
from typing import final

if sys.platform == "win32":
    _KILL_ON_CLOSE, _JOB_MEMORY, _DIE_ON_EXCEPTION = 0x2000, 0x0200, 0x0400
    _EXTENDED_LIMITS = 9
    _SET_QUOTA_AND_TERMINATE = 0x0101

    class _BasicLimits(ctypes.Structure):
        """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

        LimitFlags: int
        _fields_ = (
            ("PerProcessUserTimeLimit", ctypes.c_int64),
            ("PerJobUserTimeLimit", ctypes.c_int64),
            ("LimitFlags", ctypes.c_uint32),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", ctypes.c_uint32),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", ctypes.c_uint32),
            ("SchedulingClass", ctypes.c_uint32),
        )

    class _ExtendedLimits(ctypes.Structure):
        """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

        Basic: _BasicLimits
        JobMemoryLimit: int
        _fields_ = (
            ("Basic", _BasicLimits),
            ("IoInfo", ctypes.c_uint64 * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        )

    @final
    class JobObject:
        """Holds a process and all that it starts; they are killed when this is closed."""

        def __init__(self, pid: int) -> None:
            """Put a process into a job of its own; OSError if the system refuses."""
            self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            for name in ("CreateJobObjectW", "OpenProcess"):
                getattr(self._kernel, name).restype = ctypes.c_void_p
            self._handle = ctypes.c_void_p(self._kernel.CreateJobObjectW(None, None))
            self._check(bool(self._handle))
            self.limit_memory(0)
            access = _SET_QUOTA_AND_TERMINATE
            process = ctypes.c_void_p(self._kernel.OpenProcess(access, False, pid))
            self._check(bool(process))
            try:
                self._check(self._kernel.AssignProcessToJobObject(self._handle, process))
            finally:
                self._kernel.CloseHandle(process)

        def limit_memory(self, most: int) -> None:
            """Let the job commit at most so many bytes; 0 for no limit."""
            limits = _ExtendedLimits(JobMemoryLimit=most)
            flags = _KILL_ON_CLOSE | _DIE_ON_EXCEPTION
            limits.Basic.LimitFlags = flags | _JOB_MEMORY if most else flags
            size = ctypes.c_uint32(ctypes.sizeof(limits))
            given = self._handle, _EXTENDED_LIMITS, ctypes.byref(limits), size
            self._check(self._kernel.SetInformationJobObject(*given))

        def kill(self) -> None:
            """End all processes of the job."""
            self._kernel.TerminateJobObject(self._handle, 1)

        def close(self) -> None:
            """Let go of the job, which ends what is left of it."""
            self._kernel.CloseHandle(self._handle)

        def _check(self, is_done: object) -> None:
            if not is_done:
                raise ctypes.WinError(ctypes.get_last_error())
