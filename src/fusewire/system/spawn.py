"""Start a process that ends as a whole, and hand it open pipes.

POSIX systems give it a session of its own, whose processes are killed together, and descriptors by
number. Windows gives it a job object and handles, which the process turns into descriptors again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import final

if sys.platform == "win32":
    import msvcrt

    from fusewire.system.jobs import JobObject

# Signals that engines do not send to themselves, and that we send only to end a process.
_ENDING = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
FROM_OUTSIDE = {getattr(signal, name) for name in _ENDING if hasattr(signal, name)}
# Whether a whole group of processes can be killed at once.
HAS_GROUPS = hasattr(os, "killpg") or sys.platform == "win32"


@final
class Spawned:
    """A process, and what it starts as far as the system keeps them together."""

    def __init__(
        self,
        command: Sequence[str],
        passed: Sequence[int],
        output: int,
        environment: Mapping[str, str],
    ) -> None:
        """Start a command, with the numbers of the ``passed`` descriptors as last arguments.

        OSError if it cannot be started.
        """
        if sys.platform == "win32":
            handles = [msvcrt.get_osfhandle(end) for end in passed]
            for handle in handles:
                os.set_handle_inheritable(handle, True)
            startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": handles})
            self.process = subprocess.Popen(
                [*command, *map(str, handles)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                startupinfo=startup,
                creationflags=subprocess.CREATE_NO_WINDOW,
                env=dict(environment),
            )
            self._job = JobObject(self.process.pid)
        else:
            self.process = subprocess.Popen(
                [*command, *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=passed,
                start_new_session=True,
                env=environment,
            )

    @property
    def pid(self) -> int:
        """The id of the process, and of its group where there are groups."""
        return self.process.pid

    def limit_memory(self, most: int) -> None:
        """Have the system refuse it more memory, should nobody watch; Windows only."""
        if sys.platform == "win32":
            with contextlib.suppress(OSError):
                self._job.limit_memory(most)

    def ask_to_end(self) -> None:
        """Let it say last words, where a signal asks for them."""
        if hasattr(os, "killpg"):
            self._signal_group(signal.SIGTERM)

    def kill(self, others: Sequence[int] = ()) -> None:
        """End it, what it started, and other processes that are known to be its own."""
        if sys.platform == "win32":
            self._job.kill()
        elif hasattr(os, "killpg"):
            self._signal_group(signal.SIGKILL)
            for pid in others:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        else:
            self.process.kill()

    def _signal_group(self, number: signal.Signals) -> None:
        # Not reaped yet, so the id of the group is still valid.
        if sys.platform != "win32" and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Let go of what the system keeps it together by; on Windows, that ends it."""
        if sys.platform == "win32":
            self._job.close()


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none."""
    known = {int(x) for x in signal.Signals}
    return signal.Signals(number).name if number in known else f"signal {number}"


def received(number: str) -> int:
    """Return the descriptor of a pipe that this process was handed at its start."""
    if sys.platform == "win32":
        return msvcrt.open_osfhandle(int(number), 0)
    return int(number)
