"""Do the thread pools of two engines in one process fight, and under which settings do they not?

    python benchmarks/pools.py [--seconds 1.5] [--engines onnxruntime openvino xla torch] [--json]
                               [--write results/pools.md]

Two engines take turns, as the regions of a plan do: one call of the first, one of the second. The
second runs three products of 512x512, the first one of 256x256. How long a call of the second
takes after the first, over how long it takes after itself, is what the threads of the first cost
it; those of ONNX Runtime spin for about 50 ms. The first engine has two threads, awake or asleep
between calls where it has an option for that, or one thread. All of that in turns, each pair of
engines in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.contract.timing import take_times

HERE = Path(__file__).resolve()
PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "xla": "jax", "torch": "torch"}
ASLEEP = "two threads, asleep"
WAYS = ("two threads", ASLEEP, "one thread")
# The option under which threads of an engine sleep between two calls.
OPTIONS = {"onnxruntime": {"spinning": False}}
# Seconds after which no thread of an engine spins.
_QUIET = 0.06
Call = Callable[[], Any]
Row = dict[str, Any]


def products(size: int, count: int) -> tuple[Callable[[Any], Any], Any]:
    """Return a chain of products and its input."""
    draw = np.random.default_rng(0)
    scale = np.float32(1 / np.sqrt(size))
    weights = [draw.normal(size=(size, size)).astype(np.float32) * scale for _ in range(count)]

    def chain(x: Any) -> Any:
        for weight in weights:
            x = np.tanh(x @ weight)
        return x

    return chain, draw.normal(size=(size, size)).astype(np.float32)


def call_of(engine: str, size: int, count: int, way: str) -> Call:
    """Compile a chain for an engine, and return a call of it."""
    function, x = products(size, count)
    options: dict[str, Any] = OPTIONS[engine] if way == ASLEEP else {}
    threads = 1 if way == "one thread" else 2
    program = fw.compile(
        function, x, backend=engine, threads=threads, backend_config=options, fallback="error"
    )
    program(x)
    return lambda: program(x)


def seconds_of(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measured(first: str, second: str, seconds: float) -> dict[str, Row]:
    """Time the second engine after itself, and after the first in each of its ways."""
    take_times()
    other = call_of(second, 512, 3, WAYS[0])
    ways = [way for way in WAYS if way != ASLEEP or first in OPTIONS]
    before = {way: call_of(first, 256, 1, way) for way in ways}
    after: dict[str, list[float]] = {way: [] for way in ("itself", "itself again", *ways)}
    own: dict[str, list[float]] = {way: [] for way in ways}
    end = time.monotonic() + seconds * len(after)
    while time.monotonic() < end:
        for way, samples in after.items():
            # Its own threads stay awake, and what came before has gone quiet.
            time.sleep(_QUIET)
            other()
            if way in before:
                own[way].append(seconds_of(before[way]))
            samples.append(seconds_of(other))
    alone = after["itself"]
    return {
        way: {
            "own": median(own[way]) if way in own else None,
            "second": median(samples),
            "over": median(samples) / median(alone),
            "range": ratios(samples, alone),
            "rounds": len(samples),
        }
        for way, samples in after.items()
        if way != "itself"
    }


def ratios(samples: Sequence[float], alone: Sequence[float]) -> tuple[float, float]:
    """Return the range of the middle half of the ratios, round by round."""
    low, _, high = quantiles([a / b for a, b in zip(samples, alone, strict=True)], n=4)
    return low, high


def run_apart(first: str, second: str, seconds: float) -> dict[str, Row]:
    """Measure a pair in a new process."""
    words = [sys.executable, str(HERE), "--pair", first, second, "--seconds", str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{first}, then {second}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Row] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(pairs: dict[str, dict[str, Row]]) -> str:
    """Write what was found as a table."""
    lines = [
        "| first, then second | the first is run | its call, ms | then the second's, ms "
        "| over the second alone |",
        "|---|---|---:|---:|---|",
    ]
    for pair, ways in pairs.items():
        for way, row in ways.items():
            own = f"{row['own'] * 1e3:.2f}" if row["own"] is not None else ""
            low, high = row["range"]
            over = f"{row['over']:.2f} ({low:.2f} to {high:.2f})"
            shown = "not at all (A/A)" if way == "itself again" else way
            lines.append(f"| {pair} | {shown} | {own} | {row['second'] * 1e3:.2f} | {over} |")
    return "\n".join(lines)


def page(pairs: dict[str, dict[str, Row]], engines: Sequence[str]) -> str:
    """Write the page of results."""
    versions = ", ".join(f"{x} {version(PACKAGES[x])}" for x in engines)
    return (
        "# Thread pools of two engines in one process\n\n"
        f"`python benchmarks/pools.py`, {date.today()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}, {versions}, 2 threads each.\n"
        "A call of the second engine, three products of 512x512, right after one of the first, a "
        "product of 256x256;\nmedians, with the middle half of the ratios, round by round. Threads "
        "are asleep between calls where an\nengine has an option for that. Its own call comes "
        "right after one of the second, and pays for that, too.\n\n"
        f"{table(pairs)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="for each way of a pair")
    parser.add_argument("--engines", nargs="+", default=list(PACKAGES), choices=PACKAGES)
    parser.add_argument("--pair", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    if args.pair:
        first, second = args.pair
        print(json.dumps(measured(first, second, args.seconds)))
        return
    pairs = {
        f"{first}, {second}": run_apart(first, second, args.seconds)
        for first in args.engines
        for second in args.engines
        if first != second
    }
    print(json.dumps(pairs) if args.json else table(pairs))
    if args.write:
        args.write.write_text(page(pairs, args.engines))


if __name__ == "__main__":
    main()
