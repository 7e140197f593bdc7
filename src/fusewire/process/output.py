"""What an engine prints: never in the way of what a child says, and its end kept for reasons."""

from __future__ import annotations

import contextlib
import os

_PIECE = 1 << 16
_PIECES = 16
_KEPT = 16384
_SHOWN = 800
# Lines that a dump of the interpreter has beside the place that matters.
_NO_NEWS = ("Extension modules:", "<frozen ", "fusewire/process/", "most recent call first")


class OutputTail:
    """The end of what comes out of a descriptor that does not block."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._kept = bytearray()

    def drain(self) -> bool:
        """Read what is there; tell whether more can come."""
        with contextlib.suppress(BlockingIOError):
            # Not for ever: someone may write as fast as this reads.
            for _ in range(_PIECES):
                if not (piece := os.read(self.descriptor, _PIECE)):
                    return False
                self._kept += piece
                del self._kept[:-_KEPT]
        return True

    def last_words(self) -> str:
        """Show the last lines as the end of a sentence; nothing if there are none."""
        lines = (line.strip() for line in self._kept.decode(errors="replace").splitlines())
        told = [x for x in lines if x and not any(mark in x for mark in _NO_NEWS)]
        shown = "".join(c if c.isprintable() else "?" for c in " | ".join(told)[-_SHOWN:])
        return f" Its last words: {shown}" if shown else ""
