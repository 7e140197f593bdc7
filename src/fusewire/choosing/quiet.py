"""Tell whether a measurement was disturbed by the calls of the process that it is made for."""

from __future__ import annotations

import time
from typing import final

from fusewire.errors import NoQuietError
from fusewire.process.calls import CallPage

# Between looks at a page while a call runs.
_TICK = 0.002


@final
class CallWatch:
    """Watches the calls of another process; NoQuietError if they leave no time to measure."""

    def __init__(self, page: CallPage, seconds: float) -> None:
        self._page = page
        self._seconds = seconds
        self._quiet = time.monotonic()

    def mark(self) -> int:
        """Wait until no call runs, and return how many there were."""
        while (mark := self._page.mark()) is None:
            self._check()
            time.sleep(_TICK)
        return mark

    def is_quiet(self, since: int) -> bool:
        """Tell whether no call ran since a mark."""
        if self._page.mark() == since:
            self._quiet = time.monotonic()
            return True
        self._check()
        return False

    def _check(self) -> None:
        if time.monotonic() - self._quiet > self._seconds:
            raise NoQuietError(
                f"The calls of the program left no quiet moment in {self._seconds:.0f} s to "
                "measure the engines beside them."
            )
