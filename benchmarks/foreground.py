"""What do calls cost while engines are compared behind them, and are answers right during swaps?

    python benchmarks/foreground.py [--pause 0.02] [--swaps 100] [--threads 8] [--json FILE]

A program with an empty cache is called at a steady pace: undisturbed, on the plan that serves
first, and then while the comparer runs. The medians of both are compared. Then threads call a
program without pause while its plan is swapped between the reference and an engine, and every
answer is compared with NumPy's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np


def network(x: Any, w: Any) -> Any:
    """Return something that takes about a millisecond."""
    return np.tanh(x @ w).sum(axis=1)


def calls(program: Any, arrays: Any, pause: float, is_over: Any) -> list[float]:
    """Call at a steady pace, and return the seconds of each call."""
    times: list[float] = []
    while not is_over(len(times)):
        start = time.perf_counter()
        program(*arrays)
        times.append(time.perf_counter() - start)
        time.sleep(pause)
    return times


def foreground(pause: float, limit: float) -> dict[str, Any]:
    """Compare calls while engines are compared with calls before that."""
    import fusewire as fw

    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(200, 300)), rng.normal(size=(300, 300))
    quiet = fw.compile(network, *arrays)
    runner = quiet.entry(arrays).runner.runner  # type: ignore[attr-defined]  # it serves first
    before = calls(lambda *given: runner.call(given), arrays, pause, lambda count: count == 200)
    start = time.perf_counter()

    def is_over(count: int) -> bool:
        return quiet.state == "settled" or time.perf_counter() - start > limit

    during = calls(quiet, arrays, pause, is_over)
    settled = time.perf_counter() - start
    medians = statistics.median(before), statistics.median(during)
    return {
        "undisturbed": medians[0],
        "while comparing": medians[1],
        "ratio": medians[1] / medians[0],
        "calls": len(during),
        "seconds": settled,
        "state": quiet.state,
        "backend": quiet.why().backend,
        "notes": list(quiet.why().notes),
    }


class _NoSearch:
    def begin(self, serving: object, inputs: object) -> None:
        """Search for nothing."""

    def cancel(self) -> None:
        """There is nothing to cancel."""


def swaps(count: int, threads: int) -> dict[str, Any]:
    """Swap plans while threads call, and count answers that are not right."""
    import fusewire as fw
    from fusewire.program.program import Program
    from fusewire.program.serving import ServingRunner

    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(20, 30)), rng.normal(size=(30, 30))
    graph, expected = fw.trace(network, *arrays), network(*arrays)
    made = [fw.compile(graph, *arrays, backend=x) for x in ("reference", "onnxruntime")]
    entries = [program.entry(arrays) for program in made]
    serving = ServingRunner(entries[0].runner, _NoSearch(), arrays)
    first = replace(entries[0], runner=serving, serving=serving)
    program = Program("swapped", lambda given: first, [first], parameters=made[0]._parameters)
    found, is_over = [0, 0], threading.Event()

    def call() -> None:
        while not is_over.is_set():
            is_right = np.allclose(program(*arrays), expected, rtol=1e-6)
            found[0 if is_right else 1] += 1

    workers = [threading.Thread(target=call) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for turn in range(count):
        entry = entries[(turn + 1) % 2]
        following = ServingRunner(entry.runner, _NoSearch(), arrays)
        program._swap(serving, replace(entry, runner=following, serving=following))
        serving = following
        time.sleep(0.01)
    is_over.set()
    for worker in workers:
        worker.join()
    return {"swaps": count, "threads": threads, "right": found[0], "wrong": found[1]}


def main() -> int:
    """Measure, and say whether all answers were right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds to settle in")
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSEWIRE_CACHE"] = folder
        found = {
            "swaps": swaps(args.swaps, args.threads),
            "foreground": foreground(args.pause, args.limit),
        }
    print(json.dumps(found, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))
    return int(found["swaps"]["wrong"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
