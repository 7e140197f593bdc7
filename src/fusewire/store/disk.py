"""The store on disk. Whatever is wrong with it makes us slower, never wrong, and never stops us."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fusewire.errors import StoreError, StoreWarning
from fusewire.store.blob import START, Header, pack, read_header, unpack
from fusewire.store.files import Folder, Found
from fusewire.store.key import CODE, Key, nearest

LIMIT = 4 * 2**30
_SECRET = "key"
_ENTRY = ".entry"
_LOCK = ".lock"
# Enough for every header.
_HEAD = START + 2**16
# How often the folder's size is looked at, in entries written.
_LOOK = 32


@dataclass(frozen=True)
class Entry:
    """An entry as its header tells, not yet checked."""

    key: Key
    size: int
    used: float
    name: str


@dataclass(frozen=True)
class Checked:
    """What a check of all entries found; bad ones are gone."""

    good: int
    bad: tuple[str, ...]
    swept: int


def default_path() -> Path:
    """Give the folder of this user: FUSEWIRE_CACHE, or fusewire in the user's cache folder."""
    given = os.environ.get("FUSEWIRE_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusewire"


class Store:
    """Entries by key. Safe for many threads and processes; a store that cannot be used is off.

    Nothing here raises for what the disk does: ``get`` misses, ``put`` does nothing, and one
    warning says why.
    """

    def __init__(self, path: Path | None = None, limit: int = LIMIT) -> None:
        self.path = path or default_path()
        self.limit = limit
        self._lock = threading.Lock()
        self._opened: tuple[Folder, bytes] | None = None
        self._off = False
        self._written = 0

    @property
    def is_off(self) -> bool:
        """Whether the store gave up: its folder cannot be used."""
        return self._open() is None

    def get(self, key: Key) -> bytes | None:
        """Give the payload of an entry, checked; None when there is none that can be used."""
        opened = self._open()
        if opened is None:
            return None
        folder, secret = opened
        name = key.digest + _ENTRY
        try:
            payload = unpack(folder.read(name), key, secret)
        except FileNotFoundError:
            return None
        except StoreError:
            folder.remove(name)
            return None
        except OSError as error:
            self._complain("read", error)
            return None
        folder.touch(name)
        return payload

    def put(self, key: Key, payload: bytes) -> bool:
        """Keep a payload; tells whether it was kept."""
        opened = self._open()
        if opened is None:
            return False
        folder, secret = opened
        try:
            held = pack(key, payload, secret)
            folder.write(key.digest + _ENTRY, held, durable=key.kind in CODE)
            self._bound(folder, len(held))
        except StoreError as error:
            warnings.warn(f"Not kept: {error}", StoreWarning, stacklevel=2)
            return False
        except OSError as error:
            self._complain("write", error)
            return False
        return True

    def once(self, key: Key, make: Callable[[], bytes], seconds: float = 600.0) -> bytes:
        """Give an entry, or make it: one process at a time, as far as the disk can lock.

        One that waits longer than ``seconds`` makes its own: a lock never decides what is right.
        """
        held = self.get(key)
        if held is not None:
            return held
        with self._single(key, seconds):
            held = self.get(key)
            if held is None:
                held = make()
                self.put(key, held)
            return held

    def drop(self, key: Key) -> None:
        """Forget an entry."""
        if (opened := self._open()) is not None:
            opened[0].remove(key.digest + _ENTRY)

    def entries(self, kind: str | None = None) -> Iterator[Entry]:
        """List entries by their headers; those that have none are left out."""
        opened = self._open()
        if opened is None:
            return
        for found in self._files(opened[0]):
            header = self._header(opened[0], found)
            if header is not None and kind in (None, header.key.kind):
                yield Entry(header.key, found.size, found.used, found.name)

    def why_missed(self, key: Key) -> str:
        """Say in a sentence what differs from the nearest entry."""
        if self.is_off:
            return f"The cache {self.path} cannot be used."
        other = nearest(key, (entry.key for entry in self.entries(key.kind)))
        if other is None:
            return f"There is no {key.kind} in {self.path} yet."
        parts = [f"{name}: {theirs} -> {mine}" for name, theirs, mine in key.differs(other)]
        return f"The nearest {key.kind} differs in {'; '.join(parts)}."

    def verify(self) -> Checked:
        """Check every entry from end to end, and remove those that are not right."""
        opened = self._open()
        if opened is None:
            return Checked(0, (), 0)
        folder, secret = opened
        good, bad = 0, []
        for found in self._files(folder):
            try:
                held = folder.read(found.name)
                unpack(held, None, secret)
                if read_header(held).key.digest + _ENTRY != found.name:
                    raise StoreError("It has the name of another key.")
                good += 1
            except StoreError as error:
                bad.append(f"{found.name}: {error}")
                folder.remove(found.name)
            except OSError:
                continue
        return Checked(good, tuple(bad), folder.sweep())

    def prune(self, limit: int) -> int:
        """Remove entries that were used longest ago until so many bytes are left; count them."""
        opened = self._open()
        return 0 if opened is None else self._prune(opened[0], limit)

    def close(self) -> None:
        """Let go of the folder."""
        with self._lock:
            if self._opened is not None:
                self._opened[0].close()
            self._opened, self._off = None, True

    def _open(self) -> tuple[Folder, bytes] | None:
        with self._lock:
            if self._opened is None and not self._off:
                try:
                    folder = Folder(self.path)
                    self._opened = folder, _secret(folder)
                except (OSError, StoreError) as error:
                    self._off = True
                    self._complain("open", error)
            return self._opened

    def _complain(self, what: str, error: Exception) -> None:
        said = f"The cache cannot {what} in {self.path}: {error} Everything works without it."
        warnings.warn(said, StoreWarning, stacklevel=3)

    def _files(self, folder: Folder) -> list[Found]:
        try:
            return [found for found in folder if found.name.endswith(_ENTRY)]
        except OSError as error:
            self._complain("list", error)
            return []

    def _header(self, folder: Folder, found: Found) -> Header | None:
        with contextlib.suppress(OSError, StoreError):
            return read_header(folder.read(found.name, _HEAD))
        return None

    def _bound(self, folder: Folder, size: int) -> None:
        """Keep the folder below its limit: looked at now and then, and for large entries."""
        with self._lock:
            self._written += 1
            due = self._written % _LOOK == 1 or size > self.limit // 64
        if due:
            self._prune(folder, self.limit)
            folder.sweep()

    def _prune(self, folder: Folder, limit: int) -> int:
        files = sorted(self._files(folder), key=lambda found: found.used)
        total = sum(found.size for found in files)
        gone = 0
        for found in files:
            if total <= limit:
                break
            folder.remove(found.name)
            total -= found.size
            gone += 1
        return gone

    @contextlib.contextmanager
    def _single(self, key: Key, seconds: float) -> Iterator[None]:
        opened = self._open()
        fd = -1
        if opened is not None:
            with contextlib.suppress(OSError):
                # A few files for all keys: two keys that share one wait for each other in vain.
                fd = opened[0].lock_file(f"{key.digest[:2]}{_LOCK}")
        try:
            if fd >= 0:
                _wait_for(fd, seconds)
            yield
        finally:
            if fd >= 0:
                os.close(fd)


def _wait_for(fd: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    pause = 0.001
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        except OSError:
            # A disk that cannot lock: everybody makes their own, and the last one stays.
            return
        else:
            return


def _secret(folder: Folder) -> bytes:
    """Read the user's key, made at first use."""
    with contextlib.suppress(FileNotFoundError):
        return _checked_secret(folder.read(_SECRET))
    folder.write_once(_SECRET, os.urandom(32))
    return _checked_secret(folder.read(_SECRET))


def _checked_secret(held: bytes) -> bytes:
    if len(held) != 32:
        raise StoreError(f"The key of the cache has {len(held)} bytes, 32 are right. Remove it.")
    return held
