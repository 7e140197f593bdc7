"""Messages of gRPC as they come: few at a time, and each within a client's time.

gRPC keeps what has come of a message to itself until it is whole, and tells nobody how much that
is. Of a message that nobody has asked for, it takes a window of 64 kB. So each that is asked for
counts as if it had all that a message may have, and few are at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, final

import grpc

from fusewire.errors import FusewireError, RequestError, RequestTimeout, ServerBusy
from fusewire.serve.limits import ServeLimits

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Refuse: TypeAlias = "Callable[[Context, FusewireError], Awaitable[Any]]"

# Most messages are whole within so many seconds. Those that are not have places of their own.
_MOMENT = 0.5
# So many of each kind, however large a message may be.
_FEWEST = 2


class _Arrival:
    """A message that is not whole yet."""

    __slots__ = ("context", "is_slow", "timer")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.is_slow = False
        self.timer: asyncio.TimerHandle | None = None


@final
class Receiver:
    """Receives messages; ``refuse`` ends a call whose message does not come."""

    def __init__(self, limits: ServeLimits, refuse: Refuse) -> None:
        places = max(limits.held_bytes // limits.body_bytes // 2, _FEWEST)
        self._seconds = limits.read_seconds
        self._refuse = refuse
        self._prompt = asyncio.Semaphore(places)
        self._slow = places
        self._refusing: set[asyncio.Future[Any]] = set()

    async def receive(self, context: Context) -> bytes:
        """Return the message of a call; RequestError if there is none, or no place for it."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._prompt.acquire()
        except TimeoutError:
            raise ServerBusy("Too many messages are not whole yet. Send it again later.") from None
        arrival = _Arrival(context)
        self._wait(arrival, _MOMENT, self._note_slow)
        try:
            raw = await context.read()
        finally:
            self._end(arrival)
        if not isinstance(raw, bytes):
            raise RequestError("The call has no message.")
        return raw

    def _wait(self, arrival: _Arrival, seconds: float, then: Callable[[_Arrival], None]) -> None:
        arrival.timer = asyncio.get_running_loop().call_later(seconds, then, arrival)

    def _note_slow(self, arrival: _Arrival) -> None:
        """Give the place of a message to the next; it has another, or is refused."""
        if not self._slow:
            self._give_up(arrival, ServerBusy("Too many messages come slowly. Send it later."))
            return
        self._slow -= 1
        arrival.is_slow = True
        self._prompt.release()
        self._wait(arrival, self._seconds - _MOMENT, self._note_late)

    def _note_late(self, arrival: _Arrival) -> None:
        words = f"The message was not sent within {self._seconds:g} seconds."
        self._give_up(arrival, RequestTimeout(words))

    def _give_up(self, arrival: _Arrival, error: FusewireError) -> None:
        """End the call, and reading with it: what is only cancelled goes on in gRPC (1.85)."""
        task = asyncio.ensure_future(self._refuse(arrival.context, error))
        self._refusing.add(task)
        task.add_done_callback(self._refusing.discard)

    def _end(self, arrival: _Arrival) -> None:
        assert arrival.timer is not None, "it waits from the beginning"
        arrival.timer.cancel()
        if arrival.is_slow:
            self._slow += 1
        else:
            self._prompt.release()
