"""This machine as one host: its id, its kind, and a lock for what must run alone on it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fusewire.process.machine import kernels_for
from fusewire.store.files import Folder
from fusewire.system.folders import user_name
from fusewire.system.locks import wait_for_lock

# Not $TMPDIR: two raylets of one machine may have different ones, and must share this lock.
_SHARED = Path("/tmp")
_IDS = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


@cache
def host_id() -> str:
    """Identify this machine; all processes of a user on it get the same id."""
    said = [platform.node()]
    for path in _IDS:
        with contextlib.suppress(OSError):
            said.append(path.read_text().strip())
            break
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


@cache
def machine_kind() -> str:
    """Name machines on which the same kernels run equally fast: architecture, cores, features."""
    facts = kernels_for()
    told = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()[:8]
    return f"{platform.machine()}-{facts['compute_units']}-{told}"


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other process of this user on this host measures, and keep others out.

    The lock ends with its process. Containers with folders of their own are hosts of their own.
    """
    folder = Folder(_SHARED / f"fusewire-{user_name()}", "folder of locks", "nothing")
    fd = folder.open_lock("measuring.lock")
    try:
        wait_for_lock(fd)
        yield
    finally:
        os.close(fd)
