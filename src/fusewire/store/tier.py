"""The shared store behind the local one: asked on a local miss, and never waited for long.

A few threads ask it. Whoever misses waits for the answer only while ``patience`` lasts, 0.2 s in
all; what arrives later is kept for the next time. A store that fails or is slow is left alone for a
while. What arrives and is believed is written to the local store, and read from there.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import final

from fusewire.errors import RemoteError, StoreError, note
from fusewire.store.disk import Store
from fusewire.store.key import Key
from fusewire.store.remote import SHARED, RemoteClient, perform
from fusewire.store.signing import AllowedSigners
from fusewire.store.transport import Transport, open_transport

Clock = Callable[[], float]
# Seconds that answers may be delayed by misses, and in how many seconds they are granted anew.
PATIENCE, _GRANTED = 0.2, 300.0
# A margin for what waiting itself takes.
_MARGIN = 0.02
# Seconds that those may wait who cannot go on without the entry.
_MOST_PATIENCE = 10.0
_THREADS, _MOST_TASKS = 4, 64
# Seconds for which a key that was not there is not asked for again.
_MISSING = 60.0
# Seconds for which a store that failed is left alone: at first, and at most.
_FIRST_REST, _LONGEST_REST = 1.0, 120.0


@final
class Breaker:
    """Leaves a store alone after a failure: longer each time, and at a random moment."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance
        self._failures = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the store is to be left alone now."""
        return self._failures > 0 and self._clock() < self._until

    def failed(self) -> None:
        """Note that the store did not answer, or not in time."""
        rest = min(_LONGEST_REST, _FIRST_REST * 2**self._failures)
        self._failures = min(self._failures + 1, 30)
        self._until = self._clock() + rest * self._chance.uniform(0.5, 1.5)

    def succeeded(self) -> None:
        """Note that the store answered."""
        self._failures = 0


@final
class Patience:
    """The seconds that may still be waited for nothing; what is found costs nothing."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = self._left = seconds
        self._since = clock()

    @property
    def left(self) -> float:
        now = self._clock()
        if now - self._since > _GRANTED:
            self._left, self._since = self._seconds, now
        return max(self._left, 0.0)

    def spend(self, seconds: float) -> None:
        """Count seconds that were waited in vain."""
        self._left -= seconds


@dataclass(eq=False)
class _Task:
    """A key that is being fetched."""

    key: Key
    done: threading.Event = field(default_factory=threading.Event)
    is_here: bool = False


@final
class RemoteTier:
    """Brings entries of a shared store to the local one; safe for many threads."""

    def __init__(
        self,
        store: Store,
        client: RemoteClient,
        open_it: Callable[[], Transport],
        clock: Clock = time.monotonic,
        patience: float = PATIENCE - _MARGIN,
    ) -> None:
        self._store = store
        self._client = client
        self._open_it = open_it
        self._clock = clock
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._tasks: dict[str, _Task] = {}
        self._missing: dict[str, float] = {}
        self._queue: queue.Queue[_Task] = queue.Queue(_MOST_TASKS)
        self._threads = 0
        self._has_complained = False
        self.breaker = Breaker(clock, client.chance)
        self.patience = Patience(clock, patience)

    def bring(self, key: Key) -> bool:
        """Fetch an entry into the local store; True if it is there now."""
        if key.kind not in SHARED or not self._client.signers.signers:
            return False
        task = self._task(key)
        if task is None:
            return False
        start, most = self._clock(), self.patience.left
        if most > 0 and task.done.wait(most) and task.is_here:
            return True
        self.patience.spend(self._clock() - start)
        if most > 0 and not task.done.is_set():
            self.breaker.failed()
        return False

    def _task(self, key: Key) -> _Task | None:
        """Have a key fetched, if the store is to be asked for it now."""
        with self._lock:
            if (task := self._tasks.get(key.digest)) is not None:
                return task
            if self.breaker.is_open or self._clock() < self._missing.get(key.digest, 0.0):
                return None
            task = _Task(key)
            try:
                self._queue.put_nowait(task)
                if self._threads < _THREADS and self._threads <= self._queue.qsize():
                    threading.Thread(target=self._work, daemon=True).start()
                    self._threads += 1
            except (queue.Full, RuntimeError):
                # Without a thread nobody would ever answer; what is local goes on.
                return None
            self._tasks[key.digest] = task
            return task

    def _work(self) -> None:
        while True:
            task = self._queue.get()
            try:
                task.is_here = self._fetch(task.key)
            finally:
                with self._lock:
                    self._tasks.pop(task.key.digest, None)
                    if not task.is_here:
                        self._missing[task.key.digest] = self._clock() + _MISSING
                task.done.set()

    def _fetch(self, key: Key) -> bool:
        try:
            if self._transport is None:
                self._transport = self._open_it()
            entry = perform(self._client.fetch(key), self._transport)
        except RemoteError as error:
            self.breaker.failed()
            self._complain(f"The shared store is left alone for a while: {error}")
            return False
        except StoreError as error:
            self.breaker.succeeded()
            self._complain(f"A {key.kind} of the shared store is refused: {error}")
            return False
        self.breaker.succeeded()
        if entry is None or not self._store.put(key, entry.payload, entry.provenance):
            return False
        note(f"Brought a {key.kind} ({len(entry.payload):,} bytes) from the shared store.")
        return True

    def _complain(self, said: str) -> None:
        note(said, is_warning=not self._has_complained)
        self._has_complained = True


@cache
def _tier(store: Store, url: str, patience: float) -> RemoteTier:
    client = RemoteClient(AllowedSigners.read(), seen=store)
    return RemoteTier(store, client, lambda: open_transport(url), patience=patience)


def with_remote(store: Store, url: str, start: float, *, is_patient: bool = False) -> Store:
    """Return a store of the same folder that has a shared one behind it.

    What was done for it since ``start``, imports above all, counts as waiting. ``is_patient``: a
    miss is an error, so that waiting for seconds is better.
    """
    try:
        tier = _tier(store, url, _MOST_PATIENCE if is_patient else PATIENCE - _MARGIN)
    except (StoreError, OSError) as error:
        note(f"The shared store {url} is not used: {error}", is_warning=True)
        return store
    tier.patience.spend(time.monotonic() - start)
    return Store(store.path, store.limit, store.secret, tier)
