"""What a request may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServeLimits:
    """Bounds on one request and on all that wait; beyond them, a request is refused.

    ``json_bytes`` bounds what is read as JSON: it takes the server much longer to read than binary
    tensors do. ``request_seconds`` is the longest that a request waits and runs, whatever it asks
    for; ``read_seconds`` is the longest that a client may take to send one.
    """

    body_bytes: int = 64 << 20
    json_bytes: int = 4 << 20
    rank: int = 16
    queue: int = 1024
    connections: int = 4096
    request_seconds: float = 60.0
    read_seconds: float = 20.0
