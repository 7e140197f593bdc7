"""What a profile collects: events with a begin and an end, on the clock of ``time.perf_counter``.

Every layer may note events, so nothing of Fusewire is imported here. While no profile is on,
``span`` gives a context that does nothing, and whoever runs for every call asks once, when a
profile begins or ends, and not at each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NamedTuple, final

# "call" one call of a program · "prepare" what a new signature takes before it can run · "cache" a
# look into the cache · "compile", "load" what an engine takes before the first run · "hand-over"
# values on their way between memories · "region" a run of an engine · "kernel" a part of such a run
# · "check" indices and lengths, before an engine sees them · "fallback" a call that an engine
# failed · "search" engines compared behind the calls.
Kind = Literal[
    "call",
    "prepare",
    "cache",
    "compile",
    "load",
    "hand-over",
    "region",
    "kernel",
    "check",
    "fallback",
    "search",
]
# A name that takes long to find is found when somebody reads it.
Name = str | Callable[[], str]
# The most events that a profile keeps.
MOST = 1_000_000


class RawEvent(NamedTuple):
    """An event as it was noted; times are those of ``time.perf_counter``.

    A tuple, which is made in a fraction of the time of a dataclass: calls wait for it.
    """

    kind: Kind
    name: Name
    start: float
    end: float
    backend: str = ""
    device: str = ""
    thread: int = 0
    thread_name: str = ""
    details: Mapping[str, Any] = MappingProxyType({})


@final
class EventList:
    """The events of one profile; safe for threads."""

    def __init__(self, *, wants_kernels: bool = False, most: int = MOST) -> None:
        self.events: list[RawEvent] = []
        self.wants_kernels = wants_kernels
        self.dropped = 0
        self._most = most

    def add(self, event: RawEvent) -> None:
        """Keep an event, or count it if there are too many."""
        if len(self.events) < self._most:
            self.events.append(event)
        else:
            self.dropped += 1


@final
class EventLog:
    """Hands every event to the profiles that are on."""

    def __init__(self) -> None:
        # Replaced as a whole, so that whoever is noting an event sees one or the other.
        self.lists: tuple[EventList, ...] = ()
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether anybody collects events."""
        return bool(self.lists)

    @property
    def wants_kernels(self) -> bool:
        """Whether anybody wants to know what engines do within a run, at the cost of asking."""
        return any(events.wants_kernels for events in self.lists)

    def begin(self, events: EventList) -> None:
        """Have a list collect from now on."""
        with self._lock:
            self.lists = (*self.lists, events)

    def end(self, events: EventList) -> None:
        """Have a list collect no longer."""
        with self._lock:
            self.lists = tuple([other for other in self.lists if other is not events])

    def note(
        self,
        kind: Kind,
        name: Name,
        start: float,
        end: float,
        backend: str = "",
        device: str = "",
        /,
        **details: Any,
    ) -> None:
        """Add an event of the current thread."""
        if not self.lists:
            return
        thread = threading.current_thread()
        ident = thread.ident or 0
        self.add(RawEvent(kind, name, start, end, backend, device, ident, thread.name, details))

    def add(self, event: RawEvent) -> None:
        """Add an event."""
        for events in self.lists:
            events.add(event)

    def span(
        self, kind: Kind, name: Name, *, backend: str = "", device: str = "", **details: Any
    ) -> AbstractContextManager[dict[str, Any]]:
        """Note what runs inside; yields the details of the event, to add to."""
        if not self.lists:
            return nullcontext({})
        return _Span(self, kind, name, backend, device, details)


@final
class _Span(AbstractContextManager[dict[str, Any]]):
    """Notes an event when it is left, also by an exception."""

    def __init__(
        self,
        log: EventLog,
        kind: Kind,
        name: Name,
        backend: str,
        device: str,
        details: dict[str, Any],
    ) -> None:
        self._log = log
        self._kind, self._name = kind, name
        self._backend, self._device = backend, device
        self._details = details
        self._start = 0.0

    def __enter__(self) -> dict[str, Any]:
        self._start = perf_counter()
        return self._details

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._details.setdefault("error", kind.__name__)
        where = self._backend, self._device
        self._log.note(self._kind, self._name, self._start, perf_counter(), *where, **self._details)


EVENTS = EventLog()
