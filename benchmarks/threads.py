"""Are answers right when many threads call programs, and does memory stay as it is?

    python benchmarks/threads.py --calls 10000 [--engines xla,webgpu] [--json]

Four threads call one program, engine by engine; then a thread each calls a program on every engine
at once. Every answer is compared with NumPy's. Memory is read after a quarter of the calls, when
pools and caches are full, and at the end. Exit 1 if an answer was wrong or memory grew.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.ir.graph import Array
from fusewire.program.program import Program
from fusewire.system.processes import resident

ENGINES = ("reference", "onnxruntime", "openvino", "xla", "webgpu")
THREADS = 4
# Rows of what goes in: of 1, everything is small and lies in memory that stays bound.
ROWS = {"small": 1, "large": 640}
# So that a matmul is too small for NumPy to share it out among threads, which then spin.
WIDTH = 16
DIFFERENT = 8
TOLERANCE = 1e-4
MOST_GROWTH = 4 << 20


def function(engine: str) -> Callable[[Any], Any]:
    """Make what is compiled: two layers, or, without a matmul, two steps by element."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32) for _ in range(2))
    if engine == "webgpu":
        return lambda x: (np.maximum(x * first[0], second[0]), x + first[1])
    return lambda x: (np.maximum(x @ first, np.float32(0)) @ second, x + first[1])


class Caller:
    """Calls a program again and again with inputs of its own, and keeps what was wrong."""

    def __init__(self, program: Program, made: Callable[[Any], Any], rows: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._program = program
        self._inputs = [rng.normal(size=(rows, WIDTH)).astype(np.float32) for _ in range(DIFFERENT)]
        self._expected = [made(x) for x in self._inputs]
        self._last: list[tuple[Sequence[Array], Sequence[Array]]] = []
        self.problems: list[str] = []

    def call(self, times: int) -> None:
        for turn in range(times):
            x, expected = self._inputs[turn % DIFFERENT], self._expected[turn % DIFFERENT]
            found = self._program(x)
            # What was given stays as it is while others are made.
            self._last = [*self._last[-2:], (found, expected)]
            self._check(turn)

    def _check(self, turn: int) -> None:
        for found, expected in self._last:
            for output, wanted in zip(found, expected, strict=True):
                wrong = float(np.abs(output - wanted).max())
                if not wrong <= TOLERANCE:
                    self.problems.append(f"call {turn} is off by {wrong:.3g}")

    def run(self, calls: int, barrier: threading.Barrier) -> None:
        """Call, stopping after a quarter until memory was read."""
        try:
            self.call(calls // 4)
            barrier.wait(600)
            barrier.wait(600)
            self.call(calls - calls // 4)
        except BaseException as error:
            self.problems.append(str(error))
            barrier.abort()
            raise


def together(callers: Sequence[Caller], calls: int) -> dict[str, Any]:
    """Let callers call, a thread each."""
    barrier = threading.Barrier(len(callers) + 1)
    threads = [threading.Thread(target=c.run, args=(calls, barrier)) for c in callers]
    start, settled = time.perf_counter(), 0
    for thread in threads:
        thread.start()
    try:
        barrier.wait(600)
        gc.collect()
        settled = resident(os.getpid())
        barrier.wait(600)
    except threading.BrokenBarrierError:
        pass
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    gc.collect()
    growth = resident(os.getpid()) - settled
    problems = [problem for caller in callers for problem in caller.problems]
    if growth > MOST_GROWTH:
        problems.append(f"memory grew by {growth} bytes")
    return {
        "calls": calls * len(callers),
        "seconds": seconds,
        "settled_bytes": settled,
        "growth_bytes": growth,
        "problems": problems[:5],
    }


def compiled(engine: str, rows: int) -> tuple[Program, Callable[[Any], Any]]:
    """Compile for one engine, and have it run once."""
    made = function(engine)
    example = np.zeros((rows, WIDTH), np.float32)
    program = fw.compile(made, example, backend=engine, fallback="error", isolate=False)
    program(example)
    return program, made


def one_program(engine: str, size: str, calls: int) -> dict[str, Any]:
    """Let four threads call one program."""
    program, made = compiled(engine, ROWS[size])
    with program:
        callers = [Caller(program, made, ROWS[size], seed) for seed in range(THREADS)]
        return {"what": f"{engine}, {size}"} | together(callers, calls)


def all_engines(engines: Sequence[str], size: str, calls: int) -> dict[str, Any]:
    """Let programs on several engines run at once."""
    callers = [
        Caller(*compiled(engine, ROWS[size]), ROWS[size], seed)
        for seed, engine in enumerate(engines)
    ]
    return {"what": f"{len(engines)} engines at once, {size}"} | together(callers, calls)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="of each thread")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engines = options.engines.split(",")
    rows = [one_program(engine, size, options.calls) for engine in engines for size in ROWS]
    rows += [all_engines(engines[-4:], size, options.calls) for size in ROWS]
    about = f"Python {platform.python_version()}, {os.cpu_count()} cores, {THREADS} threads"
    if options.json:
        print(json.dumps({"about": about, "rows": rows}, indent=1))
    else:
        print(f"{about}\n\n| | calls | seconds | MB | grew by, MB | wrong |\n{'|---' * 6}|")
        for row in rows:
            wrong = "; ".join(row["problems"]) or "none"
            print(
                f"| {row['what']} | {row['calls']:,} | {row['seconds']:.1f} | "
                f"{row['settled_bytes'] / 1e6:.0f} | {row['growth_bytes'] / 1e6:.2f} | {wrong} |"
            )
    return int(any(row["problems"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
