"""What does it cost that an engine crashes or hangs, and what is left behind?

    python benchmarks/faults.py --crashes 200 --hangs 100 [--json]

One parent, real faults of every kind in child processes. Reported: survival, the time from a
fault to its refusal, the time from a deadline to the end of a hang, what a child costs when
nothing goes wrong, and all that leaks: processes, descriptors, threads, memory. Exit 1 if a fault
was not a refusal of its kind, if a hang lived 250 ms beyond its deadline, or if anything leaked.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from fusewire import ops
from fusewire.contract.backend import Config, Device, Refusal
from fusewire.dtypes import float32
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.process.isolate import Contact, first_contact, probe, rerun
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool
from fusewire.system.processes import resident

CHAOS = "fusewire.testing.chaos:"
DEVICE = Device("cpu", "chaos")
INPUT = np.ones((8, 8), np.float32)
# The code that the refusal must have.
CRASHES = {
    "segv": "crashed",
    "abort": "crashed",
    "exit": "crashed",
    "raise": "raised",
    "garbage": "garbage",
    "scribble": "garbage",
}
CRASH_PHASES = ("import", "compile", "load", "run")
HANGS = ("hang", "hang_gil", "spin", "stop", "stubborn", "grandchild", "runaway")
PATIENT = ChildLimits(60.0, 2 << 30)
DEADLINE = 0.3
MOST_LATENCY = 0.25
MOST_GROWTH = 16 << 20


def region() -> Graph:
    x = Value(TensorType(float32, INPUT.shape), "x")
    return Graph([x], [ops.add(ops.matmul(x, x), 1.0)], output_names=["y"])


def contact(pool: ChildPool, name: str, limits: ChildLimits = PATIENT) -> Contact | Refusal:
    """Make contact with a backend that has a fault."""
    return first_contact(CHAOS + name, region(), DEVICE, Config(), [INPUT], limits, pool=pool)


def crash(pool: ChildPool, fault: str, phase: str) -> tuple[str | None, float]:
    """Have one crash; give what is wrong with its refusal, and the time that it took to come."""
    found = contact(pool, f"{fault}_at_{phase}")
    now = time.monotonic()
    if not isinstance(found, Refusal) or found.code != CRASHES[fault]:
        return f"{fault} at {phase} gave {found}", 0.0
    struck = re.search(r"chaos strikes at (\d+\.\d+)", found.reason)
    return None, now - float(struck[1]) if struck else float("nan")


def hang(pool: ChildPool, fault: str, most: float) -> tuple[str | None, float]:
    """Have one hang; give what is wrong with its refusal, and how long it outlived its deadline."""
    reference = f"{fault}_at_compile"
    # Nothing that a child does to get ready is part of it.
    probe(CHAOS + reference, PATIENT, pool=pool)
    start = time.monotonic()
    found = contact(pool, reference, ChildLimits(DEADLINE, 2 << 30))
    late = time.monotonic() - start - DEADLINE
    if not isinstance(found, Refusal) or found.code != "compile-timeout":
        return f"{fault} gave {found}", late
    problem = f"{fault} lived {late * 1000:.0f} ms too long" if late > most else None
    return problem, late


def ordinary(pool: ChildPool, times: int) -> dict[str, Any]:
    """Time what goes right: a start, a job that does nothing, a contact, a run."""
    name = CHAOS + "none_at_run"
    starts = []
    for _ in range(max(3, times // 40)):
        found = contact(pool, "none_at_run")
        assert isinstance(found, Contact)
        starts.append(found.metrics["start_seconds"])
        with pool.seated(name) as (seat, _):
            seat.empty()
    made = contact(pool, "none_at_run")
    assert isinstance(made, Contact)
    rows: dict[str, list[float]] = {"probe": [], "contact": [], "rerun": [], "here": []}
    for _ in range(times):
        rows["probe"].append(_timed(lambda: probe(name, PATIENT, pool=pool)))
        rows["contact"].append(_timed(lambda: contact(pool, "none_at_run")))
        rows["rerun"].append(_timed(lambda: rerun(made, [INPUT], PATIENT, pool=pool)))
        rows["here"].append(
            _timed(
                lambda: first_contact(
                    name, region(), DEVICE, Config(), [INPUT], PATIENT, isolate=False
                )
            )
        )
    return {"start_seconds": spread(starts)} | {f"{k}_seconds": spread(v) for k, v in rows.items()}


def _timed(call: Any) -> float:
    start = time.perf_counter()
    found = call()
    assert isinstance(found, list | Contact), found
    return time.perf_counter() - start


def spread(seconds: list[float]) -> dict[str, float]:
    """Give the median, the 99th percentile and the most."""
    if not seconds:
        return {}
    p50, p99 = np.nanpercentile(seconds, [50, 99])
    return {"median": float(p50), "p99": float(p99), "most": float(np.nanmax(seconds))}


def left() -> dict[str, int]:
    """Count what must not grow: descriptors, threads, children, and the children of chaos."""
    gc.collect()
    listed = Path("/proc/self/task").glob("*/children")
    commands = [p for p in Path("/proc").glob("[0-9]*/cmdline") if p.parent.name != "self"]
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "children": sum(len(path.read_text().split()) for path in listed),
        "strays": sum(f"chaos-of-{os.getpid()}".encode() in _read(p) for p in commands),
    }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def measure(crashes: int, hangs: int, most_latency: float = MOST_LATENCY) -> dict[str, Any]:
    """Run it all in this process."""
    problems: list[str] = []
    overheads: list[float] = []
    lates: dict[str, list[float]] = {fault: [] for fault in HANGS}
    settled = 0
    with ChildPool() as pool:
        usual = ordinary(pool, max(20, min(400, crashes * 2)))
    before = left()
    # Open: a closed child starts no processes that could outlive it.
    with ChildPool(closing="open") as pool:
        plan = itertools.islice(itertools.cycle(itertools.product(CRASHES, CRASH_PHASES)), crashes)
        for place, (fault, phase) in enumerate(plan):
            problem, overhead = crash(pool, fault, phase)
            overheads += [overhead] if CRASHES[fault] == "crashed" else []
            problems += [problem] if problem else []
            # The first faults of each kind fill caches; growth is counted from there.
            settled = resident(os.getpid()) if place == crashes // 4 else settled
        for fault in itertools.islice(itertools.cycle(HANGS), hangs):
            problem, late = hang(pool, fault, most_latency)
            lates[fault].append(late)
            problems += [problem] if problem else []
        survivor = contact(pool, "none_at_run")
        problems += [] if isinstance(survivor, Contact) else [f"afterwards: {survivor}"]
    after = left()
    growth = resident(os.getpid()) - settled
    problems += [
        f"{key}: {before[key]} before, {after[key]} after"
        for key in after
        if after[key] > before[key]
    ]
    if growth > MOST_GROWTH:
        problems.append(f"memory grew by {growth} bytes")
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "crashes": crashes,
        "hangs": hangs,
        "crash_to_refusal_seconds": spread(overheads),
        "beyond_deadline_seconds": spread([x for found in lates.values() for x in found]),
        "beyond_deadline_by_kind": {fault: spread(found) for fault, found in lates.items()},
        "ordinary": usual,
        "growth_bytes": growth,
        "before": before,
        "after": after,
        "problems": problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--crashes", type=int, default=200)
    parser.add_argument("--hangs", type=int, default=100)
    parser.add_argument("--most-latency", type=float, default=MOST_LATENCY)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.crashes, given.hangs, given.most_latency)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        for key, value in found.items():
            print(f"{key}: {value}")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
