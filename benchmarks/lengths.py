"""Functions called with many lengths: how often are engines compared, and how soon is an answer?

    python benchmarks/lengths.py [--lengths 20] [--budget 10] [--only NAME] [--json]

Each function is called with a first length, with the next ones while engines are compared, and with
the rest once the program has settled, in a fresh process with an empty cache. Every answer is
compared with the function's own. Exit 1 if there were more than two comparisons, a later new length
took longer than 50 ms, or an answer was wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

LONGEST_SECONDS, MOST_COMPARISONS = 0.05, 2
# Lengths before the program has settled, the first one included.
EARLY = 5


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def distances(x: Any) -> Any:
    return np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))


def moving_average(x: Any) -> Any:
    total = np.cumsum(x, 0)
    return (total[8:] - total[:-8]) / 8


def layers(x: Any) -> Any:
    w = np.linspace(-1, 1, 64 * 64).reshape(64, 64).astype(np.float32)
    return np.tanh(np.tanh(x @ w) @ w)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    function.__name__: function for function in (softmax, distances, moving_average, layers)
}


class Comparisons(logging.Handler):
    """Counts the comparisons that the log announces."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("Comparing engines")


def measure(name: str, count: int, budget: float) -> dict[str, Any]:
    """Call one function in this process."""
    import fusewire as fw

    function, comparisons = FUNCTIONS[name], Comparisons()
    logging.getLogger("fusewire").addHandler(comparisons)
    logging.getLogger("fusewire").setLevel(logging.INFO)
    program = fw.compile(function, budget_seconds=budget)
    rng, seconds, wrong = np.random.default_rng(0), list[float](), 0
    for number, rows in enumerate(100 + 7 * np.arange(count)):
        x = rng.normal(size=(rows, 64)).astype(np.float32)
        start = time.perf_counter()
        answer = program(x)
        seconds.append(time.perf_counter() - start)
        wrong += not np.allclose(answer, function(x), rtol=1e-3, atol=1e-4)
        if number == EARLY - 1:
            program.wait(20 * budget)
    program.wait(20 * budget)
    late = sorted(seconds[2:])
    row = {
        "function": name,
        "backend": program.why().backend,
        "signatures": program.signatures,
        "first": seconds[0],
        "second": seconds[1],
        "later_median": late[len(late) // 2],
        "later_most": late[-1],
        "comparisons": comparisons.count,
        "wrong": wrong,
    }
    program.close()
    return row


def in_a_process(name: str, count: int, budget: float) -> dict[str, Any]:
    """Call one function in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--here", name, f"--lengths={count}"]
        done = subprocess.run(
            [*command, f"--budget={budget}"],
            env={**os.environ, "FUSEWIRE_CACHE": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def is_met(row: dict[str, Any]) -> bool:
    """Tell whether a function keeps to the bars."""
    is_quick = row["later_most"] <= LONGEST_SECONDS and row["comparisons"] <= MOST_COMPARISONS
    return is_quick and not row["wrong"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, default=20)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--only", choices=FUNCTIONS)
    parser.add_argument("--here", choices=FUNCTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure(args.here, args.lengths, args.budget)))
        return
    rows = []
    for name in [args.only] if args.only else FUNCTIONS:
        rows.append(row := in_a_process(name, args.lengths, args.budget))
        if not args.json:
            times = (row[x] * 1e3 for x in ("first", "second", "later_median", "later_most"))
            shown = " ".join(f"{x:8.1f}" for x in times)
            print(f"{name:16} {row['backend']:12} {row['comparisons']} {shown} ms", flush=True)
    if args.json:
        print(json.dumps(rows, indent=1))
    sys.exit(not all(map(is_met, rows)))


if __name__ == "__main__":
    main()
