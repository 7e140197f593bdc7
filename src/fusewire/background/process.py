"""The comparer, as its parent sees it: one process of lowest priority that compares engines.

It runs code of ours, in the session of its parent: the scheduler compares priorities within a
session. A supervisor at normal priority is between it and its parent: it ends with its parent,
however that ends, and its own children end with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, final

from fusewire.errors import IsolationError
from fusewire.process.confinement import inherited
from fusewire.process.forks import without_forks
from fusewire.process.frames import Frame, Incoming, Outgoing
from fusewire.process.lifeline import HAS_LIFELINES, tie
from fusewire.process.pipes import open_pipe

CAN_COMPARE = hasattr(os, "killpg") and bool(sys.executable)
# The parent trusts a process of its own.
_ANY_SIZE = 1 << 62
_SHOWN = 800
# Its supervisor waits for others for a few seconds.
_PATIENCE = 10.0
# How much of the cores it takes: what nobody else wants.
PRIORITY = "idle"


@final
class ComparerProcess:
    """Answers one question."""

    def __init__(self, page: int, budget: float) -> None:
        """Start it; ``page`` is the descriptor of the page in which calls are counted.

        ``budget`` is how long its comparison should take, in seconds.
        """
        self._lock = threading.Lock()
        self._ours = contextlib.ExitStack()
        self._output = self._ours.enter_context(_temporary_file())
        with contextlib.ExitStack() as theirs:
            requests, self._requests = open_pipe(theirs, self._ours)
            self._replies, replies = open_pipe(self._ours, theirs)
            life, _ = open_pipe(theirs, self._ours)
            passed = (requests, replies, life, page)
            path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
            command = [sys.executable, "-P", "-m", "fusewire.session.comparer"]
            try:
                self._process = subprocess.Popen(
                    [*command, PRIORITY, str(budget), *map(str, passed)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=passed,
                    process_group=0,
                    env={**inherited(), "PYTHONPATH": path},
                )
            except OSError as error:
                self._ours.close()
                raise IsolationError(f"Cannot start a process: {error}.") from error
            if HAS_LIFELINES:
                tie(life, self.pid)

    @property
    def pid(self) -> int:
        """The id of the process, and of its group."""
        return self._process.pid

    def ask(self, frame: Frame, progress: Callable[[str, float], None]) -> Frame:
        """Send a job and wait for its result; IsolationError if there is none."""
        incoming = Incoming(self._replies, _ANY_SIZE)
        try:
            Outgoing(self._requests, frame).write()
            while True:
                reply = incoming.read()
                if reply is None:
                    continue
                if "progress" not in reply.header:
                    return reply
                progress(reply.header["progress"], reply.header["share"])
        except (EOFError, BrokenPipeError):
            code = self._process.wait()
            raise IsolationError(
                f"The process that compares engines ended early, with code {code}."
                f"{self._last_words()}"
            ) from None

    def _last_words(self) -> str:
        self._output.seek(0)
        shown = self._output.read().decode(errors="replace").strip()[-_SHOWN:]
        return f" Its last output: {shown}" if shown else ""

    def interrupt(self) -> None:
        """Kill it from any thread; the thread that waits for it does the rest."""
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform != "win32" and self._process.returncode is None:
                # Its supervisor ends the others first.
                os.killpg(self.pid, signal.SIGTERM)

    def end(self) -> None:
        """Kill it, and close what is shared with it."""
        self.interrupt()
        with self._lock:
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._ours.close()

    def forget(self) -> None:
        """Close the descriptors in a forked process: the comparer belongs to the parent."""
        self._ours.close()
        # Nobody waits for a process of the parent.
        self._process.returncode = 0


def _temporary_file() -> IO[bytes]:
    # The first file of a process is made under a lock, which a forked one would wait for.
    with without_forks():
        return tempfile.TemporaryFile()
