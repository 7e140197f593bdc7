"""How busy the machine is, before a comparison and during it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import final

Progress = Callable[[str, float], None]


@final
class Load:
    """The load average of the last minute, read at the start and at every step."""

    def __init__(self) -> None:
        self._before = self._most = _average()

    def watched(self, progress: Progress) -> Progress:
        """Return a progress function that also reads the load."""

        def report(what: str, share: float) -> None:
            self._read()
            progress(what, share)

        return report

    def _read(self) -> None:
        if (average := _average()) is not None:
            self._most = max(average, self._most or 0.0)

    def to_data(self) -> dict[str, float] | None:
        """Return the load before and the highest during, or None if the system has none."""
        self._read()
        if self._before is None or self._most is None:
            return None
        return {"before": round(self._before, 2), "during": round(self._most, 2)}


def _average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
