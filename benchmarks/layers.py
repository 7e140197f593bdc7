"""Where the microseconds of a call go: an engine run bare, and each layer of a program around it.

    python benchmarks/layers.py "tiny MLP" [--engine onnxruntime] [--seconds 5]
    python benchmarks/layers.py lac --gap 0.06 --batch 0.01

The row is one of benchmarks/engines.py, and bare is what benchmarks/contestants.py calls. In one
process, in turns of an order that changes, so that what the machine does hits all alike: batches
of some calls, each call timed. Ratios are to the quickest way to call the engine bare, round by
round. Threads of an engine spin after a call: for models that use them, leave a gap before each
batch. What is inside of a program is looked at here and not meant for anyone else.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

import fusewire as fw  # noqa: E402 - the path comes first
from benchmarks import contestants, engines  # noqa: E402
from benchmarks.contestants import Array, Task, aligned  # noqa: E402

Way = Callable[[], Any]
THREADS = 2


def layers(program: Any, inputs: tuple[Array, ...]) -> dict[str, Way]:
    """List what a call of a program goes through, from the outside in."""
    program(*inputs)
    entry, run = program.prepared(inputs)
    ways: dict[str, Way] = {"program": lambda: program(*inputs), "entry": lambda: run(inputs)}
    regions = entry.runner._runners
    if len(regions) == 1 and len(program.plan.steps[0].region.inputs) == len(inputs):
        (loaded,) = regions[0]._made.values()
        compute = loaded.parts[0]
        ways["region"] = lambda: regions[0].run(inputs)
        ways["executable"] = lambda: compute(inputs)
    return ways


def rounds(
    ways: dict[str, Way], seconds: float, batch: float, gap: float
) -> dict[str, list[float]]:
    """Time batches in turns; the median of each."""
    slowest = max(contestants.seconds(way, 20) for way in ways.values())
    count, names, now = max(int(batch / slowest), 1), list(ways), time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    gc.freeze()
    gc.disable()
    end = now() + seconds
    while now() < end:
        random.shuffle(names)
        for name in names:
            time.sleep(gap)
            ways[name]()
            found[name].append(contestants.seconds(ways[name], count))
    return found


def shown(found: dict[str, list[float]]) -> None:
    bare = [name for name in found if name.startswith("bare")]
    best = min(bare, key=lambda name: statistics.median(found[name]))
    print("| | median, us | a tenth are below, us | more, us | ratio |\n|---|---|---|---|---|")
    for name, times in found.items():
        pairs = list(zip(times, found[best], strict=True))
        more = statistics.median(x - y for x, y in pairs) * 1e6
        ratio = statistics.median(x / y for x, y in pairs)
        low, middle = statistics.quantiles(times, n=10)[0] * 1e6, statistics.median(times) * 1e6
        print(f"| {name} | {middle:.2f} | {low:.2f} | {more:.2f} | {ratio:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batch", type=float, default=0.0003, help="seconds")
    parser.add_argument("--gap", type=float, default=0.0, help="seconds before each batch")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    path, given = engines.original(args.row)
    inputs = {name: aligned(array, 64) for name, array in given.items()}
    task = Task(args.engine, args.row, str(path), "", "", THREADS)
    bare = contestants.ENGINES[args.engine](task, inputs)
    ways = {f"bare: {name}": way for name, way in bare.ways.items()}
    program = fw.compile(str(path), backend=args.engine, threads=THREADS, cache=False)
    for _ in range(5):
        program(*inputs.values())
    ways |= layers(program, tuple(inputs.values()))
    for way in ways.values():
        for _ in range(50):
            way()
    shown(rounds(ways, args.seconds, args.batch, args.gap))
    program.close()


if __name__ == "__main__":
    main()
