"""Capture what an engine prints, apart from a child's answers; the end of it explains failures."""

from __future__ import annotations

import contextlib
import os

_PIECE = 1 << 16
_PIECES = 16
_KEPT = 16384
_SHOWN = 800
# Lines of an interpreter dump that do not name the place.
_NO_NEWS = (
    "Extension modules:",
    "<frozen ",
    "fusewire/process/",
    "/threading.py",
    "most recent call first",
)


class OutputTail:
    """The end of what was read from a nonblocking descriptor, or of what others read (-1)."""

    def __init__(self, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        self._kept = bytearray()

    def keep(self, piece: bytes) -> None:
        """Add what was read, and forget what is far from the end."""
        self._kept += piece
        del self._kept[:-_KEPT]

    def drain(self) -> bool:
        """Read what is there; returns whether more can come."""
        with contextlib.suppress(BlockingIOError):
            # Not forever: a writer may be as fast as this reader.
            for _ in range(_PIECES):
                if not (piece := os.read(self.descriptor, _PIECE)):
                    return False
                self.keep(piece)
        return True

    def last_words(self) -> str:
        """Return the last lines as the end of a sentence; "" if there are none."""
        lines = (line.strip() for line in self._kept.decode(errors="replace").splitlines())
        told = [x for x in lines if x and not any(mark in x for mark in _NO_NEWS)]
        shown = "".join(c if c.isprintable() else "?" for c in " | ".join(told)[-_SHOWN:])
        return f" Its last output: {shown}" if shown else ""
