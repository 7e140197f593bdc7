"""The current line of the user's code, and errors that show it."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fusewire.errors
from fusewire.errors import TraceError

_OURS = (
    *(str(Path(file).parent) + "/" for file in (fusewire.errors.__file__, str(np.__file__))),
    "<frozen ",
)


@dataclass(frozen=True)
class Location:
    """A line of the user's code."""

    file: str
    line: int

    @property
    def short(self) -> str:
        """The name of the file and the line, as nodes carry it."""
        return f"{os.path.basename(self.file)}:{self.line}"  # noqa: PTH119  # once for every node

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()


def here() -> Location | None:
    """Return the innermost line that is neither ours nor NumPy's."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_OURS):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


def refusal(sentence: str) -> TraceError:
    """Make the error for the current line: where it is, its code, and what to do."""
    found = here()
    if found is None:
        return TraceError(sentence)
    shown = f": `{found.text}`" if found.text else ""
    return TraceError(f"{found.file}:{found.line}{shown}\n  {sentence}")
