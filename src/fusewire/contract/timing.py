"""Whether times are taken in this process: an engine then does nothing behind calls that it could
do before them, and runs them as it will in the long run.
"""

from __future__ import annotations

import threading

_TAKEN = threading.Event()


def take_times() -> None:
    """Say that times are taken here from now on, as whoever compares engines does."""
    _TAKEN.set()


def are_times_taken() -> bool:
    """Tell whether a program that is loaded now may be timed."""
    return _TAKEN.is_set()
