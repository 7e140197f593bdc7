"""How long do processes outlive the one that compares engines behind a program?

    python benchmarks/leftover.py [--count 40] [--seed 0] [--load 2] [--most 0.2] [--json]

Processes compile a function, call it, and end at a moment drawn at random, while engines are
compared: they return, call os._exit, or get SIGTERM, SIGINT or SIGKILL. Measured is the time from
the end of each to the end of the last process that it started, directly or not. ``--load`` keeps so
many cores busy, in the same session. Exit 1 if a process was left for more than ``--most`` seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.system.processes import descendants

WAYS = ("return", "os._exit", "SIGTERM", "SIGINT", "SIGKILL")
# A program ends at most so many seconds after its first answer.
MOMENTS = 6.0
_PATIENCE = 120.0
_CHILD_SUBREAPER = 36

PROGRAM = """
import os, signal, sys
import numpy as np
import fusewire as fw

# Shells have what they start in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def waves(x, y):
    return np.tanh(x @ y) + np.exp(-x).sum()

x = np.linspace(-1, 1, 256 * 256, dtype=np.float32).reshape(256, 256)
program = fw.compile(waves, cache=False, budget_seconds=6.0)
program(x, x)
print("answered", flush=True)
sys.stdin.read()
if sys.argv[1] == "os._exit":
    os._exit(0)
"""


def is_running(pid: int) -> bool:
    """Tell whether a process is there, and not only its entry in the table."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return words[0] not in "ZX"


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[list[int]]:
    """Keep cores busy; yields the ids of the processes that do."""
    command = [sys.executable, "-c", "while True: pass"]
    loads = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield [load.pid for load in loads]
    finally:
        for load in loads:
            load.kill()
            load.wait()


def left(others: Sequence[int]) -> list[int]:
    """List what runs below this process, apart from others; orphans are here, too."""
    return [x for x in descendants(os.getpid()) if x not in others and is_running(x)]


def run_once(way: str, seconds: float, others: Sequence[int]) -> tuple[int, float]:
    """End a program in one way; returns how many processes it had, and for how long they stayed."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # No other comparer on this machine should make this one wait.
            env={**os.environ, "XDG_RUNTIME_DIR": folder},
        )
        assert process.stdout is not None
        with process.stdout as said:
            said.readline()
            time.sleep(seconds)
            before = len(left(others)) - 1
            if way.startswith("SIG"):
                process.send_signal(signal.Signals[way])
            else:
                assert process.stdin is not None
                process.stdin.close()
            process.wait()
        end = time.monotonic()
        while left(others) and time.monotonic() < end + _PATIENCE:
            time.sleep(0.001)
        stayed = time.monotonic() - end
    for pid in left(others):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _reap(others)
    return before, stayed


def _reap(others: Sequence[int]) -> None:
    """Take note of orphans that have ended."""
    for pid in descendants(os.getpid()):
        if pid not in others:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def measure(count: int, seed: int = 0, load: int = 0) -> dict[str, Any]:
    """End so many programs, and say how long something stayed."""
    # Orphans become children of this process, so that it can see them.
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = []
    with busy_cores(load) as loads:
        for number in range(count):
            way, seconds = WAYS[number % len(WAYS)], draw.uniform(0.0, MOMENTS)
            before, stayed = run_once(way, seconds, loads)
            rows.append({"way": way, "after": round(seconds, 2), "processes": before})
            rows[-1]["stayed"] = round(stayed, 4)
    times = [row["stayed"] for row in rows]
    return {
        "programs": count,
        "busy cores": load,
        "processes": sum(row["processes"] for row in rows),
        "median": statistics.median(times),
        "longest": max(times),
        "by way": {w: max(r["stayed"] for r in rows if r["way"] == w) for w in WAYS[:count]},
        "rows": rows,
        "versions": f"Python {platform.python_version()}, NumPy {np.__version__}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", type=int, default=0, help="cores to keep busy")
    parser.add_argument("--most", type=float, default=0.2, help="seconds that are allowed")
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args()
    found = measure(args.count, args.seed, args.load)
    lines = [f"{name}: {value}" for name, value in found.items() if name != "rows"]
    print(json.dumps(found, indent=1) if args.as_json else "\n".join(lines))
    return 1 if found["longest"] > args.most else 0


if __name__ == "__main__":
    sys.exit(main())
