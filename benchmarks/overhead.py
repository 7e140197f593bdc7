"""What does a call of a program cost over the engine called bare, and a tensor between two engines?

    python benchmarks/overhead.py [--rounds 1000] [--engines xla,openvino] [--json]
    python benchmarks/overhead.py --pairs [--json]

A tiny MLP (16-32-4, batch 1), and a larger one that takes a millisecond or more, on every engine in
a process of its own: ``program(x)`` against the fastest way we know to call the same loaded model
bare (benchmarks/bare.py), in turns. A/A is bare against itself: the noise. The bars: tiny at most
1.25 times as long or at most 4 us longer, whichever is larger; large at most 1.02 times as long.
Exit 1 if one is missed. ``--pairs`` is about benchmarks/handover.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENGINES = ("reference", "xla", "onnxruntime", "openvino", "webgpu")
PACKAGES = ("numpy", "jax", "onnxruntime", "openvino", "wgpu")
# At most so many times as long, or so many microseconds longer.
BARS = {"tiny": (1.25, 4.0), "large": (1.02, 0.0)}


def child(*command: str) -> Any:
    """Run a module of this folder in a process of its own, and read what it prints."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


def about() -> str:
    """Say where and with what this ran."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    load = os.getloadavg()[0]
    return (
        f"Python {platform.python_version()}, {packages}; {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}"
    )


def meets(row: dict[str, Any]) -> bool:
    """Tell whether a row is within its bar."""
    times, more = BARS[row["size"]]
    return bool(row["ratio"]["median"] <= times or row["more_us"]["median"] <= more)


def spread(found: dict[str, float], digits: int) -> str:
    low, middle, high = (f"{found[key]:.{digits}f}" for key in ("p10", "median", "p90"))
    return f"{middle} ({low} to {high})"


def calls_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | bare, us | by a program, us | more, us | ratio | A/A | bare is |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        digits = 2 if row["bare_us"]["median"] < 1000 else 0
        lines.append(
            f"| {row['engine']}, {row['size']} | {spread(row['bare_us'], digits)} | "
            f"{spread(row['ours_us'], digits)} | {spread(row['more_us'], digits)} | "
            f"{spread(row['ratio'], 3)} | {spread(row['aa'], 3)} | `{row['best']}` |"
        )
    return "\n".join(lines)


def pairs_tables(rows: list[dict[str, Any]]) -> str:
    """A table for each dtype: from the left to the top, microseconds by size; c is copied."""
    engines = list(dict.fromkeys(row["from"] for row in rows))
    cells: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        mark = "c" if row["copied"] == row["of"] else "(c)" if row["copied"] else ""
        cell = cells.setdefault((row["dtype"], row["from"], row["to"]), [])
        cell.append(f"{row['us']:.{0 if row['us'] >= 100 else 1}f}{mark}")
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        lines += [f"| {dtype} | {' | '.join(engines)} |", "|---" * (len(engines) + 1) + "|"]
        for source in engines:
            shown = (" · ".join(cells[dtype, source, target]) for target in engines)
            lines.append(f"| {source} | {' | '.join(shown)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--sizes", default=",".join(BARS))
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: for a machine that has other things to do, with --threads 1",
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.pairs:
        rows = child("benchmarks.handover")
        print(json.dumps(rows) if options.json else f"{about()}\n\n{pairs_tables(rows)}")
        return 0
    settings = ["--clock", options.clock]
    if options.threads is not None:
        settings += ["--threads", str(options.threads)]
        # What numpy and jax's own client read when they start.
        os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "NPROC"), str(options.threads))
    rows = [
        child("benchmarks.bare", engine, size, *settings, "--rounds", str(rounds))
        for engine in options.engines.split(",")
        for size, rounds in (("tiny", options.rounds), ("large", max(options.rounds // 8, 5)))
        if size in options.sizes.split(",")
    ]
    print(json.dumps(rows) if options.json else f"{about()}\n\n{calls_table(rows)}")
    missed = [f"{row['engine']}, {row['size']}" for row in rows if not meets(row)]
    print(f"over the bar: {'; '.join(missed) or 'none'}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
