"""The limits of a child process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChildLimits:
    """Limits of one job: seconds, and resident bytes (None: what the machine has free)."""

    seconds: float = 60.0
    memory_bytes: int | None = None
