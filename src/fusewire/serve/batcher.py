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
    EngineError,
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
# How often requests that wait or run are checked for being late, in seconds.
_CHECK_SECONDS = 1.0


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
        # Batches by identity.
        self._running: dict[int, list[Pending]] = {}
        # By key; what waits alone is in _alone. In the order of arrival, too.
        self._queues: dict[Any, deque[Pending]] = {}
        self._rows: dict[Any, int] = {}
        # Keys whose requests fill a batch, in the order in which they did.
        self._full: dict[Any, None] = {}
        self._arrived: deque[Pending] = deque()
        self._alone: deque[Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._check: asyncio.TimerHandle | None = None

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
        if self._check is None:
            self._check_later()
        self._pump()
        return future

    def _retry_seconds(self) -> int:
        rate = self._counts.rate()
        return max(1, min(30, round(self._waiting / rate))) if rate else 1

    def _enqueue(self, pending: Pending) -> None:
        queue = self._queues.setdefault(pending.key, deque())
        queue.append(pending)
        self._arrived.append(pending)
        rows = self._rows.get(pending.key, 0) + pending.rows
        self._rows[pending.key] = rows
        if rows >= self.policy.rows:
            self._full[pending.key] = None

    def _pump(self) -> None:
        """Start all batches that are due, as far as replicas are idle."""
        while self._waiting:
            # If a batch is full, the engine need not wait for the event loop between two of them.
            if not self._runner.is_idle and not (self._full and self._runner.has_room):
                return
            batch = self._next()
            if not batch:
                return
            self._running[id(batch)] = batch
            self._runner.start(batch, self)

    def _next(self) -> list[Pending]:
        """Take the oldest request that is due, with those of its form; a full batch is due, too.

        By age, because whoever goes first as a rule keeps the others waiting under load.
        """
        while self._waiting:
            oldest, now = self._oldest(), time.monotonic()
            is_due = oldest is not None and oldest.since + self.policy.delay <= now
            alone = self._alone[0] if self._alone else None
            if alone is not None and not (is_due and oldest and oldest.since < alone.since):
                batch = self._live([self._alone.popleft()])
            elif oldest is not None and is_due:
                batch = self._take(oldest.key)
            elif self._full:
                batch = self._take(next(iter(self._full)))
            else:
                if oldest is not None:
                    self._wake_at(oldest.since + self.policy.delay, now)
                return []
            if batch:
                return batch
        return []

    def _oldest(self) -> Pending | None:
        """Return the oldest request that may share a batch."""
        while self._arrived and self._arrived[0].is_taken:
            self._arrived.popleft()
        return self._arrived[0] if self._arrived else None

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
        self._full.pop(key, None)
        if not queue:
            del self._queues[key], self._rows[key]
        elif self._rows[key] >= self.policy.rows:
            self._full[key] = None
        return self._live(batch)

    def _live(self, batch: list[Pending]) -> list[Pending]:
        """Leave out requests that nobody waits for any more, or that are late."""
        now = time.monotonic()
        self._waiting -= len(batch)
        live: list[Pending] = []
        for pending in batch:
            if pending.future.cancelled():
                self._counts.cancelled += 1
            elif pending.future.done() or _expire(pending, now):
                self._counts.late += 1
            else:
                live.append(pending)
        return live

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._check = loop.call_later(_CHECK_SECONDS, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Have requests fail that are late, whether they wait or run; replicas go on."""
        now = time.monotonic()
        for batch in self._running.values():
            self._counts.late += sum(_expire(pending, now) for pending in batch)
        for pending in (*self._arrived, *self._alone):
            _expire(pending, now)
        if self.is_busy:
            self._check_later()
        else:
            self._check = None

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
        del self._running[id(batch)]
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
            if len(batch) > 1 or pending.repeats < most:
                pending.repeats += 1
                self._counts.repeated += 1
                self._waiting += 1
                self._alone.append(pending)
            else:
                self._counts.failed += 1
                pending.future.set_exception(_typed(error))


def _expire(pending: Pending, now: float) -> bool:
    """Have a request fail if it is late; returns whether it does now."""
    if pending.future.done() or pending.deadline >= now:
        return False
    pending.future.set_exception(
        RequestTimeout("The request was not answered before its deadline.")
    )
    return True


def _typed(error: BaseException) -> FusewireError:
    """Return an error that protocols have a code for."""
    if isinstance(error, FusewireError):
        return error
    typed = EngineError(f"The call raised {type(error).__name__}: {str(error)[:300]}")
    typed.__cause__ = error
    return typed
