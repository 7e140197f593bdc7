"""One comparison of a user on a machine at a time: two would measure each other.

A lock in a folder of the user's says whose turn it is, and for how long it should take at most.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fusewire.errors import NoQuietError, StoreError
from fusewire.store.files import Folder
from fusewire.system.folders import user_name
from fusewire.system.locks import HAS_LOCKS, try_lock

_TICK = 0.05
_NAME = "comparing"
_MOST_BYTES = 64


@contextlib.contextmanager
def one_on_this_machine(seconds: float) -> Iterator[None]:
    """Wait for the comparers of other processes; ``seconds`` are what this one may take.

    NoQuietError if another one takes longer than it may: it gets no time on busy cores, or hangs.
    """
    try:
        descriptor = _folder().open_lock(_NAME) if HAS_LOCKS else None
    except (OSError, StoreError):
        descriptor = None
    if descriptor is None:
        # No answer depends on a lock, and none is taken where others could hold it.
        yield
        return
    try:
        _wait(descriptor, seconds)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"{os.getpid()} {seconds}".encode())
        yield
    finally:
        os.close(descriptor)


def _folder() -> Folder:
    """Open the folder for locks; StoreError if others can write there."""
    parent = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    path = Path(parent) / f"fusewire-{user_name()}"
    return Folder(path, "folder for locks", "XDG_RUNTIME_DIR")


def _wait(descriptor: int, seconds: float) -> None:
    holder, since = b"", time.monotonic()
    while True:
        try:
            try_lock(descriptor)
            return
        except BlockingIOError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            # It is somebody else's turn by now: that one has its own time.
            if (found := os.read(descriptor, _MOST_BYTES)) != holder:
                holder, since = found, time.monotonic()
        pid, limit = _read(holder, seconds)
        if time.monotonic() - since > limit:
            raise NoQuietError(
                f"Another process ({pid}) has compared engines for more than {limit:.0f} s on this "
                "machine, and two comparisons would measure each other."
            ) from None
        time.sleep(_TICK)


def _read(holder: bytes, seconds: float) -> tuple[str, float]:
    """Return the id of the holder, and the time it may take: ours if it does not say."""
    try:
        pid, limit = holder.split()
        return str(int(pid)), float(limit)
    except ValueError:
        return "unknown", seconds
