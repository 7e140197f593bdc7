"""Are answers right whatever the disk does?

    python benchmarks/store_faults.py
    python benchmarks/store_faults.py --strace --step 3

A child uses a cache in every way there is while the k-th call to the disk fails, for every k and
every error: that call alone, or it and all that come after; "SIGKILL" ends the process there. What
is read must be right or a miss, nothing may be raised, and at most one warning is given. Then
another process must find no torn entry, sweep what is left, and use the cache as if nothing had
been.

Calls are made to fail where all of them are, in `fusewire.store.files`; with --strace by the
kernel's own interface, once a child waits, so that it knows nothing of it. Exit 1 if one is not
withstood.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.forked import QUICK, Row, fork, report
from fusewire.store import files
from fusewire.store.disk import Store
from fusewire.store.key import Key
from fusewire.system import locks

ERRORS = ("ENOSPC", "EIO", "EROFS", "EMFILE", "EACCES", "EDQUOT", "ENOLCK", "SIGKILL")
CALLS = ("open", "close", "write", "fsync", "replace", "link", "unlink", "utime", "preadv", "fstat",
         "stat", "scandir", "flock")  # fmt: skip
SYSCALLS = ("mkdir", "openat", "close", "write", "fsync", "renameat", "linkat", "unlinkat",
            "utimensat", "preadv", "newfstatat", "getdents64", "flock")  # fmt: skip
PAYLOADS = {
    Key.of("artifact", name="old"): b"old" * 1000,
    Key.of("artifact", name="new"): b"new" * 100_000,
    Key.of("measurement", name="row"): b"row" * 10,
    Key.of("plan", name="made"): b"made" * 10,
}
OLD, NEW, ROW, MADE = PAYLOADS


class Faulty:
    """A module whose calls to the disk fail from the k-th on, or that one alone."""

    def __init__(self, real: Any, shared: Counter[str], k: int, error: str, stays: bool) -> None:
        self._real, self._shared, self._k, self._error = real, shared, k, error
        self._stays = stays

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return self._failing(found, name) if name in CALLS else found

    def _failing(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def do(*given: Any, **named: Any) -> Any:
            self._shared["calls"] += 1
            at = self._shared["calls"]
            if at == self._k or (self._stays and 0 < self._k < at):
                self._shared[name] += 1
                if self._error == "SIGKILL":
                    os.kill(os.getpid(), signal.SIGKILL)
                if name == "close":
                    # Its failing closes all the same.
                    call(*given, **named)
                code = getattr(errno, self._error)
                raise OSError(code, os.strerror(code))
            return call(*given, **named)

        return do


def use(folder: Path) -> list[str]:
    """Use a cache in every way, and say what was not right."""
    problems = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store(folder, limit=2**20)
        for key in (OLD, NEW, ROW, NEW):
            store.put(key, PAYLOADS[key])
        for key, expected in PAYLOADS.items():
            if store.get(key) not in (None, expected):
                problems.append(f"{key.fields} was read wrong")
        if store.once(MADE, lambda: PAYLOADS[MADE]) != PAYLOADS[MADE]:
            problems.append("what was made is wrong")
        list(store.entries())
        store.why_missed(Key.of("plan", name="none"))
        store.drop(ROW)
        store.prune(400_000)
        store.verify()
        store.close()
    if len(caught) > 1:
        problems.append(f"{len(caught)} warnings: {[str(one.message) for one in caught]}")
    return problems


def _faulty(folder: Path, k: int, error: str, stays: bool, fd: int) -> None:
    shared: Counter[str] = Counter()
    for module, name, real in ((files, "os", os), (locks, "fcntl", fcntl)):
        vars(module)[name] = Faulty(real, shared, k, error, stays)
    problems = use(folder)
    # What cannot be removed is left to others.
    if not shared["unlink"]:
        problems += [f"{path.name} stays" for path in folder.glob(".part-*")]
    os.write(fd, "; ".join([*problems, f"calls {shared['calls']}"]).encode())


def after(folder: Path) -> list[str]:
    """Use the cache again, as another process, and say what was left behind."""
    warnings.simplefilter("error")
    store = Store(folder, limit=2**20)
    problems = [f"torn: {said}" for said in store.verify().bad]
    problems += [f"{path.name} stays" for path in folder.glob(".part-*")]
    for key, expected in PAYLOADS.items():
        if store.get(key) not in (None, expected):
            problems.append(f"{key.fields} is wrong afterwards")
        if not store.put(key, expected) or store.get(key) != expected:
            problems.append(f"{key.fields} cannot be kept afterwards")
    return problems


def _seam(parent: Path, k: int, error: str, stays: bool) -> tuple[list[str], int]:
    """Let one call fail; give problems, and how many calls there were."""
    folder = parent / "cache"
    Store(folder).put(OLD, PAYLOADS[OLD])
    said, status = fork(lambda fd: _faulty(folder, k, error, stays, fd)).read()
    is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    *problems, last = said.decode().split("; ")
    if not last.startswith("calls ") and not (is_killed and error == "SIGKILL"):
        problems.append(last or f"it ended with {status}")
    problems += after(folder)
    shutil.rmtree(folder)
    return problems, int(last.removeprefix("calls ")) if last.startswith("calls ") else 0


def _strace(parent: Path, k: int, error: str, call: str) -> tuple[list[str], int]:
    """Let the k-th of one kind of call fail by strace; give problems, and 1 if it was reached."""
    folder, log = parent / "cache", parent / "log"
    Store(folder).put(OLD, PAYLOADS[OLD])
    fault = "signal=KILL" if error == "SIGKILL" else f"error={error}"
    child = fork(lambda fd: _wait_and_use(folder, fd))
    os.read(child.fd, 1)
    command = [
        "strace",
        "-q",
        "-p",
        str(child.pid),
        "-o",
        str(log),
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:{fault}:when={k}",
    ]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while "TracerPid:\t0" in Path(f"/proc/{child.pid}/status").read_text():
        if tracer.poll() is not None:
            raise SystemExit("strace cannot attach to a process here; run it without --strace")
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGUSR1)
    said, status = child.read()
    tracer.wait()
    problems = [] if said.endswith(b"done") or error == "SIGKILL" else [f"{said!r}, {status}"]
    problems += [part for part in said.decode().removesuffix("done").split("; ") if part]
    is_reached = "INJECTED" in log.read_text() or os.WIFSIGNALED(status)
    problems += after(folder)
    shutil.rmtree(folder)
    return problems, int(is_reached)


def _wait_and_use(folder: Path, fd: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.write(fd, b"!")
    signal.sigwait({signal.SIGUSR1})
    problems = use(folder)
    # Written again and again, in case that this is the call that fails.
    for _ in range(3):
        try:
            os.write(fd, "; ".join([*problems, "done"]).encode())
            break
        except OSError:
            continue


def measure(given: argparse.Namespace) -> Row:
    """Let every call fail."""
    parent = Path(tempfile.mkdtemp(prefix="store-faults-", dir=QUICK))
    calls = _seam(parent, 0, "EIO", False)[1]
    problems, count, reached = [], 0, 0
    if given.strace:
        for error in ERRORS:
            for call in SYSCALLS:
                for k in range(1, given.most + 1, given.step):
                    found, is_reached = _strace(parent, k, error, call)
                    problems += [f"{error} at {call} {k}: {problem}" for problem in found]
                    count, reached = count + 1, reached + is_reached
                    if not is_reached:
                        break
    else:
        for error in ERRORS:
            for stays in (False, True) if error != "SIGKILL" else (False,):
                for k in range(1 + given.first, calls + 1, given.step):
                    found, _ = _seam(parent, k, error, stays)
                    problems += [f"{error} at {k}, stays {stays}: {problem}" for problem in found]
                    count, reached = count + 1, reached + 1
    shutil.rmtree(parent)
    return {
        "by": "strace" if given.strace else "fusewire.store.files",
        "calls": calls,
        "errors": len(ERRORS),
        "cases": count,
        "reached": reached,
        "problems": problems[:20],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--step", type=int, default=1, help="every which call")
    parser.add_argument("--first", type=int, default=0, help="of each step, which one")
    parser.add_argument("--strace", action="store_true", help="let the kernel do it")
    parser.add_argument("--most", type=int, default=200, help="with --strace: the last call")
    report(measure, parser)
