"""Digests of files that were hashed before, found by what the kernel says of a file.

As git does with its index: a file of the same device, inode, size and times is the same file. The
kernel notes the time of every change, and nobody else can set it (``ctime``). What is believed of
that time is little: it must lie well before the file was hashed, as clocks are coarse and memory
that is written through a mapping is noted late; and it must have a fraction, as disks that know
whole seconds only miss changes. Else the file is hashed each time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path

from fusewire.store.disk import Store
from fusewire.store.key import Key

# Smaller files are hashed as quickly as they are looked up.
_LARGE = 2**18
# Longer than the kernel keeps pages back that were written to.
_SETTLED = 60.0
_SECOND = 10**9
_SHA256 = re.compile("[0-9a-f]{64}")


def file_digest(path: str | os.PathLike[str], store: Store | None = None) -> str | None:
    """Give the SHA-256 of a file as hex; None when it cannot be read."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            about = os.fstat(file.fileno())
            key = _key(about) if store is not None and about.st_size >= _LARGE else None
            if key is not None and store is not None and (known := _known(key, store)) is not None:
                return known
            start = time.time()
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if store is not None and key == _key(os.fstat(file.fileno())) and _is_old(about, start):
                store.put(key, json.dumps({"sha256": found}).encode())
            return found
    except OSError:
        return None


def _key(about: os.stat_result) -> Key:
    return Key.of(
        "stamp", device=about.st_dev, inode=about.st_ino, size=about.st_size,
        modified=about.st_mtime_ns, changed=about.st_ctime_ns,
    )  # fmt: skip


def _is_old(about: os.stat_result, now: float) -> bool:
    """Tell whether a file was left alone for so long that a change since would show."""
    return about.st_ctime < now - _SETTLED and about.st_ctime_ns % _SECOND != 0


def _known(key: Key, store: Store) -> str | None:
    held = store.get(key)
    if held is None:
        return None
    try:
        found = json.loads(held)["sha256"]
    except (ValueError, TypeError, KeyError):
        found = None
    if isinstance(found, str) and _SHA256.fullmatch(found):
        return found
    store.drop(key)
    return None
