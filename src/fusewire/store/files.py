"""All that the store does to a disk, in one place, so that every call can be made to fail.

Paths are names inside a folder that is open already: nobody can move it under our feet. Must
never do anything but file operations.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fusewire.errors import StoreError

with contextlib.suppress(ImportError):  # Windows has none, and a Folder is refused there.
    import fcntl

LOCK = ".lock"
_SECRET = "key"
_SECRET_SIZE = 32
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_TEMPORARY = ".part-"
# What is as old as this belongs to nobody any more.
_OLD = 3600.0
# A use is noted when the last one noted is as old as this.
_RECENT = 60.0


@dataclass(frozen=True)
class Found:
    """A file in the folder."""

    name: str
    size: int
    used: float


@dataclass(frozen=True)
class File:
    """A plain file, open to read; ``start`` is the place that counts as its first byte."""

    fd: int
    size: int
    used: float
    start: int = 0

    def read(self, at: int, length: int) -> bytes:
        """Read a little from a place: fewer bytes than asked for only where the file ends."""
        held = bytearray(length)
        with memoryview(held) as view:
            size = self.fill(view, at)
        return bytes(held[:size])

    def fill(self, view: memoryview, at: int) -> int:
        """Read from a place into memory, and count the bytes: all, or where the file ends."""
        done = 0
        while done < len(view) and (
            count := os.preadv(self.fd, [view[done:]], self.start + at + done)
        ):
            done += count
        return done

    def touch(self) -> None:
        """Note that it is used now, unless that was noted a moment ago."""
        if abs(time.time() - self.used) > _RECENT:
            with contextlib.suppress(OSError):
                os.utime(self.fd)


def default_path() -> Path:
    """Give the folder of this user: FUSEWIRE_CACHE, or fusewire in the user's cache folder.

    FUSEWIRE_CACHE=off means none; who opens a store all the same opens it in the usual folder.
    """
    given = os.environ.get("FUSEWIRE_CACHE")
    if given and given != "off":
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusewire"
    except RuntimeError:
        # A user without a home: no folder, which a store says when it is opened.
        return Path(os.devnull)


class Folder:
    """A folder that is ours alone; StoreError when it is not. Let go of when nobody has it."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        if os.name != "posix":
            raise StoreError("Files are kept safely on POSIX systems only, and this is none.")
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        try:
            self._fd = os.open(path, _FLAGS | os.O_DIRECTORY)
        except NotADirectoryError:
            # O_DIRECTORY finds a link before O_NOFOLLOW does.
            raise StoreError(
                f"The cache folder {path} is a link or no folder. Set FUSEWIRE_CACHE to a folder."
            ) from None
        about = os.fstat(self._fd)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise StoreError(
                f"The cache folder {path} must belong to you and be closed to others, found owner "
                f"{about.st_uid}, mode {stat.S_IMODE(about.st_mode):o}. Run `chmod 700 {path}`, or "
                "set FUSEWIRE_CACHE to another folder."
            )

    def __del__(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[File]:
        """Open a plain file of ours; FileNotFoundError when there is none."""
        with plain_file(name, self._fd) as file:
            if os.fstat(file.fd).st_uid != os.geteuid():
                raise StoreError(f"{name} is not yours.")
            yield file

    def secret(self) -> bytes:
        """Read the user's key; made at first use, and anew when it is not one."""
        for _ in range(2):
            try:
                with self.open(_SECRET) as file:
                    held = file.read(0, _SECRET_SIZE + 1)
                if len(held) == _SECRET_SIZE:
                    return held
                self.remove(_SECRET)
            except StoreError:
                self.remove(_SECRET)
            except FileNotFoundError:
                pass
            self.write_once(_SECRET, os.urandom(_SECRET_SIZE))
        raise StoreError(f"The cache has no key, and none can be made: remove {_SECRET!r} there.")

    def write(self, name: str, parts: Iterable[bytes], *, durable: bool) -> None:
        """Put a file in place whole: others see the old one or the new one, never a part."""
        temporary = self._temporary(parts, durable=durable)
        try:
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            self.remove(temporary)
            raise
        if durable:
            # Some network disks cannot. It is in place; at worst it is gone when the power fails.
            with contextlib.suppress(OSError):
                os.fsync(self._fd)

    def write_once(self, name: str, held: bytes) -> None:
        """Put a file in place unless there is one already."""
        temporary = self._temporary((held,), durable=True)
        try:
            os.link(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except FileExistsError:
            pass
        except OSError:
            # A disk without hard links: the last of those who do this at once stays.
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        finally:
            self.remove(temporary)

    def _temporary(self, parts: Iterable[bytes], *, durable: bool) -> str:
        name = f"{_TEMPORARY}{os.getpid()}-{_world()}-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        except BaseException:
            os.close(fd)
            self.remove(name)
            raise
        try:
            os.close(fd)
        except OSError:
            # Network disks say here that what was written did not arrive.
            self.remove(name)
            raise
        return name

    def remove(self, name: str) -> None:
        """Remove a file if it can be."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def touch(self, name: str) -> None:
        """Note that a file was used just now."""
        with contextlib.suppress(OSError):
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)

    def lock(self, name: str) -> int | None:
        """Take a lock and give what ``unlock`` wants; None while somebody has it.

        It dies with the process that has it. OSError when the disk cannot lock.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it before removed the file: a lock on that one locks nothing.
            there = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if os.path.samestat(os.fstat(fd), there):
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def unlock(self, name: str, fd: int) -> None:
        """Give a lock back, and remove its file."""
        self.remove(name)
        with contextlib.suppress(OSError):
            # A process forked meanwhile holds this file open too, and would hold the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(fd)

    def __iter__(self) -> Iterator[Found]:
        """List plain files."""
        # Opened anew each time: two listings through one descriptor share their place in it.
        fd = os.open(".", _FLAGS | os.O_DIRECTORY, dir_fd=self._fd)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(about.st_mode):
                            yield Found(entry.name, about.st_size, about.st_mtime)
        finally:
            os.close(fd)

    def sweep(self) -> int:
        """Remove temporary files that nobody writes any more, and old locks; count the former."""
        gone = 0
        for found in list(self):
            if found.name.startswith(_TEMPORARY) and _is_left(found):
                self.remove(found.name)
                gone += 1
            elif found.name.endswith(LOCK) and _is_old(found):
                with contextlib.suppress(OSError):
                    if (fd := self.lock(found.name)) is not None:
                        self.unlock(found.name, fd)
        return gone


@contextlib.contextmanager
def plain_file(name: str | Path, folder: int | None = None) -> Iterator[File]:
    """Open a file to read; StoreError when it is a link, a pipe or anything but a plain file."""
    try:
        fd = os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise StoreError(f"{name} is not a plain file.") from None
        raise
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise StoreError(f"{name} is not a plain file.")
        yield File(fd, about.st_size, about.st_mtime)
    finally:
        os.close(fd)


def _is_old(found: Found) -> bool:
    """Tell whether a file was left long ago, also by a clock that was wrong."""
    return abs(time.time() - found.used) > _OLD


def _is_left(found: Found) -> bool:
    """Tell whether the writer of a temporary file is gone."""
    pid, _, rest = found.name.removeprefix(_TEMPORARY).partition("-")
    is_here = bool(_world()) and rest.startswith(f"{_world()}-") and pid.isdigit()
    return _is_old(found) or (is_here and not Path(f"/proc/{pid}").exists())


@cache
def _world() -> str:
    """Name what a pid means something in: this start of the machine, and this container of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""
