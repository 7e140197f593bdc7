"""Kernel times of ONNX Runtime, from its own profiler.

A session measures only if it was made to (1.31.1; runs can be told to in C alone), and says what it
measured when it ends. So the first profiled run opens a second session of the same model, which
profiled runs use, and which ends with the profile.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from fusewire.contract.backend import Executable, Held, Into
from fusewire.contract.profiling import KernelTime, Profiled

# How the engine ends the names of events that are runs of kernels.
_KERNEL = "_kernel_time"
# Nanoseconds by which two readings of one clock may differ.
_SAME_CLOCK = 60 * 10**9


@final
class SessionProfiler:
    """A second session with the engine's profiler on, while a profile wants it."""

    def __init__(self, open_profiled: Callable[[str], tuple[Executable, Any]]) -> None:
        """``open_profiled`` takes the prefix of the file that is written; gives a session, too."""
        self._open = open_profiled
        self._lock = threading.Lock()
        self._opened: tuple[Executable, Any, str, int] | None = None

    def begin(self) -> Executable:
        """Open the second session, unless it is open."""
        with self._lock:
            if self._opened is None:
                # Every start imports this module, and few profile.
                import tempfile

                folder = tempfile.mkdtemp(prefix="fusewire-profile-")
                executable, session = self._open(str(Path(folder, "run")))
                self._opened = executable, session, folder, _started(session)
            return self._opened[0]

    def end(self) -> list[KernelTime]:
        """End the second session, and read what it measured."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is None:
            return []
        import shutil

        _, session, folder, start = opened
        try:
            rows = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        kernels = [row for row in rows if row.get("name", "").endswith(_KERNEL)]
        return [
            KernelTime(_name(row), start * 1e-9 + row["ts"] * 1e-6, row["dur"] * 1e-6)
            for row in kernels
        ]


def _name(row: dict[str, Any]) -> str:
    op, name = row.get("args", {}).get("op_name", ""), row["name"].removesuffix(_KERNEL)
    return f"{op} {name}" if op and op != name else str(name)


def _started(session: Any) -> int:
    """Return when a session began to measure, in nanoseconds of ``time.perf_counter``.

    Its clock is the system's on Linux, and may be another elsewhere.
    """
    started, now = int(session.get_profiling_start_time_ns()), time.perf_counter_ns()
    since_epoch = time.time_ns() - started
    return now - since_epoch if abs(since_epoch) < _SAME_CLOCK else started


class ProfiledSession(Profiled):
    """A session that can be opened a second time, with the engine's profiler on."""

    profiler: SessionProfiler | None = None

    def begin_profile(self) -> None:
        """Open the second session."""
        if self.profiler is not None:
            self.profiler.begin()

    def run_profiled(
        self, inputs: Sequence[Held], into: Into = ()
    ) -> tuple[list[Held], Sequence[KernelTime]]:
        """Run the second session; what it measured is known at the end."""
        assert self.profiler is not None, "every session that is loaded has one"
        return self.profiler.begin().run(inputs, into), ()

    def end_profile(self) -> Sequence[KernelTime]:
        """End the second session."""
        return [] if self.profiler is None else self.profiler.end()
