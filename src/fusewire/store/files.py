"""Every file operation of the store, in one place, so that tests can make each one fail.

Paths are names inside a folder that is already open, so nobody can replace it meanwhile. Must do
nothing but file operations.
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

with contextlib.suppress(ImportError):  # Windows has no fcntl, and a Folder is refused there.
    import fcntl

LOCK = ".lock"
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_TEMPORARY = ".part-"
# Temporary files of this age have no owner any more.
_OLD = 3600.0
# A use is recorded if the last record is at least this old.
_RECENT = 60.0


@dataclass(frozen=True)
class Found:
    """A file in the folder."""

    name: str
    size: int
    used: float


@dataclass(frozen=True)
class File:
    """A regular file, open for reading; ``start`` counts as its first byte."""

    fd: int
    size: int
    used: float
    start: int = 0
    mode: int = 0

    def read(self, at: int, length: int) -> bytes:
        """Read a few bytes from a place, fewer only at the end of the file."""
        held = bytearray(length)
        with memoryview(held) as view:
            size = self.fill(view, at)
        return bytes(held[:size])

    def fill(self, view: memoryview, at: int) -> int:
        """Read from a place into memory; returns the number of bytes, fewer only at the end."""
        done = 0
        while done < len(view) and (
            count := os.preadv(self.fd, [view[done:]], self.start + at + done)
        ):
            done += count
        return done

    def touch(self) -> None:
        """Record that it is used now, unless that was recorded recently."""
        if abs(time.time() - self.used) > _RECENT:
            with contextlib.suppress(OSError):
                os.utime(self.fd)


def default_path() -> Path:
    """Return the folder of this user: FUSEWIRE_CACHE, or fusewire in the user's cache folder.

    With FUSEWIRE_CACHE=off, a store that is opened explicitly is in the usual folder.
    """
    given = os.environ.get("FUSEWIRE_CACHE")
    if given and given != "off":
        return Path(given)
    return user_path("XDG_CACHE_HOME", ".cache")


def user_path(variable: str, name: str) -> Path:
    """Return the folder fusewire in one of the user's folders, which a variable may name."""
    try:
        return Path(os.environ.get(variable) or Path.home() / name) / "fusewire"
    except RuntimeError:
        # A user without a home has no folder; opening it reports that.
        return Path(os.devnull)


class Folder:
    """A folder of this user; StoreError if it is not. Closed when nobody uses it.

    ``others`` are the permissions that others must not have.
    """

    def __init__(
        self,
        path: Path,
        what: str = "cache folder",
        variable: str = "FUSEWIRE_CACHE",
        others: int = 0o077,
    ) -> None:
        self._fd = -1
        if os.name != "posix":
            raise StoreError("The cache needs a POSIX system, and this is not one.")
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        try:
            self._fd = os.open(path, _FLAGS | os.O_DIRECTORY)
        except NotADirectoryError:
            # O_DIRECTORY reports a link before O_NOFOLLOW does.
            raise StoreError(
                f"The {what} {path} is not a folder, or a link. Set {variable} to one."
            ) from None
        about = os.fstat(self._fd)
        self._identity = about.st_dev, about.st_ino
        if about.st_uid != os.geteuid() or about.st_mode & others:
            raise StoreError(
                f"The {what} {path} must belong to you and be closed to others, found owner "
                f"{about.st_uid}, mode {stat.S_IMODE(about.st_mode):o}. Run `chmod 700 {path}`, or "
                f"set {variable} to another folder."
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __del__(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[File]:
        """Open a regular file of this user; FileNotFoundError if there is none."""
        with plain_file(name, self._fd) as file:
            if os.fstat(file.fd).st_uid != os.geteuid():
                raise StoreError(f"{name} is not yours.")
            yield file

    def write(self, name: str, parts: Iterable[bytes], *, durable: bool) -> None:
        """Write a file atomically: others see the old one or the new one, never a part."""
        temporary = self._temporary(parts, durable=durable)
        try:
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            self.remove(temporary)
            raise
        if durable:
            # Some network disks cannot. At worst a power failure loses the file.
            with contextlib.suppress(OSError):
                os.fsync(self._fd)

    def write_once(self, name: str, held: bytes) -> None:
        """Write a file unless it exists."""
        temporary = self._temporary((held,), durable=True)
        try:
            os.link(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except FileExistsError:
            pass
        except OSError:
            # A disk without hard links: the last concurrent writer wins.
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        finally:
            self.remove(temporary)
        # As in ``write``.
        with contextlib.suppress(OSError):
            os.fsync(self._fd)

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
            # Network disks report here that a write failed.
            self.remove(name)
            raise
        return name

    def remove(self, name: str) -> bool:
        """Remove a file if possible; returns whether it was."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)
            return True
        return False

    def touch(self, name: str) -> None:
        """Record that a file is used now."""
        with contextlib.suppress(OSError):
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)

    def lock(self, name: str) -> int | None:
        """Take a lock and return its handle for ``unlock``; None if somebody holds it.

        A lock ends with its process. OSError if the disk cannot lock.
        """
        fd = self.open_lock(name)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder removed the file: a lock on it locks nothing.
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

    def open_lock(self, name: str) -> int:
        """Open a file to lock, and return its descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._fd)

    def unlock(self, name: str, fd: int) -> None:
        """Release a lock, and remove its file."""
        self.remove(name)
        with contextlib.suppress(OSError):
            # A process forked meanwhile has this file open too, and would keep the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(fd)

    def __iter__(self) -> Iterator[Found]:
        """List regular files."""
        # Opened each time: two listings through one descriptor share a position.
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
        """Remove abandoned temporary files and old locks; returns the number of the former."""
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
    """Open a file for reading; StoreError if it is not a regular file."""
    try:
        fd = os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise StoreError(f"{name} is not a regular file.") from None
        raise
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise StoreError(f"{name} is not a regular file.")
        yield File(fd, about.st_size, about.st_mtime, mode=about.st_mode)
    finally:
        os.close(fd)


def _is_old(found: Found) -> bool:
    """Return whether a file was abandoned long ago, even if the clock was wrong."""
    return abs(time.time() - found.used) > _OLD


def _is_left(found: Found) -> bool:
    """Return whether the writer of a temporary file is gone."""
    pid, _, rest = found.name.removeprefix(_TEMPORARY).partition("-")
    is_here = bool(_world()) and rest.startswith(f"{_world()}-") and pid.isdigit()
    return _is_old(found) or (is_here and not Path(f"/proc/{pid}").exists())


@cache
def _world() -> str:
    """Identify the scope of a pid: this boot of the machine, and this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""
