"""What does it cost to read from the cache, and to write to it?

    python benchmarks/store_gets.py

Entries of code, so that each is written through to the disk. The file is in the page cache when it
is read; `read` is reading the same file bare, `hash` its SHA-256 by one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.forked import Row, report
from fusewire.store.disk import Store
from fusewire.store.key import Key

SIZES = {"1 kB": 1000, "64 kB": 64_000, "1 MB": 10**6, "16 MB": 16 * 10**6, "64 MB": 64 * 10**6}


def _milliseconds(work: Callable[[], Any], seconds: float) -> dict[str, float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 2000):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return {"median": round(statistics.median(times), 3), "least": round(min(times), 3)}


def measure(given: argparse.Namespace) -> Row:
    """Time gets and puts of several sizes, and misses."""
    folder = Path(tempfile.mkdtemp(prefix="store-gets-"))
    store = Store(folder / "cache")
    rows: Row = {}
    for number in range(given.entries):
        store.put(Key.of("measurement", number=number), b"{}")
    for name, size in SIZES.items():
        key, payload = Key.of("artifact", size=size), os.urandom(size)
        put = _milliseconds(lambda: store.put(key, payload), given.time)  # noqa: B023 # called now
        path = store.path / f"{key.digest}.entry"
        rows[name] = {
            "get": _milliseconds(lambda: store.get(key), given.time),  # noqa: B023 # called now
            "read": _milliseconds(path.read_bytes, given.time),
            "hash": _milliseconds(lambda: hashlib.sha256(payload), given.time),  # noqa: B023 # now
            "put": put,
        }
        store.drop(key)
    rows["miss"] = _milliseconds(lambda: store.get(Key.of("plan", none=1)), given.time)
    rows["why_missed"] = _milliseconds(
        lambda: store.why_missed(Key.of("measurement", number=-1)), given.time
    )
    shutil.rmtree(folder)
    return {**rows, "entries": given.entries, "load": os.getloadavg()[0], "problems": []}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--time", type=float, default=1.0, help="seconds for each figure")
    parser.add_argument("--entries", type=int, default=1000, help="others in the folder")
    report(measure, parser)
