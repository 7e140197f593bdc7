"""Remove a folder that a child wrote to, however deep it nested folders in it.

A walk that recurses, or that keeps a descriptor for each level, fails on a tree that is deep
enough, and paths become too long for the kernel. So folders inside folders move up to the top
before they are emptied: three descriptors at most are open. A system that does not open files in
an open folder removes trees by their paths; what is too deep for that stays.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_FOLDER = sum(getattr(os, f"O_{name}", 0) for name in ("DIRECTORY", "NOFOLLOW", "CLOEXEC"))
# Opens a folder that forbids reading, to change that.
_NAME_ONLY: int = getattr(os, "O_PATH", os.O_RDONLY)
_CAN_HOLD_FOLDERS = hasattr(os, "O_NOFOLLOW") and os.open in os.supports_dir_fd


def remove_tree(path: str) -> None:
    """Remove a folder and what is in it, as far as the system allows; raise no OSError."""
    if not _CAN_HOLD_FOLDERS:
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        _allow(path, None)
        with _opened(path, os.O_RDONLY, None) as top:
            _empty(top)
        Path(path).rmdir()


def _empty(top: int) -> None:
    names = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
    waiting = _unlink_files(top)
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            _allow(name, top)
            with _opened(name, os.O_RDONLY, top) as folder:
                waiting += _lift(_unlink_files(folder), folder, top, names)
            os.rmdir(name, dir_fd=top)


def _unlink_files(folder: int) -> list[str]:
    """Unlink everything but folders, and list those."""
    folders = []
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            folders.append(name)
        except OSError:
            continue
    return folders


def _lift(inner: list[str], folder: int, top: int, names: Iterator[str]) -> list[str]:
    """Move folders up to the top, and give their names there."""
    lifted = []
    for name in inner:
        with contextlib.suppress(OSError):
            # Whoever moves a folder must be allowed to write to it.
            _allow(name, folder)
            above = next(names)
            os.rename(name, above, src_dir_fd=folder, dst_dir_fd=top)
            lifted.append(above)
    return lifted


def _allow(name: str, at: int | None) -> None:
    """Let us read and write a folder, which may forbid it; links are not followed."""
    try:
        with _opened(name, _NAME_ONLY, at) as found:
            Path(f"/proc/self/fd/{found}").chmod(0o700)
    except OSError:
        # Where /proc is not there. Some systems change the mode of what may be a link, others not.
        with contextlib.suppress(OSError, NotImplementedError):
            os.chmod(name, 0o700, dir_fd=at, follow_symlinks=False)


@contextlib.contextmanager
def _opened(name: str, flags: int, at: int | None) -> Iterator[int]:
    descriptor = os.open(name, flags | _FOLDER, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
