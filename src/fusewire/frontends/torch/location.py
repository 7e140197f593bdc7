"""The line of the user's module that a node comes from, and refusals that show it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fusewire.errors import TraceError

_FRAME = re.compile(
    r'^ *File "(?P<file>.+)", line (?P<line>\d+), in .*(?:\n(?! *File ") *(?P<text>.*))?',
    re.MULTILINE,
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OURS = f"{os.sep}fusewire{os.sep}frontends{os.sep}torch{os.sep}"


@dataclass(frozen=True)
class ModuleLine:
    """A line of Python."""

    file: str
    line: int
    text: str

    @property
    def short(self) -> str:
        """The name of the file and the line, as nodes carry it."""
        return f"{os.path.basename(self.file)}:{self.line}"  # noqa: PTH119  # once for every node


def line_of(node: Any) -> ModuleLine | None:
    """Find the innermost line outside PyTorch; one outside installed packages if there is one."""
    lines = [line for line in _lines(node.meta.get("stack_trace") or "") if not _is_torch(line)]
    own = [line for line in lines if not any(part in line.file for part in _PACKAGES)]
    return next(iter(reversed(own or lines)), None)


def _lines(trace: str) -> Iterator[ModuleLine]:
    for found in _FRAME.finditer(trace):
        text = (found["text"] or "").strip()
        yield ModuleLine(found["file"], int(found["line"]), text)


def _is_torch(line: ModuleLine) -> bool:
    return f"{os.sep}torch{os.sep}" in line.file and (
        any(part in line.file for part in _PACKAGES) or _OURS in line.file
    )


def refusal(sentence: str, node: Any | None = None) -> TraceError:
    """Make the error for a node: its line, the code there, and what to do."""
    line = None if node is None else line_of(node)
    if line is None:
        return TraceError(sentence)
    shown = f": `{line.text}`" if line.text else ""
    return TraceError(f"{line.file}:{line.line}{shown}\n  {sentence}")
