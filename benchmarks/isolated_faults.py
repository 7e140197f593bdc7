"""Do calls survive what others do to the engine they share?

    python benchmarks/isolated_faults.py --crashes 1000 --hangs 500 [--seed 0] [--json]

Threads call one program whose engine stays in a child process (``isolate="always"``). The values of
some calls make the engine crash, in several ways, or hang; the others must get right answers,
small and large. Afterwards no process, descriptor or shared memory may be left. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.errors import BackendCrashed, BackendHung, EngineError
from fusewire.ir.graph import Array
from fusewire.process.pool import shared_pool
from fusewire.program.program import Program
from fusewire.system.processes import descendants, resident
from fusewire.testing.chaos import asking_for

CRASHES = ("segv", "abort", "exit")
HANGS = ("hang", "hang_gil", "spin")
THREADS = 8
WIDTH = 32
# Rows of inputs: in the memory of a lane, just outside of it, and megabytes.
ROWS = (1, 7, 600, 20_000)
REFERENCE = "fusewire.testing.chaos:asked_at_value"


class Campaign:
    """Calls a program from several threads, and counts what came back."""

    def __init__(self, program: Program, seed: int) -> None:
        self._program = program
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Array, Array]] = {}
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def plan(self, crashes: int, hangs: int, good: int) -> list[tuple[str, int]]:
        """List the calls in a random order: what each asks for, and its rows."""
        draw = self._random.choice
        asked = [draw(CRASHES) for _ in range(crashes)] + [draw(HANGS) for _ in range(hangs)]
        calls = [(fault, draw(ROWS)) for fault in [*asked, *[""] * good]]
        self._random.shuffle(calls)
        return calls

    def call(self, number: int, fault: str, rows: int) -> None:
        """Make a call, and compare what happens with what must."""
        given = np.full((rows, WIDTH), number % 1000, np.float32)
        given += np.arange(WIDTH, dtype=np.float32)
        if fault:
            given[0, 0] = asking_for(fault)
        expected = given * np.float32(2)
        outcome = self._outcome(given, expected, number)
        kind = "crash" if fault in CRASHES else "hang" if fault else "good"
        meant = {"crash": "BackendCrashed", "hang": "BackendHung", "good": "right"}[kind]
        with self._lock:
            self.counts[f"{kind}: {outcome}"] += 1
            if sum(self.counts.values()) % 500 == 0:
                print(dict(self.counts), file=sys.stderr, flush=True)
            if outcome != meant and len(self.problems) < 20:
                self.problems.append(f"call {number}, {fault or 'good'}, {rows} rows: {outcome}")

    def _outcome(self, given: Array, expected: Array, number: int) -> str:
        try:
            answer: Any = self._program(given)
        except (BackendCrashed, BackendHung) as error:
            return type(error).__name__
        except EngineError as error:
            return f"{type(error).__name__}: {error}"[:300]
        is_right = np.array_equal(answer, expected)
        # Answers that are kept must stay as they are, whatever happens to the child.
        kept = self._kept.get(number % 16)
        if kept is not None and not np.array_equal(*kept):
            return "an earlier answer has changed"
        self._kept[number % 16] = (answer, expected)
        return "right" if is_right else "wrong"


def left() -> dict[str, int]:
    """Count what this process holds."""
    gc.collect()
    return {
        "processes": len(descendants(os.getpid())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "shared memory": Path("/proc/self/maps").read_text().count("memfd:fusewire"),
    }


def run(crashes: int, hangs: int, good: int, seed: int, deadline: float) -> dict[str, Any]:
    """Run the campaign, and report."""
    shared_pool().release(REFERENCE)
    before, start = left(), time.monotonic()
    fw.register(REFERENCE, "chaos")
    spec = fw.Spec(("n", WIDTH), "float32")
    program = fw.compile(
        lambda x: x + x, spec, backend="chaos", isolate="always", deadline=deadline, cache=False
    )
    program(np.ones((1, WIDTH), np.float32))
    resident_before = resident(os.getpid())
    campaign = Campaign(program, seed)
    calls = campaign.plan(crashes, hangs, good)
    with ThreadPoolExecutor(THREADS) as threads:
        for made in [threads.submit(campaign.call, i, *call) for i, call in enumerate(calls)]:
            made.result()
    grown = resident(os.getpid()) - resident_before
    problems = campaign.problems
    counts = dict(sorted(campaign.counts.items()))
    program.close()
    del program, campaign
    fw.unregister("chaos")
    shared_pool().release(REFERENCE)
    after = left()
    if after != before:
        problems.append(f"left behind: {after}, before: {before}")
    seconds = round(time.monotonic() - start, 1)
    return {
        "counts": counts,
        "left": after,
        "before": before,
        "grown_mib": grown >> 20,
        "seconds": seconds,
        "problems": problems,
    }


def main() -> int:
    """Run, print, and say by the exit code whether all was well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=1000)
    parser.add_argument("--hangs", type=int, default=500)
    parser.add_argument("--good", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = run(given.crashes, given.hangs, given.good, given.seed, given.deadline)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {THREADS} threads")
        for outcome, count in found["counts"].items():
            print(f"{count:7d}  {outcome}")
        print(f"left: {found['left']}, before: {found['before']}; {found['seconds']} s")
        print("\n".join(found["problems"]) or "no problems")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
