"""Calls that somebody else waits for: a queue and a thread for each device.

Calls of one device run one after the other, in the order in which they were submitted. Python ends
after what was submitted has run, as with its own executors. A forked process starts with empty
queues: what its parent submitted runs there, and not here.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

from fusewire.errors import GraphError
from fusewire.process.forks import in_forked_child
from fusewire.process.guard import settle
from fusewire.process.jobs import SafeCondition

if TYPE_CHECKING:
    import asyncio

# Calls that may wait for a device. Who submits another waits for room.
MOST_WAITING = 1024


# Seconds that a thread waits for another call before it ends its work: to begin anew takes longer.
_LINGER = 0.05


@final
class SubmittedFuture(Future[Any]):
    """A future whose lock survives an interrupt of who waits for it."""

    def __init__(self) -> None:
        super().__init__()
        # A private name, in every Python since 3.2; wait() and as_completed() take its lock too.
        self._condition = SafeCondition()


@dataclass(frozen=True, eq=False)
class _Submitted:
    """A call, and the future that gets what comes of it; ``owner`` is its program."""

    future: Future[Any]
    owner: object
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def run(self) -> None:
        """Run it, unless it was cancelled."""
        if self.future.set_running_or_notify_cancel():
            settle(self.future, self._answer)

    def _answer(self) -> Any:
        return self.call(*self.arguments, **self.named)


@final
class DeviceQueue:
    """The calls that wait for one device, and the thread that makes them."""

    def __init__(self, device: str, most: int = MOST_WAITING) -> None:
        self._most = most
        # Ends with the process, after the calls that wait; other threads are stopped within them.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"fusewire-{device}")
        self._waiting: deque[_Submitted] = deque()
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._has_work = threading.Condition(self._lock)
        self._work: Future[None] | None = None
        self._thread: int | None = None

    def submit(
        self,
        owner: object,
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Future[Any]:
        """Add a call, after waiting for room if need be."""
        submitted = _Submitted(SubmittedFuture(), owner, call, arguments, named)
        # The lock itself: a Condition takes it in Python, where Ctrl-C could come in between.
        with self._lock:
            # Its own thread, in a callback of a future, would wait for itself.
            while len(self._waiting) >= self._most and threading.get_ident() != self._thread:
                self._has_room.wait()
            self._waiting.append(submitted)
            self._has_work.notify()
            if self._work is None or self._work.done():
                self._start(submitted)
        submitted.future.add_done_callback(lambda future: self._forget(submitted))
        return submitted.future

    @property
    def is_full(self) -> bool:
        """Whether who submits a call now has to wait."""
        return len(self._waiting) >= self._most

    def cancel(self, owner: object) -> None:
        """Cancel the calls of a program that have not begun."""
        with self._lock:
            mine = [submitted for submitted in self._waiting if submitted.owner is owner]
        for submitted in mine:
            submitted.future.cancel()

    def _start(self, submitted: _Submitted) -> None:
        """Have the thread make the calls that wait; its owner has the lock."""
        try:
            self._work = self._executor.submit(self._run_waiting)
        except RuntimeError as error:
            # Python ends, or can start no thread.
            self._waiting.remove(submitted)
            raise GraphError(f"No call can be submitted any more: {error}.") from error

    def _run_waiting(self) -> None:
        """Make the calls that wait, one after the other, until there are none."""
        self._thread = threading.get_ident()
        try:
            while (submitted := self._next()) is not None:
                submitted.run()
                # Nothing of it should be kept until the next one comes.
                del submitted
        finally:
            # A callback of a future may end a thread, and others wait behind it.
            with self._lock, contextlib.suppress(RuntimeError):
                if self._waiting:
                    self._work = self._executor.submit(self._run_waiting)

    def _next(self) -> _Submitted | None:
        with self._lock:
            if not self._waiting:
                self._has_work.wait(_LINGER)
            if not self._waiting:
                # Whoever submits from now on has another run start.
                self._work = None
                return None
            self._has_room.notify()
            return self._waiting.popleft()

    def _forget(self, submitted: _Submitted) -> None:
        """Drop a call that was cancelled while it waited: its arguments may be large."""
        if not submitted.future.cancelled():
            return
        with self._lock:
            if submitted not in self._waiting:
                return
            self._waiting.remove(submitted)
            self._has_room.notify()
        # The thread will not meet it: whoever waits for it is told here.
        submitted.run()


@final
class DeviceQueues:
    """The queues of this process, by device."""

    def __init__(self) -> None:
        self._queues: dict[str, DeviceQueue] = {}
        self._lock = threading.Lock()

    def of(self, device: str) -> DeviceQueue:
        """Return the queue of a device."""
        queue = self._queues.get(device)
        if queue is None:
            with self._lock:
                queue = self._queues.setdefault(device, DeviceQueue(device))
        return queue

    def cancel(self, owner: object) -> None:
        """Cancel the calls of a program that have not begun."""
        for queue in list(self._queues.values()):
            queue.cancel(owner)

    def forget(self) -> None:
        """Start empty in a forked process, which has no threads."""
        self._queues, self._lock = {}, threading.Lock()


QUEUES = DeviceQueues()
in_forked_child(QUEUES.forget)


class Submitter(Protocol):
    """A program whose calls can be submitted."""

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]: ...

    def submits_at_once(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Tell whether to submit such a call takes no time: nothing is made, and there is room."""


async def awaited(program: Submitter, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Submit a call without keeping the event loop waiting, and await its answer.

    If the task is cancelled, so is the call, unless it has begun.
    """
    # Not with this module: an interrupt in the midst of importing it would leave half of it.
    import asyncio

    if program.submits_at_once(arguments, named):
        return await asyncio.wrap_future(program.submit(*arguments, **named))
    loop = asyncio.get_running_loop()
    submitting = loop.run_in_executor(None, partial(program.submit, *arguments, **named))
    try:
        future = await asyncio.shield(submitting)
    except asyncio.CancelledError:
        submitting.add_done_callback(_cancel_submitted)
        raise
    return await asyncio.wrap_future(future)


def _cancel_submitted(submitting: asyncio.Future[Future[Any]]) -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
