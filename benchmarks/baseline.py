"""Time programs against the user's own functions, after the choice is made.

Each function runs in a process of its own, with an empty cache: ``fw.compile`` and the first call,
then the function, the program and the function once more, in turns. The bar: no program is slower
than 1.05 times the function beyond the noise, which is how far the function is from itself.

    python benchmarks/baseline.py --json /tmp/baseline.json --page benchmarks/results/baseline.md

A row that the JSON file has is not measured again; ``--only`` takes names, separated by commas.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

BAR = 1.05
PACKAGES = ("numpy", "onnxruntime", "openvino", "jax", "torch")


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Compile one function, and time it against its program; runs in a process of its own."""
    functions: Any = import_module("first_hour_functions")
    timing: Any = import_module("timing")
    import fusewire as fw
    from fusewire.errors import FusewireError

    function, arguments = next((f, a) for f, a in functions.arguments().items() if _is(f, name))
    options: dict[str, Any] = {"start": "measured"} if _has_start(fw.Options) else {}
    start = time.perf_counter()
    try:
        program = fw.compile(function, fallback="allow", **options)
        program(*arguments)
    except FusewireError as error:
        return {"name": name, "refused": str(error).splitlines()[0]}
    settled = time.perf_counter() - start
    why = program.why()
    once = _once(function, arguments)
    count = max(1, round(0.002 / once))
    times = timing.interleaved(
        {
            "function": lambda: [function(*arguments) for _ in range(count)],
            "program": lambda: [program(*arguments) for _ in range(count)],
            "again": lambda: [function(*arguments) for _ in range(count)],
        },
        seconds=seconds,
    )
    return {
        "name": name,
        "backend": why.backend,
        "settled_seconds": settled,
        "function_seconds": times["function"].median / count,
        "program_seconds": times["program"].median / count,
        **_ratios(times),
        "notes": list(why.notes),
    }


def _is(function: Any, name: str) -> bool:
    return bool(function.__name__ == name)


def _has_start(options: Any) -> bool:
    return any(field.name == "start" for field in fields(options))


def _once(function: Any, arguments: tuple[Any, ...]) -> float:
    function(*arguments)
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def _ratios(times: Any) -> dict[str, Any]:
    from fusewire.choosing.measure import interval

    rounds = list(zip(*(times[x].samples for x in ("function", "program", "again")), strict=True))
    ratios = [program / function for function, program, _ in rounds]
    low, high = interval(ratios)
    noise = max(abs(end - 1) for end in interval([again / own for own, _, again in rounds]))
    return {
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "noise": noise,
        "rounds": len(rounds),
        "is_slower": low > BAR and statistics.median(ratios) > BAR * (1 + noise),
    }


def in_child(name: str, seconds: float) -> dict[str, Any]:
    """Measure in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, "--seconds", str(seconds)],
            env={**os.environ, "FUSEWIRE_CACHE": cache},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return {"name": name, "failed": done.stderr.strip().splitlines()[-1:]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def page(rows: list[dict[str, Any]]) -> str:
    """Write the results as a page."""
    timed = [row for row in rows if "ratio" in row]
    slower = [row["name"] for row in timed if row["is_slower"]]
    mean = math.exp(statistics.fmean(-math.log(row["ratio"]) for row in timed)) if timed else 1.0
    versions = ", ".join(f"{x} {version(x)}" for x in PACKAGES if _is_installed(x))
    lines = [
        "# Programs against the functions that they were traced from",
        "",
        f"`python benchmarks/baseline.py`, {time.strftime('%Y-%m-%d')}, Python "
        f"{platform.python_version()}, {versions}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores. Empty cache, default budget; *ratio* is the program's time over "
        "the function's, the median of the rounds, with its 95% interval; *noise* is the function "
        "against itself.",
        "",
        f"**{len(timed)} of {len(rows)} functions are traced; {len(slower)} are slower than "
        f"{BAR} times the function beyond the noise"
        + (f" ({', '.join(slower)})" if slower else "")
        + f". Geometric mean of the speed-up: {mean:.2f}.**",
        "",
        "| function | runs on | function | program | ratio | interval | noise | settled after |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(_line(row))
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    if "ratio" not in row:
        return f"| `{row['name']}` | refused | | | | | | |"
    return (
        f"| `{row['name']}` | {row['backend']} | {row['function_seconds'] * 1e3:.3f} ms | "
        f"{row['program_seconds'] * 1e3:.3f} ms | {row['ratio']:.2f} | {row['low']:.2f} to "
        f"{row['high']:.2f} | {row['noise']:.0%} | {row['settled_seconds']:.1f} s |"
    )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except ModuleNotFoundError:
        return False
    return True


def main() -> None:
    """Measure the functions that have no row yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, help="file of rows; measured ones are kept")
    parser.add_argument("--page", type=Path, help="results page to write")
    parser.add_argument("--only", default="", help="names of functions, separated by commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds to time each")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.seconds)))
        return
    functions: Any = import_module("first_hour_functions")
    known = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    names = [function.__name__ for function in functions.arguments()]
    for name in [x for x in names if not given.only or x in given.only.split(",")]:
        if name not in known or "failed" in known[name]:
            known[name] = in_child(name, given.seconds)
            print(json.dumps(known[name])[:200], flush=True)
            if given.json:
                given.json.write_text(json.dumps(known, indent=1))
    text = page([known[name] for name in names if name in known])
    if given.page:
        given.page.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
