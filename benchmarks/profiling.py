"""What does a profile cost, off and on, and do the times of its regions add up to the wall time?

    python benchmarks/profiling.py [--calls 100000] [--json]
    python benchmarks/profiling.py --zoo [--models a,b] [--seconds 100] [--json]

A call of a tiny model before a profile, within one, and after it, in turns of 1,000 calls; A/A is
the first against itself. With ``--zoo``: models that are fetched already, on one engine; the share
of the wall time of a call, taken outside, that regions, hand-overs and checks cover.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fusewire as fw

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
ROUND = 1000
# The share of the wall time that may be missing, and the kinds of events that are parts of calls.
MISSING = 0.05
PARTS = ("region", "hand-over", "check")
# Seconds by which the clock of a profile and ours may begin apart.
LATE = 1e-5


def tiny(engine: str) -> tuple[Any, Any]:
    """Compile a model of two small layers."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((16, 32)).astype(np.float32)
    second = rng.standard_normal((32, 4)).astype(np.float32)
    x = np.ones((1, 16), np.float32)
    program = fw.compile(lambda x: np.tanh(x @ first) @ second, x, backend=engine, level=0)
    for _ in range(100):
        program(x)
    return program, x


def timed(program: Any, x: Any, calls: int = ROUND) -> float:
    """Return the microseconds of a call."""
    start = time.perf_counter()
    for _ in range(calls):
        program(x)
    return (time.perf_counter() - start) / calls * 1e6


def costs(engine: str, calls: int) -> dict[str, Any]:
    """Time calls of a program that was never profiled against one that was, and within one."""
    fresh, x = tiny(engine)
    used, _ = tiny(engine)
    with fw.profile():
        timed(used, x)
    rows: dict[str, list[float]] = {"fresh": [], "again": [], "after": [], "on": []}
    for _ in range(max(calls // ROUND, 1)):
        rows["fresh"].append(timed(fresh, x))
        rows["after"].append(timed(used, x))
        rows["again"].append(timed(fresh, x))
    for _ in range(10):
        with fw.profile():
            rows["on"].append(timed(used, x))
    aa = [b / a for a, b in zip(rows["fresh"], rows["again"], strict=True)]
    off = [b / a for a, b in zip(rows["fresh"], rows["after"], strict=True)]
    return {
        "engine": engine,
        "calls": len(aa) * ROUND,
        "off_us": median(rows["fresh"]),
        "aa": spread(aa),
        "after_over_fresh": spread(off),
        "on_us": median(rows["on"]),
    }


def spread(values: list[float]) -> dict[str, float]:
    low, high = np.percentile(values, [10, 90])
    return {"median": float(median(values)), "p10": float(low), "p90": float(high)}


def covered(profile: Any, window: tuple[float, float]) -> float:
    """Return the seconds of a window that parts of calls cover, each second once."""
    total, (until, end_of_window) = 0.0, window
    for event in profile.events:
        if event.kind in PARTS:
            end = min(event.start + event.seconds, end_of_window)
            total += max(end - max(event.start, until), 0.0)
            until = max(until, end)
    return total


def adds_up(name: str, engine: str) -> dict[str, Any]:
    """Profile some calls of a zoo model, and compare with the wall time taken outside."""
    zoo: Any = import_module("zoo")
    arguments = [*zoo.inputs(name).values()]
    program = fw.compile(str(zoo.path(name)), backend=engine, level=0, fallback="allow")
    for _ in range(3):
        program(*arguments)
    start = time.perf_counter()
    program(*arguments)
    plain = time.perf_counter() - start
    count = max(min(int(1.0 / plain), 20), 3)
    windows = []
    with fw.profile() as profile:
        zero = time.perf_counter()
        for _ in range(count):
            start = time.perf_counter()
            program(*arguments)
            windows.append((start - zero, time.perf_counter() - zero))
    # The profile began a little earlier than the first call.
    windows = [(start, end + LATE) for start, end in windows]
    shares = [covered(profile, window) / (window[1] - window[0] - LATE) for window in windows]
    return {
        "model": name,
        "engines": sorted({x.backend for x in profile.events if x.kind == "region"}),
        "calls": count,
        "wall_ms": median(end - start - LATE for start, end in windows) * 1e3,
        "share": median(shares),
        "all": sum(covered(profile, window) for window in windows)
        / sum(end - start - LATE for start, end in windows),
    }


def zoo_rows(models: list[str], engine: str, seconds: float) -> list[dict[str, Any]]:
    zoo: Any = import_module("zoo")
    end, rows = time.monotonic() + seconds, []
    for name in models or sorted(zoo.MODELS):
        if time.monotonic() > end:
            break
        if not zoo.path(name).exists():
            continue
        try:
            rows.append(adds_up(name, engine))
        except fw.FusewireError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("--models", default="")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.zoo:
        models = [name for name in given.models.split(",") if name]
        rows = zoo_rows(models, given.engine, given.seconds)
        missed = [row["model"] for row in rows if abs(1 - row["share"]) > MISSING]
        print(json.dumps(rows, indent=1) if given.json else _table(rows))
        return 1 if missed else 0
    row = costs(given.engine, given.calls)
    print(json.dumps(row, indent=1))
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["| model | engines | calls | median call, ms | covered, median | of all calls |"]
    lines += ["|---" * 6 + "|"]
    lines += [
        f"| {row['model']} | {', '.join(row['engines'])} | {row['calls']} | {row['wall_ms']:.2f} | "
        f"{row['share']:.1%} | {row['all']:.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
