"""Progress on standard error: a bar with the time left on a terminal, else a line per engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fusewire.cli.terminal import Terminal
from fusewire.errors import visible

# A full bar would look finished; using up the budget is not the end.
_MOST_SHOWN = 0.97
# Before this share is used, nothing can be said about the time left.
_LEAST_KNOWN = 0.02

Show = Callable[[str, float], None]


@contextmanager
def progress() -> Iterator[Show]:
    """Show what is being done until the block ends."""
    console = Terminal(stderr=True)
    if not console.is_terminal:
        yield _Lines(console).show
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:36}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("reading the model", total=1.0, left="")
        start = time.monotonic()

        def show(what: str, share: float) -> None:
            left = time_left(time.monotonic() - start, share)
            completed = min(share, _MOST_SHOWN)
            shown.update(task, description=visible(what), completed=completed, left=left)

        yield show


def time_left(elapsed: float, share: float) -> str:
    """Say how long it will take, given the share of the budget that is used."""
    if share < _LEAST_KNOWN:
        return ""
    left = elapsed / share * (1 - share)
    return f"about {left:.0f} s left" if left >= 1 else "finishing"


@final
class _Lines:
    """Prints a line when an engine is tried, and one when timing begins."""

    def __init__(self, console: Terminal) -> None:
        self._console = console
        self._start = time.monotonic()
        self._said: set[str] = set()

    def show(self, what: str, share: float) -> None:
        verb, _, name = what.partition(" ")
        if verb == "timing":
            what = "timing all that ran"
        elif verb == "checking":
            what = "checking the answers"
        if what in self._said or (verb == "trying" and not name):
            return
        self._said.add(what)
        elapsed = time.monotonic() - self._start
        left = time_left(elapsed, share)
        said = f"[{elapsed:5.1f} s] {what}{f' ({left})' if left else ''}"
        self._console.print(said, markup=False, highlight=False, soft_wrap=True)
