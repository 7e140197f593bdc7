"""Do many processes that want the same entries make each once, and never wait for ever?

    python benchmarks/store_processes.py --processes 1000
    python benchmarks/store_processes.py --processes 1000 --killed 0.1

All start at once on one empty cache, and each asks for every one of five keys (`Store.once`), in an
order of its own. Making an entry takes 0.2 s and is noted. With --killed a share of them is killed
(SIGKILL) at random times, every second one of these while it makes an entry. Nobody can finish what
a killed one was making, so an entry may be made once more for each of these. Exit 1 if an entry was
wrong or torn, made too often, or somebody was not done in time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.forked import Forked, Row, fork, report
from fusewire.store.disk import Store
from fusewire.store.key import Key

MAKING = 0.2
PATIENCE = 300.0


def _payload(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def _ask(folder: Path, expected: list[bytes], gate: int, fd: int) -> None:
    """Wait until all are there, then ask for every key; say what was wrong."""
    os.read(gate, 1)
    store, order = Store(folder / "cache"), list(range(len(expected)))
    random.Random(os.getpid()).shuffle(order)
    for number in order:

        def make(number: int = number) -> bytes:
            note = os.open(folder / f"made{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(note, f"{os.getpid()}\n".encode())
            os.close(note)
            time.sleep(MAKING)
            return expected[number]

        if store.once(Key.of("artifact", number=number), make) != expected[number]:
            os.write(fd, f"key {number} was wrong\n".encode())
    os.write(fd, b"done")


def _kill(children: list[Forked], share: float, folder: Path, draw: random.Random) -> set[int]:
    """Kill some, spread over a few times of making: every second one while it makes an entry."""
    alive, count = {child.pid for child in children}, round(share * len(children))
    killed: set[int] = set()
    for number in range(count):
        time.sleep(draw.uniform(0, 10 * MAKING / count))
        last = [path.read_text().split()[-1:] for path in folder.glob("made*")]
        makers = sorted({int(pid) for (pid,) in filter(None, last)} - killed)
        pid = draw.choice(makers if makers and number % 2 else sorted(alive - killed))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    return killed


def measure(given: argparse.Namespace) -> Row:
    """Start processes and collect what they say."""
    draw = random.Random(given.seed)
    # A pipe to each of them.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    expected = [_payload(number, given.size) for number in range(given.keys)]
    folder = Path(tempfile.mkdtemp(prefix="store-processes-"))
    (folder / "cache").mkdir(mode=0o700)
    gate, opener = os.pipe()
    children = [
        fork(lambda fd: _enter(opener, folder, expected, gate, fd)) for _ in range(given.processes)
    ]
    start = time.monotonic()
    os.close(opener)
    killed = _kill(children, given.killed, folder, draw)
    problems, died = [], set()
    for child in children:
        said, status = child.read(max(PATIENCE - (time.monotonic() - start), 0.1))
        if os.WIFSIGNALED(status) and child.pid in killed and said != b"done":
            died.add(child.pid)
        elif said != b"done":
            problems.append(f"a process said {said.decode()!r} and ended with {status}")
    seconds = time.monotonic() - start
    makes: Counter[str] = Counter()
    for path in sorted(folder.glob("made*")):
        makers = [int(line) for line in path.read_text().split()]
        makes[path.name] = len(makers)
        if len(makers) > 1 + len(died & set(makers)):
            problems.append(f"{path.name}: {len(makers)} times")
    checked = Store(folder / "cache").verify()
    problems += list(checked.bad)
    left = [path.name for path in (folder / "cache").glob(".part-*")]
    locks = len(list((folder / "cache").glob("*.lock")))
    shutil.rmtree(folder)
    return {
        "processes": given.processes,
        "keys": given.keys,
        "killed": len(died),
        "makes": dict(makes),
        "entries": checked.good,
        "left": len(left),
        "locks_left": locks,
        "all_done_seconds": round(seconds, 2),
        "problems": (problems + left)[:10],
    }


def _enter(opener: int, folder: Path, expected: list[bytes], gate: int, fd: int) -> None:
    # The gate opens when nobody holds its other end any more.
    os.close(opener)
    _ask(folder, expected, gate, fd)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--killed", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    report(measure, parser)
