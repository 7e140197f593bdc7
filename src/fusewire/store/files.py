"""All that the store does to a disk, in one place, so that every call can be made to fail.

Paths are names inside a folder that is open already: nobody can move it under our feet. Must
never do anything but file operations.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fusewire.errors import StoreError

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_TEMPORARY = ".part-"
# A temporary file as old as this belongs to nobody any more.
_OLD = 3600.0


@dataclass(frozen=True)
class Found:
    """A file in the folder."""

    name: str
    size: int
    used: float


class Folder:
    """A folder that is ours alone; StoreError when it is not."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
        self._fd = os.open(path, _FLAGS | os.O_DIRECTORY)
        about = os.fstat(self._fd)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            os.close(self._fd)
            raise StoreError(
                f"The cache folder {path} must belong to you and be closed to others, found owner "
                f"{about.st_uid}, mode {stat.S_IMODE(about.st_mode):o}. Run `chmod 700 {path}`, or "
                "set FUSEWIRE_CACHE to another folder."
            )

    def close(self) -> None:
        """Let go of the folder; it stays on the disk."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, name: str, most: int = -1) -> bytes:
        """Read a plain file of ours, or its first bytes; FileNotFoundError when there is none."""
        fd = os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=self._fd)
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                raise StoreError(f"{name} is not a plain file of yours.")
            wanted = about.st_size if most < 0 else min(most, about.st_size)
            held = bytearray()
            while len(held) < wanted:
                part = os.read(fd, min(wanted - len(held), 2**24))
                if not part:
                    break
                held += part
            return bytes(held)
        finally:
            os.close(fd)

    def write(self, name: str, held: bytes, *, durable: bool) -> None:
        """Put a file in place whole: others see the old one or the new one, never a part."""
        temporary = self._temporary(held, durable=durable)
        try:
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            self.remove(temporary)
            raise
        if durable:
            os.fsync(self._fd)

    def write_once(self, name: str, held: bytes) -> None:
        """Put a file in place unless there is one already."""
        temporary = self._temporary(held, durable=True)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        finally:
            self.remove(temporary)

    def _temporary(self, held: bytes, *, durable: bool) -> str:
        name = f"{_TEMPORARY}{os.getpid()}-{_boot()}-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            view = memoryview(held)
            while view:
                view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        except BaseException:
            os.close(fd)
            self.remove(name)
            raise
        os.close(fd)
        return name

    def remove(self, name: str) -> None:
        """Remove a file if it can be."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def touch(self, name: str) -> None:
        """Note that a file was used just now."""
        with contextlib.suppress(OSError):
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)

    def lock_file(self, name: str) -> int:
        """Open a file to lock; the caller closes it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._fd)

    def __iter__(self) -> Iterator[Found]:
        """List plain files."""
        with os.scandir(self._fd) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode):
                        yield Found(entry.name, about.st_size, about.st_mtime)

    def sweep(self) -> int:
        """Remove temporary files that nobody writes any more, and count them."""
        gone = 0
        for found in list(self):
            if found.name.startswith(_TEMPORARY) and _is_left(found):
                self.remove(found.name)
                gone += 1
        return gone


def _is_left(found: Found) -> bool:
    """Tell whether the writer of a temporary file is gone."""
    pid, boot, _ = found.name.removeprefix(_TEMPORARY).split("-")
    if time.time() - found.used > _OLD:
        return True
    return boot == _boot() and pid.isdigit() and not Path(f"/proc/{pid}").exists()


def _boot() -> str:
    """Name this start of the machine: a pid means something only within it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return "unknown"
