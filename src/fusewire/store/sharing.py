"""Move entries between the local store and a shared one, and look after the shared one.

Whoever runs these can wait: requests that fail are repeated, later each time.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from fusewire.errors import RemoteError, StoreError, UnknownSignerError
from fusewire.store.disk import Store
from fusewire.store.exchange import Moved
from fusewire.store.key import Key
from fusewire.store.remote import (
    BLOBS,
    LEASES,
    MOST_POINTER,
    POINTERS,
    SHARED,
    Pointer,
    RemoteClient,
    Steps,
    blob_path,
    check_blob,
    perform,
    pointer_path,
)
from fusewire.store.transport import StoredObject, Transport

Result = TypeVar("Result")
Item = TypeVar("Item")
# Requests at a time.
_AT_ONCE = 8
# Larger payloads are not pushed unless asked for.
MOST_PUSHED = 2**28
# Seconds for which nothing that no pointer names is removed: its pointer may be on the way.
_GRACE = 86_400.0


@dataclass(frozen=True)
class SharedReport:
    """The result of a check: sound entries, and what is wrong with the others."""

    good: int
    bad: tuple[str, ...]


@dataclass(frozen=True)
class Collected:
    """What was removed, or would be: pointers, payloads and leases, and the bytes of them."""

    pointers: int
    blobs: int
    leases: int
    bytes: int


@dataclass(frozen=True)
class Release:
    """How entries are published: their generation, and when they expire, in seconds since 1970.

    Whoever has seen a newer generation of an entry refuses an older one of the same signer. A
    payload of more than ``most`` bytes is refused.
    """

    generation: int
    expires: int | None = None
    most: int = MOST_PUSHED

    @staticmethod
    def now(days: float | None = None, most: int = MOST_PUSHED) -> Release:
        """Number a release by the time; it expires after so many days, or never."""
        seconds = int(time.time())
        return Release(seconds, None if days is None else int(seconds + days * 86_400), most)


@dataclass(frozen=True)
class _Outcome:
    """What became of an entry."""

    is_now: Literal["kept", "present", "left", "refused"]
    key: Key | None = None
    reason: str = ""


@dataclass(frozen=True)
class SharedStore:
    """A shared store as those see it who maintain it."""

    transport: Transport
    client: RemoteClient

    def push(
        self,
        store: Store,
        release: Release,
        kinds: Collection[str] = SHARED,
        since: float = -math.inf,
    ) -> Moved:
        """Publish the entries of a store, signed; those that came from others stay theirs.

        Entries that were last used before ``since``, in seconds since 1970, are left out.
        """
        allowed = SHARED & set(kinds)
        entries = (entry for entry in store.entries() if entry.used >= since)
        keys = [entry.key for entry in entries if entry.key.kind in allowed]
        return _moved(_each(partial(self._push_one, store, release), keys))

    def pull(self, store: Store, fits: Callable[[Key], bool]) -> Moved:
        """Bring the entries whose keys fit, as far as their signers are believed."""
        return _moved(_each(partial(self._pull_one, store, fits), self._pointers()))

    def verify(self, *, reads_all: bool = False) -> SharedReport:
        """Check every pointer, and that its payload is there; with ``reads_all``, its content."""
        sizes = {found.path: found.size for found in self.transport.list(f"{BLOBS}/")}
        check = partial(self._fault, sizes, reads_all)
        faults = list(_each(check, self._pointers()))
        bad = sorted(fault for fault in faults if fault)
        return SharedReport(len(faults) - len(bad), tuple(bad))

    def collect(
        self, older_than: float, *, is_trial: bool = False, grace: float = _GRACE
    ) -> Collected:
        """Remove pointers of a certain age in seconds, refused ones, and what none names.

        Those of signers who are not on the list stay until they are old: others may believe them.
        A payload or lease that is younger than ``grace`` stays. Nothing is removed unless all of
        the store could be listed and read.
        """
        now = time.time()
        found = list(self._pointers())
        others = [*self.transport.list(f"{BLOBS}/"), *self.transport.list(f"{LEASES}/")]
        sound = dict(zip(found, _each(self._sound_pointer, found), strict=True))
        kept = {x: p for x, p in sound.items() if p and now - x.modified <= older_than}
        old = [x for x in found if x not in kept]
        named = {blob_path(pointer.sha256) for pointer in kept.values()}
        idle = [x for x in others if x.path not in named and now - x.modified > grace]
        for gone in () if is_trial else (*old, *idle):
            self.transport.remove(gone.path)
        leases = sum(x.path.startswith(f"{LEASES}/") for x in idle)
        size = sum(x.size for x in (*old, *idle))
        return Collected(len(old), len(idle) - leases, leases, size)

    def _pointers(self) -> Iterator[StoredObject]:
        return self.transport.list(f"{POINTERS}/")

    def _push_one(self, store: Store, release: Release, key: Key) -> _Outcome:
        payload = None if store.provenance(key) is not None else store.get(key)
        if payload is None:
            return _Outcome("left", key)
        try:
            if len(payload) > release.most:
                raise StoreError(f"It has {len(payload):,} bytes; the limit is {release.most:,}.")
            if self._is_there(key, payload):
                return _Outcome("present", key)
            steps = self.client.publish(key, payload, release.generation, release.expires)
            self._perform(steps)
        except StoreError as error:
            return _Outcome("refused", key, str(error))
        return _Outcome("kept", key)

    def _pull_one(self, store: Store, fits: Callable[[Key], bool], found: StoredObject) -> _Outcome:
        try:
            key = self._pointer(found).key
        except StoreError as error:
            return _Outcome("refused", None, f"{found.path}: {error}")
        if not fits(key):
            return _Outcome("left", key)
        if store.get(key) is not None:
            return _Outcome("present", key)
        try:
            entry = self._perform(self.client.fetch(key))
            if entry is None or not store.put(key, entry.payload, entry.provenance):
                raise StoreError("It could not be written.")
        except StoreError as error:
            return _Outcome("refused", key, str(error))
        return _Outcome("kept", key)

    def _fault(self, sizes: Mapping[str, int], reads_all: bool, found: StoredObject) -> str:
        """Say what is wrong with an entry; empty if nothing is."""
        try:
            pointer = self._pointer(found)
            self.client.believed(pointer, pointer.key)
            payload, path = pointer.inline, blob_path(pointer.sha256)
            if payload is None and sizes.get(path) != pointer.size:
                raise StoreError(f"Its payload {path} is missing, or has another size.")
            if payload is None and reads_all:
                payload = self._perform(self.client.read(path, pointer.size))
            if payload is not None:
                check_blob(pointer, payload)
        except StoreError as error:
            return f"{found.path}: {error}"
        return ""

    def _pointer(self, found: StoredObject) -> Pointer:
        held = self._perform(self.client.read(found.path, MOST_POINTER))
        if held is None:
            raise StoreError("It was removed meanwhile.")
        pointer = Pointer.from_bytes(held)
        if pointer_path(pointer.key) != found.path:
            raise StoreError("It has the name of another key.")
        return pointer

    def _sound_pointer(self, found: StoredObject) -> Pointer | None:
        """Read a pointer; None if nobody would believe it. A store that fails is an error."""
        try:
            pointer = self._pointer(found)
            with suppress(UnknownSignerError):
                self.client.believed(pointer, pointer.key)
        except RemoteError:
            raise
        except StoreError:
            return None
        return pointer

    def _is_there(self, key: Key, payload: bytes) -> bool:
        """Tell whether the same entry is there, and is believed."""
        try:
            held = self._perform(self.client.read(pointer_path(key), MOST_POINTER))
            pointer = Pointer.from_bytes(held or b"")
            self.client.believed(pointer, key)
        except StoreError:
            return False
        return pointer.sha256 == hashlib.sha256(payload).hexdigest()

    def _perform(self, steps: Steps[Result]) -> Result:
        return perform(steps, self.transport, time.sleep)


def _each(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Do the same for each item, several at a time; results are in order."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(work, items)


def _moved(outcomes: Iterable[_Outcome]) -> Moved:
    moved = Moved()
    for outcome in outcomes:
        key = outcome.key
        if outcome.is_now == "kept" and key is not None:
            moved.kept[key.kind] += 1
        elif outcome.is_now == "present":
            moved.present += 1
        elif outcome.is_now == "refused" and key is not None:
            moved.refuse(key, StoreError(outcome.reason))
        elif outcome.is_now == "refused":
            moved.refused.append(outcome.reason)
    return moved
