"""Dynamic batching: requests of one form wait a little, and run together.

Everything here runs on the event loop. A batch goes to an idle replica when it is full, or when its
oldest request has waited for the delay. A batch that fails is replayed one request at a time, so
that a request that an engine cannot survive fails alone, and those beside it are answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fusewire.errors import (
    BackendHung,
    BackendKilled,
    BackendNotStarted,
    FusewireError,
    RequestTimeout,
    ServerBusy,
)
from fusewire.ir.graph import Array
from fusewire.serve.metrics import ModelCounts

# How often a request that ran alone runs again. Who killed a replica from outside may do so again;
# one that hangs may have been stopped; one that crashed has been tried twice by its program.
_REPEATS: Mapping[type[FusewireError], int] = {
    BackendKilled: 3,
    BackendNotStarted: 3,
    BackendHung: 1,
}


@dataclass(frozen=True)
class BatchPolicy:
    """How many rows a batch has at most, and how many seconds its oldest request waits."""

    rows: int = 32
    delay: float = 0.002
    pads: bool = False


class Pending:
    """A request that waits for its answer."""

    __slots__ = ("arrays", "deadline", "future", "is_taken", "key", "repeats", "rows", "since")

    def __init__(
        self,
        arrays: list[Array],
        key: Any,
        rows: int,
        deadline: float,
        future: asyncio.Future[list[Array]],
    ) -> None:
        self.arrays = arrays
        self.key = key
        self.rows = rows
        self.deadline = deadline
        self.future = future
        self.since = time.monotonic()
        self.is_taken = False
        self.repeats = 0


class BatchRunner(Protocol):
    """What runs batches: a number of replicas, each one batch at a time."""

    @property
    def is_idle(self) -> bool:
        """Whether a replica has nothing to do."""

    @property
    def has_room(self) -> bool:
        """Whether a replica can take a batch that it runs after the one it has."""

    def start(self, batch: list[Pending], done: Batcher) -> None:
        """Give a batch to a replica; ``done.finished`` is called on the event loop."""


class Batcher:
    """Forms batches for one model and gives the answers to those who wait."""

    def __init__(
        self, runner: BatchRunner, policy: BatchPolicy, queue: int, counts: ModelCounts
    ) -> None:
        self.policy = policy
        self._runner = runner
        self._most = queue
        self._counts = counts
        self._waiting = 0
        self._running = 0
        # By key; what waits alone is in _alone. In the order of arrival, too.
        self._queues: dict[Any, deque[Pending]] = {}
        self._rows: dict[Any, int] = {}
        self._full: deque[Any] = deque()
        self._arrived: deque[Pending] = deque()
        self._alone: deque[Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def waiting(self) -> int:
        """How many requests wait for a replica."""
        return self._waiting

    @property
    def is_busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._waiting or self._running)

    def submit(
        self, arrays: list[Array], key: Any, rows: int | None, deadline: float
    ) -> asyncio.Future[list[Array]]:
        """Have a request answered; ServerBusy if too many wait."""
        if self._waiting >= self._most:
            self._counts.refused += 1
            raise ServerBusy(
                f"{self._waiting} requests wait already; the limit is {self._most}.",
                self._retry_seconds(),
            )
        future: asyncio.Future[list[Array]] = asyncio.get_running_loop().create_future()
        pending = Pending(arrays, key, rows or 1, deadline, future)
        self._waiting += 1
        if key is None or rows is None or self.policy.rows <= 1:
            self._alone.append(pending)
        else:
            self._enqueue(pending)
        self._pump()
        return future

    def _retry_seconds(self) -> int:
        rate = self._counts.rate()
        return max(1, min(30, round(self._waiting / rate))) if rate else 1

    def _enqueue(self, pending: Pending) -> None:
        queue = self._queues.setdefault(pending.key, deque())
        queue.append(pending)
        self._arrived.append(pending)
        rows = self._rows.get(pending.key, 0)
        self._rows[pending.key] = rows + pending.rows
        if rows < self.policy.rows <= rows + pending.rows:
            self._full.append(pending.key)

    def _pump(self) -> None:
        """Start all batches that are due, as far as replicas are idle."""
        while self._waiting:
            if self._runner.is_idle:
                batch = self._next()
            elif self._full and self._runner.has_room:
                # So that the engine need not wait for the event loop between two batches.
                batch = self._next_full()
            else:
                return
            if not batch:
                return
            self._running += 1
            self._runner.start(batch, self)

    def _next(self) -> list[Pending]:
        while self._alone:
            if batch := self._live([self._alone.popleft()]):
                return batch
        if batch := self._next_full():
            return batch
        while self._arrived:
            oldest = self._arrived[0]
            if oldest.is_taken:
                self._arrived.popleft()
                continue
            now = time.monotonic()
            if oldest.since + self.policy.delay > now:
                self._wake_at(oldest.since + self.policy.delay, now)
                return []
            if batch := self._take(oldest.key):
                return batch
        return []

    def _next_full(self) -> list[Pending]:
        while self._full:
            key = self._full.popleft()
            if self._rows.get(key, 0) >= self.policy.rows and (batch := self._take(key)):
                return batch
        return []

    def _take(self, key: Any) -> list[Pending]:
        """Take the oldest requests of a queue that fit a batch, but at least one."""
        queue, rows = self._queues[key], 0
        batch: list[Pending] = []
        while queue and (not batch or rows + queue[0].rows <= self.policy.rows):
            pending = queue.popleft()
            pending.is_taken = True
            rows += pending.rows
            batch.append(pending)
        self._rows[key] -= rows
        if not queue:
            del self._queues[key], self._rows[key]
        elif self._rows[key] >= self.policy.rows:
            self._full.append(key)
        return self._live(batch)

    def _live(self, batch: list[Pending]) -> list[Pending]:
        """Leave out requests that nobody waits for any more, or that are late."""
        now = time.monotonic()
        self._waiting -= len(batch)
        live: list[Pending] = []
        for pending in batch:
            if pending.future.done():
                self._counts.cancelled += 1
            elif pending.deadline < now:
                self._counts.late += 1
                pending.future.set_exception(
                    RequestTimeout("The deadline of the request passed before it could run.")
                )
            else:
                live.append(pending)
        return live

    def _wake_at(self, due: float, now: float) -> None:
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(due - now, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._pump()

    def finished(
        self, batch: list[Pending], outputs: Sequence[Sequence[Array]] | BaseException
    ) -> None:
        """Give each request of a batch its answer, or have it run again, alone."""
        self._running -= 1
        if isinstance(outputs, BaseException):
            self._failed(batch, outputs)
        else:
            self._counts.note_batch(batch)
            for pending, arrays in zip(batch, outputs, strict=True):
                if not pending.future.done():
                    pending.future.set_result(list(arrays))
        self._pump()

    def _failed(self, batch: list[Pending], error: BaseException) -> None:
        most = max((n for kind, n in _REPEATS.items() if isinstance(error, kind)), default=0)
        for pending in batch:
            if pending.future.done():
                continue
            may_repeat = len(batch) > 1 or pending.repeats < most
            if isinstance(error, FusewireError) and may_repeat:
                pending.repeats += 1
                self._counts.repeated += 1
                self._waiting += 1
                self._alone.append(pending)
            else:
                self._counts.failed += 1
                pending.future.set_exception(error)
