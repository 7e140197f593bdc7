"""Every file operation of the store, in one place, so that tests can make each one fail.

Paths are names inside a folder that is already open, so nobody can replace it meanwhile. Systems
that do not open files in an open folder (Windows) use paths below the folder instead: there, who
may rename the folder could replace it. Must do nothing but file operations.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fusewire.errors import StoreError
from fusewire.system.folders import user_folder
from fusewire.system.locks import try_lock, unlock
from fusewire.system.ownership import is_link, is_mine, is_open_to

LOCK = ".lock"
# Not all of these exist everywhere; Windows alone has text files, which O_BINARY avoids.
_SAFELY = sum(getattr(os, f"O_{name}", 0) for name in ("CLOEXEC", "NOFOLLOW", "BINARY"))
_FLAGS = os.O_RDONLY | _SAFELY
_WAITS_FOR_NOBODY = getattr(os, "O_NONBLOCK", 0)
_AS_FOLDER = getattr(os, "O_DIRECTORY", 0)
# Whether names are opened in an open folder, and links refused by the kernel.
CAN_HOLD_FOLDERS = bool(_AS_FOLDER) and os.open in os.supports_dir_fd
_REFUSES_LINKS = hasattr(os, "O_NOFOLLOW")
_TOUCHES_OPEN_FILES = os.utime in os.supports_fd
_TOUCHES_THROUGH_LINKS = os.utime not in os.supports_follow_symlinks
# Without positioned reads, threads share the position of a descriptor.
_TURN = threading.Lock()
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
    path: str | Path = ""

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
            count := _read_once(self.fd, view[done:], self.start + at + done)
        ):
            done += count
        return done

    def touch(self) -> None:
        """Record that it is used now, unless that was recorded recently."""
        if abs(time.time() - self.used) > _RECENT:
            with contextlib.suppress(OSError):
                os.utime(self.fd if _TOUCHES_OPEN_FILES else self.path)


def _read_once(descriptor: int, view: memoryview, at: int) -> int:
    if hasattr(os, "preadv"):
        return int(os.preadv(descriptor, [view], at))
    with _TURN, io.FileIO(descriptor, closefd=False) as file:
        file.seek(at)
        return file.readinto(view) or 0


def default_path() -> Path:
    """Return the folder of this user: FUSEWIRE_CACHE, or fusewire in the user's cache folder.

    With FUSEWIRE_CACHE=off, a store that is opened explicitly is in the usual folder.
    """
    given = os.environ.get("FUSEWIRE_CACHE")
    if given and given != "off":
        return Path(given)
    return user_folder("cache")


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
        self._fd: int | None = None
        self._path = path
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        about = self._open_folder(f"The {what} {path} is not a folder, or a link. Set {variable}")
        self._identity = about.st_dev, about.st_ino
        if not is_mine(about) or is_open_to(about, others):
            raise StoreError(
                f"The {what} {path} must belong to you and be closed to others, found owner "
                f"{about.st_uid}, mode {stat.S_IMODE(about.st_mode):o}. Run `chmod 700 {path}`, or "
                f"set {variable} to another folder."
            )

    def _open_folder(self, problem: str) -> os.stat_result:
        """Hold the folder if the system can, and describe it; StoreError if it is not one."""
        if not CAN_HOLD_FOLDERS:
            about = os.lstat(self._path)
            if is_link(about) or not stat.S_ISDIR(about.st_mode):
                raise StoreError(f"{problem} to one.")
            return about
        try:
            self._fd = os.open(self._path, _FLAGS | _AS_FOLDER)
            # Not at exit, when modules that closing needs may be gone: the system closes it then.
            weakref.finalize(self, os.close, self._fd).atexit = False
        except NotADirectoryError:
            # O_DIRECTORY reports a link before O_NOFOLLOW does.
            raise StoreError(f"{problem} to one.") from None
        return os.fstat(self._fd)

    def _at(self, name: str) -> str:
        """Return what a file is called: in the open folder, or below its path."""
        return name if self._fd is not None else str(self._path / name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[File]:
        """Open a regular file of this user; FileNotFoundError if there is none."""
        with plain_file(self._at(name), self._fd) as file:
            if not is_mine(os.fstat(file.fd)):
                raise StoreError(f"{name} is not yours.")
            yield file

    def write(self, name: str, parts: Iterable[bytes], *, durable: bool) -> None:
        """Write a file atomically: others see the old one or the new one, never a part."""
        temporary = self._temporary(parts, durable=durable)
        try:
            self._rename(temporary, name)
        except OSError:
            self.remove(temporary)
            raise
        if durable:
            self._sync()

    def _rename(self, old: str, new: str) -> None:
        """Rename a file, in place of one that has the new name."""
        os.replace(self._at(old), self._at(new), src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _sync(self) -> None:
        """Have the names in the folder survive a power failure."""
        if self._fd is not None:
            # Some network disks cannot. At worst a power failure loses the file.
            with contextlib.suppress(OSError):
                os.fsync(self._fd)

    def write_once(self, name: str, held: bytes) -> None:
        """Write a file unless it exists."""
        temporary = self._temporary((held,), durable=True)
        try:
            old, new = self._at(temporary), self._at(name)
            os.link(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except FileExistsError:
            pass
        except OSError:
            # A disk without hard links: the last concurrent writer wins.
            self._rename(temporary, name)
        finally:
            self.remove(temporary)
        self._sync()

    def _temporary(self, parts: Iterable[bytes], *, durable: bool) -> str:
        name = f"{_TEMPORARY}{os.getpid()}-{_world()}-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
        fd = os.open(self._at(name), flags, 0o600, dir_fd=self._fd)
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
            os.unlink(self._at(name), dir_fd=self._fd)
            return True
        return False

    def touch(self, name: str) -> None:
        """Record that a file is used now."""
        with contextlib.suppress(OSError):
            follows = _TOUCHES_THROUGH_LINKS
            os.utime(self._at(name), dir_fd=self._fd, follow_symlinks=follows)

    def lock(self, name: str) -> int | None:
        """Take a lock and return its handle for ``unlock``; None if somebody holds it.

        A lock ends with its process. OSError if the disk cannot lock.
        """
        fd = self.open_lock(name)
        try:
            try_lock(fd)
            # The previous holder removed the file: a lock on it locks nothing.
            there = os.stat(self._at(name), dir_fd=self._fd, follow_symlinks=False)
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
        flags = os.O_RDWR | os.O_CREAT | _SAFELY
        return os.open(self._at(name), flags, 0o600, dir_fd=self._fd)

    def unlock(self, name: str, fd: int) -> None:
        """Release a lock, and remove its file."""
        self.remove(name)
        with contextlib.suppress(OSError):
            # A process forked meanwhile has this file open too, and would keep the lock.
            unlock(fd)
        with contextlib.suppress(OSError):
            os.close(fd)
        if sys.platform == "win32":
            # Not before it is closed, nor while another process has it open.
            self.remove(name)

    def __iter__(self) -> Iterator[Found]:
        """List regular files."""
        with contextlib.ExitStack() as opened:
            where: int | Path = self._path
            if self._fd is not None:
                # Opened each time: two listings through one descriptor share a position.
                where = os.open(".", _FLAGS | _AS_FOLDER, dir_fd=self._fd)
                opened.callback(os.close, where)
            with os.scandir(where) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(about.st_mode):
                            yield Found(entry.name, about.st_size, about.st_mtime)

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
    # Where the kernel does not refuse links, what was opened must be what was no link.
    before = None if _REFUSES_LINKS else os.lstat(name)
    try:
        fd = os.open(name, _FLAGS | _WAITS_FOR_NOBODY, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise StoreError(f"{name} is not a regular file.") from None
        raise
    try:
        about = os.fstat(fd)
        is_same = before is None or (not is_link(before) and os.path.samestat(before, about))
        if not stat.S_ISREG(about.st_mode) or not is_same:
            raise StoreError(f"{name} is not a regular file.")
        yield File(fd, about.st_size, about.st_mtime, mode=about.st_mode, path=name)
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
