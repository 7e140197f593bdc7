"""Locks on open files, which end with the process that holds them.

POSIX systems lock a whole file with ``flock``. Windows locks bytes: one far beyond the end stands
for the file, because nobody else may read a byte that is locked. Where a system has neither, a lock
is an OSError, as on a disk that cannot lock; the store then works without turns.
"""

from __future__ import annotations

import errno
import os
import sys
import time

_FAR = 1 << 30
_PAUSE = 0.05

if sys.platform == "win32":
    import msvcrt

    HAS_LOCKS = True

    def try_lock(descriptor: int) -> None:
        """Lock an open file; BlockingIOError if somebody else holds the lock."""
        try:
            _at_byte(descriptor, msvcrt.LK_NBLCK)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise
            raise BlockingIOError(errno.EWOULDBLOCK, "the file is locked") from None

    def unlock(descriptor: int) -> None:
        """Release the lock on an open file."""
        _at_byte(descriptor, msvcrt.LK_UNLCK)

    def _at_byte(descriptor: int, what: int) -> None:
        here = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, what, 1)
        finally:
            os.lseek(descriptor, here, os.SEEK_SET)

else:
    try:
        import fcntl

        HAS_LOCKS = True
    except ImportError:
        HAS_LOCKS = False

    def try_lock(descriptor: int) -> None:
        """Lock an open file; BlockingIOError if somebody else holds the lock."""
        if not HAS_LOCKS:
            raise OSError(errno.ENOLCK, "this system cannot lock files")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(descriptor: int) -> None:
        """Release the lock on an open file."""
        if HAS_LOCKS:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_for_lock(descriptor: int) -> None:
    """Lock an open file, after whoever holds the lock."""
    while True:
        try:
            try_lock(descriptor)
            return
        except BlockingIOError:
            time.sleep(_PAUSE)
