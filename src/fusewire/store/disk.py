"""The store on disk. A fault in it makes a program slower, never wrong, and never stops it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

from fusewire.errors import StoreError, StoreWarning, warn_outside
from fusewire.store.blob import Provenance, pack, read_header, unpack, unpack_block
from fusewire.store.files import LOCK, File, Folder, Found, default_path
from fusewire.store.key import CODE, Key, apart, nearest
from fusewire.store.secret import disown, user_secret

Payload = TypeVar("Payload", bytes, memoryview)
LIMIT = 4 * 2**30
ENTRY = ".entry"
# The folder's size is checked after this many writes.
_LOOK = 32
_LONGEST_PAUSE = 0.1
_BROUGHT = (
    "The cache folder {} brought a key of its own, which is removed: only what carries your key is "
    "used, so programs start slowly once."
)


@dataclass(frozen=True)
class StoreEntry:
    """An entry according to its header, not yet checked."""

    key: Key
    size: int
    used: float
    name: str
    provenance: Provenance | None = None


@dataclass(frozen=True)
class Checked:
    """The result of checking all entries; bad ones are removed."""

    good: int
    bad: tuple[str, ...]
    swept: int


class Tier(Protocol):
    """Another store, which is asked for what is missing in this one."""

    def bring(self, key: Key, /) -> bool:
        """Fetch an entry into this store; returns whether it is there now."""
        ...


@cache
def shared_store() -> Store | None:
    """Return this user's store, shared by all programs of the process; None if it is off."""
    return None if os.environ.get("FUSEWIRE_CACHE") == "off" else Store()


def remote_address() -> str | None:
    """Return the address of the store that machines share, as the environment has it."""
    return os.environ.get("FUSEWIRE_REMOTE") or None


class Store:
    """Entries by key. Safe for many threads and processes; a store that cannot be used is off.

    A failing disk raises nothing here: ``get`` misses, ``put`` does nothing, and one warning says
    why. ``secret`` is the key of a store that is not the user's own. What is missing is asked of
    ``tier``.
    """

    def __init__(
        self,
        path: Path | None = None,
        limit: int = LIMIT,
        secret: bytes | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.path = path or default_path()
        self.limit = limit
        self.secret = secret
        self._tier = tier
        self._lock = threading.Lock()
        self._opened: tuple[Folder, bytes] | None = None
        self._off = False
        self._has_complained = False
        # Entries and bytes that may be written before the folder's size is checked.
        self._left = (0, 0)

    @property
    def is_off(self) -> bool:
        """Whether the store is off because its folder cannot be used."""
        return self.opened() is None

    def get(self, key: Key) -> bytes | None:
        """Return the checked payload of an entry, or None."""
        return self._found(key, lambda file, secret: unpack(file, key, secret, self.limit)[1])

    def block(self, key: Key) -> memoryview | None:
        """Return a payload like ``get``, aligned as engines need it."""
        return self._found(key, lambda file, secret: unpack_block(file, key, secret, self.limit))

    def _found(self, key: Key, read: Callable[[File, bytes], Payload]) -> Payload | None:
        payload = self._got(key, read)
        if payload is None and self._tier is not None and self._tier.bring(key):
            return self._got(key, read)
        return payload

    def _got(self, key: Key, read: Callable[[File, bytes], Payload]) -> Payload | None:
        opened = self.opened()
        if opened is None:
            return None
        folder, secret = opened
        name = key.digest + ENTRY
        try:
            with folder.open(name) as file:
                payload = read(file, secret)
                file.touch()
                return payload
        except FileNotFoundError:
            return None
        except StoreError:
            folder.remove(name)
        except (OSError, MemoryError) as error:
            self._complain("read", error)
        return None

    def put(self, key: Key, payload: bytes, provenance: Provenance | None = None) -> bool:
        """Write a payload, and who signed it if it is brought; returns whether it was kept."""
        opened = self.opened()
        if opened is None:
            return False
        try:
            parts = pack(key, payload, opened[1], provenance)
            size = sum(map(len, parts))
            if size > self.limit:
                raise StoreError(f"An entry has {size:,} bytes; the limit is {self.limit:,}.")
            self._write(opened[0], key, parts, provenance)
        except (OSError, StoreError) as error:
            self._complain("write", error)
            return False
        self._bound(size)
        return True

    def once(self, key: Key, make: Callable[[], bytes], seconds: float = 600.0) -> bytes:
        """Return an entry, or make it: one process at a time, if the disk can lock.

        A process that waits longer than ``seconds`` makes its own: no answer depends on a lock.
        """
        end, pause = time.monotonic() + seconds, 0.001
        while (held := self.get(key)) is None:
            with self._turn(key, is_last=time.monotonic() > end) as is_mine:
                if is_mine:
                    held = self.get(key)
                    if held is None:
                        held = make()
                        self.put(key, held)
                    return held
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return held

    @contextlib.contextmanager
    def alone(self, key: Key, seconds: float = 600.0) -> Iterator[None]:
        """Lock a key, so that others who would make its entry wait, if the disk can lock."""
        end, pause = time.monotonic() + seconds, 0.001
        while True:
            with self._turn(key, is_last=time.monotonic() > end) as is_mine:
                if is_mine:
                    yield
                    return
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def drop(self, key: Key) -> None:
        """Remove an entry."""
        if (opened := self.opened()) is not None:
            opened[0].remove(key.digest + ENTRY)

    def provenance(self, key: Key) -> Provenance | None:
        """Return who signed an entry that was brought; None if it is this user's own, or gone."""
        opened = self.opened()
        if opened is None:
            return None
        with contextlib.suppress(OSError, StoreError), opened[0].open(key.digest + ENTRY) as file:
            return read_header(file).provenance
        return None

    def entries(self, kind: str | None = None) -> Iterator[StoreEntry]:
        """List entries by their headers; files without the header of their name are left out."""
        opened = self.opened()
        if opened is None:
            return
        for found in self._files(opened[0]):
            with contextlib.suppress(OSError, StoreError):
                with opened[0].open(found.name) as file:
                    header = read_header(file)
                key = header.key
                if key.digest + ENTRY == found.name and kind in (None, key.kind):
                    yield StoreEntry(key, found.size, found.used, found.name, header.provenance)

    def why_missed(self, key: Key) -> str:
        """Say in a sentence what differs from the most similar entry."""
        if self.is_off:
            return f"The cache {self.path} cannot be used."
        # Among equally similar ones, the most recently used.
        others = sorted(self.entries(key.kind), key=lambda entry: -entry.used)
        other = nearest(key, (entry.key for entry in others))
        if other is None:
            return f"There is no {key.kind} in {self.path} yet."
        parts = [f"{name}: {' -> '.join(apart(*pair))}" for name, *pair in key.differs(other)]
        return f"The nearest {key.kind} differs in {'; '.join(parts)}."

    def verify(self) -> Checked:
        """Check every entry, and remove damaged ones."""
        opened = self.opened()
        if opened is None:
            return Checked(0, (), 0)
        folder, secret = opened
        good, bad = 0, []
        for found in self._files(folder):
            try:
                with folder.open(found.name) as file:
                    header, _ = unpack(file, None, secret, self.limit)
                if header.key.digest + ENTRY != found.name:
                    raise StoreError("It has the name of another key.")
                good += 1
            except StoreError as error:
                bad.append(f"{found.name}: {error}")
                folder.remove(found.name)
            except (OSError, MemoryError):
                continue
        with contextlib.suppress(OSError):
            return Checked(good, tuple(bad), folder.sweep())
        return Checked(good, tuple(bad), 0)

    def prune(self, limit: int) -> int:
        """Remove the least recently used entries until ``limit`` bytes are left; count them."""
        opened = self.opened()
        return 0 if opened is None else self._prune(opened[0], limit)[0]

    def close(self) -> None:
        """Close the folder."""
        with self._lock:
            self._opened, self._off = None, True

    def opened(self) -> tuple[Folder, bytes] | None:
        """Return the folder and the user's key; None if the store is off."""
        with self._lock:
            if self._opened is None and not self._off:
                try:
                    folder = Folder(self.path)
                    self._opened = folder, self.secret or user_secret(folder)
                    if disown(folder):
                        warn_outside(_BROUGHT.format(self.path), StoreWarning)
                except (OSError, StoreError) as error:
                    self._off = True
                    self._complain("open", error)
            return self._opened

    def _complain(self, what: str, error: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            said = f"The cache cannot {what} in {self.path}: {error} Everything works without it."
            warn_outside(said, StoreWarning)

    def _write(
        self, folder: Folder, key: Key, parts: tuple[bytes, ...], provenance: Provenance | None
    ) -> None:
        name, durable = key.digest + ENTRY, key.kind in CODE
        try:
            folder.write(name, parts, durable=durable)
        except FileNotFoundError:
            # Somebody removed the folder: create it once more.
            with self._lock:
                self._opened = None
            opened = self.opened()
            if opened is None:
                raise
            again = pack(key, parts[1], opened[1], provenance)
            opened[0].write(name, again, durable=durable)

    def _files(self, folder: Folder) -> list[Found]:
        try:
            return [found for found in folder if found.name.endswith(ENTRY)]
        except OSError as error:
            self._complain("list", error)
            return []

    def _bound(self, size: int) -> None:
        """Keep the folder below its limit, as far as writes of others are known."""
        with self._lock:
            entries, room = self._left[0] - 1, self._left[1] - size
            self._left = entries, room
            opened = self._opened
        if opened is None or (entries >= 0 and room >= 0):
            return
        total = self._prune(opened[0], self.limit)[1]
        with self._lock:
            self._left = _LOOK, self.limit - total
        with contextlib.suppress(OSError):
            opened[0].sweep()

    def _prune(self, folder: Folder, limit: int) -> tuple[int, int]:
        """Remove the least recently used; returns how many, and the bytes that are left."""
        files, now = self._files(folder), time.time()
        for found in files:
            # Written when the clock was ahead: count it as used now, so that it ages.
            if found.used > now:
                folder.touch(found.name)
        total, gone = sum(found.size for found in files), 0
        for found in sorted(files, key=lambda found: min(found.used, now)):
            if total <= limit:
                break
            folder.remove(found.name)
            total -= found.size
            gone += 1
        return gone, total

    @contextlib.contextmanager
    def _turn(self, key: Key, *, is_last: bool) -> Iterator[bool]:
        """Return whether this process should make an entry: it has the lock, or cannot wait."""
        opened, name, fd = self.opened(), key.digest + LOCK, None
        is_mine = True
        if opened is not None:
            with contextlib.suppress(OSError):
                fd = opened[0].lock(name)
                is_mine = fd is not None or is_last
        try:
            yield is_mine
        finally:
            if opened is not None and fd is not None:
                opened[0].unlock(name, fd)
