"""Send a profile to OpenTelemetry as spans, where its API is installed and something collects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusewire.profiling.profiling import Profile, ProfileEvent

_PREFIX = "fusewire"


def send(profile: Profile) -> None:
    """Make a span of the profile, in the current one, and one of each event, nested as they are."""
    try:
        from opentelemetry import trace as api
    except ImportError:
        return
    _send(profile, api)


def _send(profile: Profile, api: Any) -> None:
    tracer = api.get_tracer(_PREFIX)
    begin = profile.started_ns
    root = tracer.start_span(f"{_PREFIX}.profile", start_time=begin)
    if root.is_recording():
        outermost = api.set_span_in_context(root)
        # By thread: the spans that are open, each with its end and the context of what is in it.
        nested: dict[int, list[tuple[float, Any]]] = {}
        for event in profile.events:
            stack = nested.setdefault(event.thread_id, [])
            end = event.start + event.seconds
            while stack and stack[-1][0] < end:
                stack.pop()
            context = stack[-1][1] if stack else outermost
            span = tracer.start_span(
                f"{_PREFIX}.{event.kind}",
                context,
                attributes=_attributes(event),
                start_time=begin + round(event.start * 1e9),
            )
            span.end(begin + round(end * 1e9))
            stack.append((end, api.set_span_in_context(span)))
    root.end(begin + round(profile.seconds * 1e9))


def _attributes(event: ProfileEvent) -> dict[str, Any]:
    about = {
        "name": event.name,
        "backend": event.backend,
        "device": event.device,
        "thread": event.thread,
        **event.details,
    }
    return {
        f"{_PREFIX}.{key}": value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in about.items()
        if value != ""
    }
