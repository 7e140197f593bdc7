"""What does it cost that an engine stays in a child process, with limits on every call?

    python -m benchmarks.isolated [--seconds 20] [--engine onnxruntime] [--json]

Sizes: ``x + x`` in this process and with ``isolate="always"``, and a bare echo of the same bytes:
two processes, one copy each way, a byte on a pipe as the signal. All are interleaved. The overhead
of a call is what it takes longer than in process; asked: at most 25 us more than the echo takes.
Models: the same call of two models of the zoo, in process twice (A/A) and isolated; asked: a ratio
of at most 1.02, or inside of the interval of A/A. Exit 1 if one is more.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from benchmarks.timing import Timing, interleaved
from fusewire.ir.graph import Array

SIZES = {"64 B": 64, "64 kB": 1 << 16, "1 MB": 1 << 20, "64 MB": 1 << 26}
MODELS = ("ppocr-rec", "minilm-l3")
MOST_SECONDS = 25e-6
MOST_RATIO = 1.02
_ECHO = """
import mmap, os, sys
import numpy as np
memory, asked, told, size = map(int, sys.argv[1:])
shared = np.frombuffer(mmap.mmap(memory, 2 * size), np.uint8)
while os.read(asked, 1):
    np.copyto(shared[size:], shared[:size])
    os.write(told, b"x")
"""


class Echo:
    """A process that copies what it gets; what a call costs that does nothing else."""

    def __init__(self, size: int) -> None:
        descriptor = os.memfd_create("echo")
        os.ftruncate(descriptor, 2 * size)
        self._shared = np.frombuffer(mmap.mmap(descriptor, 2 * size), np.uint8)
        self._size = size
        asked, self._ask = os.pipe()
        self._hear, told = os.pipe()
        ends = (descriptor, asked, told)
        command = [sys.executable, "-c", _ECHO, *map(str, ends), str(size)]
        self._process = subprocess.Popen(command, pass_fds=ends)
        for end in ends:
            os.close(end)

    def __call__(self, raw: Array) -> Array:
        """Send bytes, and look at what came back."""
        np.copyto(self._shared[: self._size], raw)
        os.write(self._ask, b"x")
        os.read(self._hear, 1)
        return self._shared[self._size :]

    def close(self) -> None:
        """End the process."""
        os.close(self._ask)
        self._process.wait()
        os.close(self._hear)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Give a median, and the order statistics around it that hold it with 95% confidence."""
    ordered, count = sorted(values), len(values)
    reach = int(0.98 * count**0.5) + 1
    low, high = max(count // 2 - reach, 0), min(count // 2 + reach, count - 1)
    return statistics.median(ordered), ordered[low], ordered[high]


def size_row(engine: str, name: str, seconds: float) -> dict[str, Any]:
    """Time one size."""
    size = SIZES[name]
    x = np.ones(size // 4, np.float32)
    compiled: Callable[..., Any] = partial(
        fw.compile, lambda x: x + x, x, backend=engine, fallback="error", threads=1
    )
    here, there, echo = compiled(isolate="first"), compiled(isolate="always"), Echo(size)
    raw = x.view(np.uint8)
    np.testing.assert_array_equal(here(x), there(x))
    ways: dict[str, Callable[[], object]] = {
        "in process": lambda: here(x),
        "isolated": lambda: there(x),
        "echo": lambda: echo(raw),
    }
    found = interleaved(ways, seconds=seconds, rounds=20_000, pause=0.0, warm=20)
    echo.close()
    here.close()
    there.close()
    trios = zip(*(found[way].samples for way in ways), strict=True)
    over, low, high = interval([isolated - here - echo for here, isolated, echo in trios])
    medians = {way: timing.median for way, timing in found.items()}
    meets = low <= MOST_SECONDS
    return {"size": name, **medians, "over echo": over, "low": low, "high": high, "meets": meets}


def _ratios(left: Timing, right: Timing) -> tuple[float, float, float]:
    return interval([a / b for a, b in zip(left.samples, right.samples, strict=True)])


def model_row(engine: str, name: str, seconds: float) -> dict[str, Any]:
    """Time one model of the zoo."""
    sys.path.insert(0, str(Path(__file__).parent / "zoo"))
    import zoo  # type: ignore[import-not-found]  # not a package

    path = str(zoo.path(name))
    made = zoo.inputs(name)
    given = [made[value.name] for value in fw.load(path).inputs]
    compiled: Callable[..., Any] = partial(fw.compile, path, backend=engine, fallback="error")
    programs = {
        "in process": compiled(isolate="first"),
        "again": compiled(isolate="first"),
        "isolated": compiled(isolate="always"),
    }
    ways = {way: partial(program, *given) for way, program in programs.items()}
    # Threads of one engine spin on after a call, and would take a core from the next.
    found = interleaved(ways, seconds=seconds, rounds=2000, least=25, pause=0.05, warm=3)
    for program in programs.values():
        program.close()
    same = _ratios(found["again"], found["in process"])
    isolated = _ratios(found["isolated"], found["in process"])
    medians = {way: timing.median for way, timing in found.items()}
    meets = isolated[0] <= MOST_RATIO or isolated[1] <= same[2]
    return {"model": name, **medians, "A/A": same, "ratio": isolated, "meets": meets}


def show(rows: list[dict[str, Any]], models: list[dict[str, Any]]) -> None:
    """Print tables."""
    print("| in and out | in process | isolated | bare echo | overhead beyond the echo |")
    print("|---|---|---|---|---|")
    for row in rows:
        times = (f"{row[way] * 1e6:,.1f}" for way in ("in process", "isolated", "echo"))
        over = [f"{row[key] * 1e6:,.1f}" for key in ("over echo", "low", "high")]
        print(f"| {row['size']} | {' | '.join(times)} us | {over[0]} us ({over[1]} to {over[2]}) |")
    print("\n| model | in process | isolated | ratio | A/A |\n|---|---|---|---|---|")
    for row in models:
        times = (f"{row[way] * 1e3:.2f} ms" for way in ("in process", "isolated"))
        pairs = ("{:.3f} ({:.3f} to {:.3f})".format(*row[key]) for key in ("ratio", "A/A"))
        print(f"| {row['model']} | {' | '.join([*times, *pairs])} |")


def main() -> int:
    """Time everything, print, and say by the exit code whether it is as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--only", choices=("sizes", "models"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = [] if given.only == "models" else list(SIZES)
    names = [] if given.only == "sizes" else list(MODELS)
    rows = [size_row(given.engine, name, given.seconds) for name in sizes]
    models = [model_row(given.engine, name, given.seconds) for name in names]
    if given.json:
        print(json.dumps({"sizes": rows, "models": models}, indent=1))
    else:
        print(f"{given.engine}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
        show(rows, models)
    return 0 if all(row["meets"] for row in [*rows, *models]) else 1


if __name__ == "__main__":
    sys.exit(main())
