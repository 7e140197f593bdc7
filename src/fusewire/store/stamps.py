"""Digests of files that were hashed before, found by what the kernel says about a file.

As in git's index, a file with the same device, inode, size and times is the same file. The kernel
records the time of every change, and nobody else can set it (``ctime``). That time is trusted only
if the file system records writes through a mapping; if the time lies well before the file was
hashed, because clocks are coarse and such writes are recorded late; and if it has a fraction,
because disks that know only whole seconds miss changes. Otherwise the file is hashed each time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fusewire.store.disk import Store
from fusewire.store.key import Key, is_sha256

# Hashing a smaller file is as quick as looking it up.
_LARGE = 2**18
# After a write through a mapping, further writes to the page are not recorded until the kernel has
# written it to the disk. The least seconds to wait for that, and a margin beyond the kernel's
# setting.
_SETTLED, _SLACK = 60.0, 25.0
# A file that was written within so many seconds may be written to again at the same time.
_JUST_NOW = 2.0
_SYSTEM = Path("/proc/sys/vm")
_KEPT_BACK = ("dirty_expire_centisecs", "dirty_writeback_centisecs")
# These set the times of a file when a page becomes writable, and protect the page again once it is
# on the disk. tmpfs and ramfs do neither. An overlay behaves as its upper layer, which may be a
# tmpfs; network, shared and fuse file systems have writers that this kernel does not see.
_NOTING = frozenset({"btrfs", "ext2", "ext3", "ext4", "xfs"})
# With this, a crash may lose the time of a change and keep the change.
_LATE = "lazytime"
_SECOND = 10**9


def file_digest(path: str | os.PathLike[str], store: Store | None = None) -> str | None:
    """Return the SHA-256 of a file as hex; None if it cannot be read."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            about = os.fstat(file.fileno())
            key = _key(about) if store is not None and about.st_size >= _LARGE else None
            if key is not None and store is not None and (known := _known(key, store)) is not None:
                return known
            start = time.time()
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if (
                store is not None
                and key == _key(os.fstat(file.fileno()))
                and _is_old(file.fileno(), about, start)
            ):
                store.put(key, json.dumps({"sha256": found}).encode())
            return found
    except OSError:
        return None


def files_digest(
    root: str, files: Sequence[tuple[str, os.stat_result]], store: Store | None = None
) -> str:
    """Return the SHA-256 of the names under a root, and the content, of small files as hex.

    Files that an installer wrote are hashed once: who may replace the code that runs here need not
    deceive the kernel's times.
    """
    states = [f"{path} {x.st_size} {x.st_mtime_ns} {x.st_ctime_ns} {x.st_ino}" for path, x in files]
    key = Key.of("stamp", files=hashlib.sha256("\n".join(sorted(states)).encode()).hexdigest())
    if store is not None and (known := _known(key, store)) is not None:
        return known
    now = time.time()
    sha = hashlib.sha256()
    for path in sorted(path for path, _ in files):
        sha.update(f"{path.removeprefix(root)}\n".encode())
        sha.update(hashlib.sha256(Path(path).read_bytes()).digest())
    found = sha.hexdigest()
    if store is not None and all(about.st_ctime < now - _JUST_NOW for _, about in files):
        store.put(key, json.dumps({"sha256": found}).encode())
    return found


def was_checked(fd: int, digest: str, store: Store) -> bool:
    """Tell whether this user has checked an open file of this digest, unchanged since."""
    return store.get(_key(os.fstat(fd), checked=digest)) is not None


def check_once(fd: int, digest: str, store: Store, check: Callable[[], None]) -> None:
    """Check a file now, for good, if it is so old that a later change would show."""
    about, start = os.fstat(fd), time.time()
    key = _key(about, checked=digest)
    if not _is_old(fd, about, start):
        return
    check()
    if key == _key(os.fstat(fd), checked=digest):
        store.put(key, b"{}")


def _key(about: os.stat_result, **more: str) -> Key:
    return Key.of(
        "stamp",
        device=about.st_dev,
        inode=about.st_ino,
        size=about.st_size,
        modified=about.st_mtime_ns,
        changed=about.st_ctime_ns,
        **more,
    )


def _is_old(fd: int, about: os.stat_result, now: float) -> bool:
    """Return whether a file was unchanged for so long that a later change would show."""
    if about.st_ctime_ns % _SECOND == 0 or about.st_ctime >= now - _SETTLED:
        return False
    kind, options = _mount(fd)
    return kind in _NOTING and _LATE not in options and about.st_ctime < now - _settling()


def _mount(fd: int) -> tuple[str, list[str]]:
    """Return the type and options of the file system of an open file; "" if unknown.

    Found by mount, not by device: on btrfs and overlays the two differ.
    """
    try:
        held = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii")
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return "", []
    number = dict(line.split(":", 1) for line in held.splitlines()).get("mnt_id", "").strip()
    for line in mounts.splitlines():
        place, _, about = line.partition(" - ")
        if place.split(" ")[0] == number:
            kind, *_, options = about.split(" ")
            return kind, options.split(",")
    return "", []


def _settling() -> float:
    """Return after how many seconds a written page is on the disk; inf if unknown."""
    try:
        expire, wake = (int((_SYSTEM / name).read_text("ascii")) / 100 for name in _KEPT_BACK)
    except (OSError, ValueError):
        return math.inf
    # A kernel that does not wake up for it may hold pages back indefinitely.
    return max(_SETTLED, expire + wake + _SLACK) if wake else math.inf


def _known(key: Key, store: Store) -> str | None:
    held = store.get(key)
    if held is None:
        return None
    try:
        found = json.loads(held)["sha256"]
    except (ValueError, TypeError, KeyError):
        found = None
    if is_sha256(found):
        return found
    store.drop(key)
    return None
