"""Write a profile in the Trace Event Format, which Perfetto and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusewire.profiling.profiling import Profile, ProfileEvent


def trace_data(profile: Profile) -> dict[str, Any]:
    """Make complete events ("X") in microseconds; threads keep their names."""
    process = os.getpid()
    # Small numbers: thread ids are beyond what JavaScript holds exactly.
    numbers: dict[int, int] = {}
    complete = []
    names: dict[int, str] = {}
    for event in profile.events:
        number = numbers.setdefault(event.thread_id, len(numbers) + 1)
        names.setdefault(number, event.thread)
        complete.append(_complete(event, process, number))
    named = [_metadata("process_name", process, 0, "fusewire")]
    named += [_metadata("thread_name", process, number, name) for number, name in names.items()]
    return {
        "traceEvents": [*named, *complete],
        "displayTimeUnit": "ms",
        "otherData": {"started_ns": str(profile.started_ns), "dropped": profile.dropped},
    }


# Kinds of events that are known by their names; the names of others are those of what they serve.
_NAMED = ("call", "region", "kernel")


def _complete(event: ProfileEvent, process: int, thread: int) -> dict[str, Any]:
    about = {"backend": event.backend, "device": event.device, **event.details}
    return {
        "ph": "X",
        "name": event.name if event.kind in _NAMED else f"{event.kind} {event.name}",
        "cat": event.kind,
        "ts": round(event.start * 1e6, 3),
        "dur": round(event.seconds * 1e6, 3),
        "pid": process,
        "tid": thread,
        "args": {key: _plain(value) for key, value in about.items() if value != ""},
    }


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
