"""The page of a profile: a timeline with a lane for each thread, and what took how long."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fusewire.errors import visible
from fusewire.show.page import to_page
from fusewire.show.palette import colours, text_colour

if TYPE_CHECKING:
    from fusewire.profiling.profiling import Profile, ProfileEvent

# More would make a page that browsers are slow with; the longest are shown.
_MOST = 100_000
# The kinds that no engine runs, and their colours: light, so that black can be read on them.
_KINDS = {
    "call": "#e8e2d0",
    "prepare": "#d9d3f0",
    "cache": "#cfe8e4",
    "compile": "#f3c9b5",
    "load": "#f0dcb4",
    "hand-over": "#f2b8c6",
    "check": "#cdd9b8",
    "fallback": "#e9a0a0",
    "search": "#d4d4d4",
}


def profile_page(profile: Profile) -> str:
    """Write the page of a profile."""
    events = profile.events
    shown = sorted(events, key=lambda event: -event.seconds)[:_MOST]
    data = {
        "name": "Profile",
        "seconds": profile.seconds,
        "hidden": len(events) - len(shown) + profile.dropped,
        **_events_data(sorted(shown, key=lambda event: (event.start, -event.seconds))),
        "rows": [asdict(row) for row in profile.rows()],
    }
    return to_page(data, "profile")


def _events_data(events: list[ProfileEvent]) -> dict[str, Any]:
    """Write events as short rows, by lane, with how many others of its thread each lies within."""
    texts: dict[str, int] = {}
    lanes: dict[int, list[float]] = {}
    names: list[str] = []
    depths: list[int] = []
    rows = []
    for event in events:
        if event.thread_id not in lanes:
            lanes[event.thread_id] = []
            names.append(visible(event.thread))
            depths.append(0)
        lane, open_ends = [*lanes].index(event.thread_id), lanes[event.thread_id]
        end = event.start + event.seconds
        while open_ends and open_ends[-1] < end:
            open_ends.pop()
        about = [event.kind, event.name, event.backend, event.device, _details(event)]
        numbers = [texts.setdefault(text, len(texts)) for text in about]
        rows.append([lane, len(open_ends), event.start, event.seconds, *numbers])
        open_ends.append(end)
        depths[lane] = max(depths[lane], len(open_ends))
    backends = [*dict.fromkeys(x.backend for x in events if x.kind in ("region", "kernel"))]
    given = {**_KINDS, **{name: colour for name, colour in colours(backends).items() if name}}
    return {
        "texts": [*texts],
        "lanes": [*zip(names, depths, strict=True)],
        "events": rows,
        "colours": {name: [colour, text_colour(colour)] for name, colour in given.items()},
    }


def _details(event: ProfileEvent) -> str:
    shown = (f"{key}: {_shown(value)}" for key, value in event.details.items())
    return visible("\n".join(shown))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
