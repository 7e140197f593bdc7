"""``fw.profile()``: what calls do, on one clock, as data, as a table, and as files.

A profile is of the whole process: of all programs and threads, those that compare engines behind
the calls among them. While one is on, every region is waited for, so that its time is its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self, final

from fusewire.errors import FusewireError, GraphError, OptionsError, visible
from fusewire.events import EVENTS, EventList, Kind, Name
from fusewire.plan.regions import LOADED
from fusewire.program.origin import PROGRAMS
from fusewire.program.program import Program

# Seconds that a profile waits for a program that is making an entry; a thread waits for longer.
_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class ProfileEvent:
    """Something that took time: ``start`` and ``seconds`` are seconds, since the profile began.

    ``kind`` is "call", "prepare", "cache", "compile", "load", "hand-over", "region", "kernel",
    "check", "fallback" or "search". An event lies within the ones of its thread that it is a part
    of: a kernel in its region, a region in its call. ``details`` holds what else is known, such as
    ``bytes`` of a hand-over.
    """

    kind: Kind
    name: str
    start: float
    seconds: float
    backend: str = ""
    device: str = ""
    thread: str = ""
    thread_id: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfileRow:
    """Events of one kind and name taken together; times are in seconds.

    ``share`` is that of the time of all calls, and only given for what is part of calls.
    """

    kind: Kind
    name: str
    backend: str
    count: int
    total: float
    median: float
    share: float | None


@final
class Profile:
    """What happened while it was on. Made by ``fw.profile()``, and begun by ``with``."""

    def __init__(self, *, kernels: bool = False) -> None:
        self._list = EventList(wants_kernels=kernels)
        self._start = self._end = 0.0
        self._epoch_ns = 0
        self._state = "new"

    def __enter__(self) -> Self:
        if self._state != "new":
            raise GraphError("This profile has been used. Make another with fw.profile().")
        self._state = "on"
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        EVENTS.begin(self._list)
        _choose_runs()
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end = time.perf_counter()
        EVENTS.end(self._list)
        # Other calls go on meanwhile: none may find a run that is observed after that has ended.
        _choose_runs((self._list,))
        self._state = "done"
        from fusewire.profiling.telemetry import send

        send(self)

    @property
    def seconds(self) -> float:
        """How long it was on, or has been."""
        end = time.perf_counter() if self._state == "on" else self._end
        return end - self._start

    @property
    def started_ns(self) -> int:
        """When it began, in nanoseconds since 1970."""
        return self._epoch_ns + round(self._start * 1e9)

    @property
    def dropped(self) -> int:
        """How many events came after the first million, and were not kept."""
        return self._list.dropped

    @property
    def events(self) -> tuple[ProfileEvent, ...]:
        """What happened so far, in order of the begin; the longer event first."""
        if self._state == "done":
            return self._all_events
        return self._listed()

    @cached_property
    def _all_events(self) -> tuple[ProfileEvent, ...]:
        return self._listed()

    def _listed(self) -> tuple[ProfileEvent, ...]:
        names: dict[Name, str] = {}
        events = [
            ProfileEvent(
                raw.kind,
                names.get(raw.name) or names.setdefault(raw.name, _named(raw.name, raw.backend)),
                raw.start - self._start,
                raw.end - raw.start,
                raw.backend,
                raw.device,
                raw.thread_name,
                raw.thread,
                dict(raw.details),
            )
            for raw in list(self._list.events)
        ]
        return tuple(sorted(events, key=lambda event: (event.start, -event.seconds)))

    def rows(self) -> tuple[ProfileRow, ...]:
        """Take events of the same kind, name and backend together, in order of their begin."""
        groups: dict[tuple[Kind, str, str], list[float]] = {}
        for event in self.events:
            key = event.kind, event.name, event.backend
            groups.setdefault(key, []).append(event.seconds)
        calls = sum(sum(times) for (kind, _, _), times in groups.items() if kind == "call")
        return tuple(
            ProfileRow(
                *key,
                len(times),
                sum(times),
                median(times),
                sum(times) / calls if calls and key[0] not in _NO_PARTS else None,
            )
            for key, times in groups.items()
        )

    def table(self, width: int = 80) -> str:
        """Write a table of what took how long, the longest first within each kind."""
        from fusewire.show.report import seconds
        from fusewire.tables import Column, Sheet

        sheet = Sheet(
            "kind",
            Column("name", "prose"),
            "backend",
            *(Column(name, align="right") for name in ("count", "total", "median", "of calls")),
            title=f"{len(self.events)} events in {seconds(self.seconds)}",
            caption=f"{self.dropped} more events were not kept" if self.dropped else "",
        )
        sheet.has_option = False
        for row in sorted(self.rows(), key=lambda row: (_ORDER.index(row.kind), -row.total)):
            share = "" if row.share is None else f"{row.share:.1%}"
            times = seconds(row.total), seconds(row.median)
            sheet.add(row.kind, row.name, row.backend, str(row.count), *times, share)
        return sheet.to_text(width)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<Profile: {self._state}, {len(self._list.events)} events>"

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data for JSON."""
        return {
            "seconds": self.seconds,
            "dropped": self.dropped,
            "events": [asdict(event) for event in self.events],
        }

    def to_trace(self) -> dict[str, Any]:
        """Make the data of a Chrome trace, which Perfetto and chrome://tracing open."""
        from fusewire.profiling.trace_file import trace_data

        return trace_data(self)

    def to_html(self) -> str:
        """Write the timeline as a page, which is whole in one file and loads nothing."""
        from fusewire.profiling.profile_page import profile_page

        return profile_page(self)

    def _repr_html_(self) -> str:
        """Show the timeline in a notebook, in a frame that has no access to it."""
        from fusewire.show.page import in_frame

        return in_frame(self.to_html(), title="Profile")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, by the end of its name: a Chrome trace to .json, the page to .html."""
        writers: Mapping[str, Callable[[], str]] = {
            ".json": self._trace_text,
            ".html": self.to_html,
        }
        file = Path(path)
        if file.suffix not in writers:
            known = ", ".join(writers)
            raise OptionsError(
                f"A profile cannot be written to {file.name}: end its name in {known}."
            )
        file.write_text(writers[file.suffix](), encoding="utf-8")

    def _trace_text(self) -> str:
        import json

        return json.dumps(self.to_trace())


# Parts of a part of a call, and what is beside calls; and the order of the table.
_NO_PARTS = ("kernel", "search")
_ORDER: tuple[Kind, ...] = (
    "call",
    "region",
    "kernel",
    "hand-over",
    "check",
    "fallback",
    "prepare",
    "compile",
    "load",
    "cache",
    "search",
)


def profile(*, kernels: bool = False) -> Profile:
    """Collect what calls do inside a ``with``: where the time goes, and what was compiled.

    With ``kernels``, engines that can are asked how long each of their kernels takes, which makes
    runs a little slower.

    >>> import fusewire as fw
    >>> import numpy as np
    >>> double = fw.compile(lambda x: x + x, backend="reference")
    >>> with fw.profile() as p:
    ...     y = double(np.ones(3, np.float32))
    >>> sorted({event.kind for event in p.events})
    ['call', 'prepare', 'region']
    """
    return Profile(kernels=kernels)


def _named(name: Name, backend: str) -> str:
    if isinstance(name, str):
        return visible(name)
    try:
        return visible(name())
    except (FusewireError, OSError):
        # A saved plan has the names of its regions in the model file, which may be gone.
        return backend


def _choose_runs(ended: tuple[EventList, ...] = ()) -> None:
    """Have all programs and executables be observed, or no longer."""
    LOADED.choose_runs(ended)
    for program in _programs():
        if not program.observe(_WAIT_SECONDS):
            threading.Thread(target=program.observe, daemon=True, name="fusewire-profile").start()


def _programs() -> Iterator[Program]:
    """Yield the programs on arrays: those of modules call them."""
    for program in list(PROGRAMS):
        if isinstance(program, Program):
            yield program
