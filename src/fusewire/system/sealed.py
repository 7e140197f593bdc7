"""Shared memory without a name whose size nobody can change: memfd and its seals, of Linux.

A process that could shrink the memory would crash the others that have it mapped. No other system
has such seals: ``CAN_SEAL`` is False there, and every function raises OSError (ENOSYS).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys

try:
    import fcntl

    CAN_SEAL = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")
except ImportError:
    CAN_SEAL = False

_MAP_FIXED = 0x10
# The unit in which the kernel counts what a file takes.
_BLOCK = 512


def sealed_memory(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Return the descriptor and the mapping of new memory, which takes no pages yet."""
    if sys.platform == "linux" and CAN_SEAL:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            mapped = mmap.mmap(descriptor, size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            return descriptor, mapped
        except OSError:
            os.close(descriptor)
            raise
    raise _missing()


def give_back(mapped: mmap.mmap, offset: int, size: int) -> None:
    """Give the pages of a range back to the machine, for all who have it mapped."""
    if sys.platform != "linux":
        raise _missing()
    mapped.madvise(mmap.MADV_REMOVE, offset, size)


def held_bytes(descriptor: int) -> int:
    """Count the bytes for which there are pages."""
    if sys.platform == "win32":
        raise _missing()
    return os.fstat(descriptor).st_blocks * _BLOCK


def map_privately(address: int, size: int, descriptor: int) -> None:
    """Map a copy of the memory in place of the mapping that a forked process inherited."""
    if sys.platform == "win32":
        raise _missing()
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_long),
    )
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    libc.mmap(address, size, access, kind, descriptor, 0)


def _missing() -> OSError:
    return OSError(errno.ENOSYS, f"{sys.platform} has no memory whose size is sealed")
