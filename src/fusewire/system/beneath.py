"""Open a file beneath a folder, through no link, whatever somebody else does meanwhile.

Linux 5.6 walks the path itself and sees to it that nothing leaves the folder. Elsewhere the walk
goes folder by folder, each opened in the one before (``dir_fd``) and refused if it is a link. A
system that has neither cannot do this safely, and does not.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Sequence

# Not all of these exist everywhere. Opening a FIFO must not wait for its writer.
FLAGS = os.O_RDONLY | sum(getattr(os, f"O_{n}", 0) for n in ("CLOEXEC", "NONBLOCK", "BINARY"))
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
FOLDER = getattr(os, "O_DIRECTORY", 0)

_OPENAT2 = 437
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def can_open_in_steps() -> bool:
    """Tell whether this system opens files in an open folder, and refuses links."""
    return bool(NO_LINK and FOLDER) and os.open in os.supports_dir_fd


def open_in_one(folder: int, parts: Sequence[str]) -> int:
    """Let the kernel walk the path and see to it that nothing leaves the folder (Linux 5.6)."""
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    how = _How(FLAGS, 0, _BENEATH | _NO_LINKS | _NO_MAGIC_LINKS)
    path = ctypes.c_char_p(os.fsencode("/".join(parts)))
    sizes = ctypes.c_int(folder), path, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
    found = int(call(ctypes.c_long(_OPENAT2), *sizes))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def open_in_steps(folder: int, parts: Sequence[str]) -> int:
    """Walk the path folder by folder, refusing links; OSError (ENOSYS) where that is unsafe."""
    if not can_open_in_steps():
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    here = os.dup(folder)
    try:
        for part in parts[:-1]:
            here, above = os.open(part, FLAGS | FOLDER | NO_LINK, dir_fd=here), here
            os.close(above)
        return os.open(parts[-1], FLAGS | NO_LINK, dir_fd=here)
    finally:
        os.close(here)


def open_beneath(folder: int, parts: Sequence[str]) -> int:
    """Open by the best means of this system; OSError (ENOSYS) if it has none that is safe."""
    if sys.platform == "linux":
        try:
            return open_in_one(folder, parts)
        except OSError as error:
            # Old kernels lack the call, and sandboxes of containers forbid it.
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
    return open_in_steps(folder, parts)
