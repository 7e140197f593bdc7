"""A process at normal priority that ends those of lowest priority as soon as their parent is gone.

What is killed has to run once more to end: it frees its memory, and only then closes the pipes on
which its own children wait. At the lowest priority, on busy cores, that takes seconds. This process
waits at normal priority. It kills all that is below it at once, gives it the priority to end if
that is allowed, and frees its memory in its place. Linux only; imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

from fusewire.process.lifeline import tie, untie
from fusewire.system.processes import descendants

assert sys.platform == "linux", "other kernels neither adopt orphans nor lend priority"

_CHILD_SUBREAPER = 36
# The same number on all architectures.
_PROCESS_MRELEASE = 448
_PATIENCE = 5.0
_PAUSE = 0.002


def supervise(life: int) -> None:
    """Fork: the child returns to do the work, this process watches it and ends with it.

    All processes below this one end when ``life`` is closed at the other end, or with SIGTERM.
    """
    # Orphans come here, so that none is missed.
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: _leave(0))
    own, end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(end)
        os.setpgid(0, 0)
        # The supervisor itself may be killed.
        tie(own, os.getpid())
        if _is_closed(own):
            os._exit(1)
        return
    os.close(own)
    alive = os.pidfd_open(child)
    untie(life)
    poller = select.poll()
    poller.register(life, select.POLLHUP)
    poller.register(alive, select.POLLIN)
    poller.poll()
    ended, status = os.waitpid(child, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status) if ended else 0
    _leave(code if code >= 0 else 128 - code)


def _is_closed(pipe: int) -> bool:
    poller = select.poll()
    poller.register(pipe, select.POLLHUP)
    return bool(poller.poll(0))


def _leave(code: int) -> None:
    """End all processes below this one, and then this one."""
    limit = time.monotonic() + _PATIENCE
    hastened: set[int] = set()
    while (pids := descendants(os.getpid())) and time.monotonic() < limit:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in set(pids) - hastened:
            _hasten(pid)
        hastened.update(pids)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE)
    os._exit(code)


def _hasten(pid: int) -> None:
    """Let a process that was killed end soon, on cores that others keep busy."""
    # Its session competes with others; anybody may give it back the usual share.
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("0")
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        # Needs a privilege: CAP_SYS_NICE, or RLIMIT_NICE.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        alive = os.pidfd_open(pid)
        # Linux 5.15; before, the process frees its memory itself.
        ctypes.CDLL(None).syscall(_PROCESS_MRELEASE, alive, 0)
        os.close(alive)
