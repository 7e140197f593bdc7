"""The line of the user's module that a node comes from, and refusals that show it."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fusewire.errors import TraceError

_FRAME = re.compile(
    r'^ *File "(?P<file>.+)", line (?P<line>\d+), in .*(?:\n(?! *File ") *(?P<text>.*))?',
    re.MULTILINE,
)
_LIBRARY = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 # a prefix of strings
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep  # noqa: PTH120 # a prefix of strings


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
    return _innermost(_lines(node.meta.get("stack_trace") or ""))


def raised_at(error: BaseException | None) -> ModuleLine | None:
    """Find the line of the user's code that raised an error."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else ()
    return _innermost(ModuleLine(f.filename, f.lineno or 0, f.line or "") for f in frames)


def _innermost(found: Iterable[ModuleLine]) -> ModuleLine | None:
    lines = [line for line in found if not _is_torch(line)]
    own = [line for line in lines if not _is_installed(line)]
    return next(iter(reversed(own or lines)), None)


def _lines(trace: str) -> Iterator[ModuleLine]:
    for found in _FRAME.finditer(trace):
        text = (found["text"] or "").strip()
        yield ModuleLine(found["file"], int(found["line"]), text)


def _is_torch(line: ModuleLine) -> bool:
    """Tell whether a line is PyTorch's, ours, or the standard library's."""
    if line.file.startswith((_OURS, _LIBRARY, "<")) and not _is_installed(line):
        return True
    return f"{os.sep}torch{os.sep}" in line.file and _is_installed(line)


def _is_installed(line: ModuleLine) -> bool:
    return any(part in line.file for part in _PACKAGES)


def located(sentence: str, line: ModuleLine | None) -> TraceError:
    """Make the error that shows a line, if there is one."""
    if line is None:
        return TraceError(sentence)
    shown = f": `{line.text}`" if line.text else ""
    return TraceError(f"{line.file}:{line.line}{shown}\n  {sentence}")


def refusal(sentence: str, node: Any | None = None) -> TraceError:
    """Make the error for a node: its line or module, the code there, and what to do."""
    line = None if node is None else line_of(node)
    if line is not None:
        return located(sentence, line)
    inside = None if node is None else _module_of(node)
    return TraceError(sentence if inside is None else f"In {inside}:\n  {sentence}")


def _module_of(node: Any) -> str | None:
    """Name the innermost module that a node is in; the first is what we have put around it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    for path, kind in reversed(stack[1:]):
        name = kind if isinstance(kind, str) else kind.__name__
        own = path.removeprefix("module").removeprefix(".")
        return f"{name.rpartition('.')[2]} {own!r}" if own else name.rpartition(".")[2]
    return None
