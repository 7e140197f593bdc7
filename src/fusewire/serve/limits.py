"""What a request may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServeLimits:
    """Bounds on one request and on all that wait; beyond them, a request is refused.

    ``json_bytes`` bounds what is not binary tensors, in JSON or in messages of gRPC: it takes the
    server much longer to read, and many times the memory. ``held_bytes`` bounds the bodies of all
    requests that are read, wait or run; one alone may have more. ``request_seconds`` is the longest
    that a request waits and runs, whatever it asks for; ``read_seconds`` is the longest that a
    client may take to send one.

    Up to ``json_at_once`` bytes of JSON are parsed in the server's process. More are parsed in a
    child, which may take ``parse_bytes`` and ``parse_seconds`` for a request.
    """

    body_bytes: int = 64 << 20
    json_bytes: int = 4 << 20
    json_at_once: int = 64 << 10
    parse_bytes: int = 512 << 20
    parse_seconds: float = 10.0
    held_bytes: int = 1 << 30
    inputs: int = 1024
    rank: int = 16
    queue: int = 1024
    connections: int = 4096
    request_seconds: float = 60.0
    read_seconds: float = 20.0
