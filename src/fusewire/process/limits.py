"""What a child process may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChildLimits:
    """What one job may take: seconds, and resident memory (None: what the machine has free)."""

    seconds: float = 60.0
    memory_bytes: int | None = None
