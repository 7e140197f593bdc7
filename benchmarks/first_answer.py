"""From a file, or a function, to the first answer with an empty cache; and how it settles.

    python benchmarks/first_answer.py answer   [--times 3] [--json FILE] [MODEL ...]
    python benchmarks/first_answer.py functions [--times 3] [--json FILE]
    python benchmarks/first_answer.py settle   [--budget 20] [--json FILE] [MODEL ...]
    python benchmarks/first_answer.py table    [--json FILE]    writes results/first_answer.md

``answer``: a fresh process with an empty cache, from its start to the moment it has printed a line
after the first answer, beside ONNX Runtime alone in the same run: the file, a session, one call.
Both start Python and import NumPy and their libraries within that time. ``functions``: the time
from after ``import fusewire`` to the first answer of NumPy functions. ``settle``: the time until
``program.wait()`` returns, what it settled on, and what ``start="measured"`` chooses with a cache
of its own, with the median of a call of both. Sides take turns, the least counts, and ``--json``
keeps what was found, so that a run can go on. ``exit`` is the time from the answer to the end of
the process.
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
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__)
sys.path[:0] = [str(HERE.with_name("zoo")), str(HERE.parents[1])]

from benchmarks.timing import start_environment  # noqa: E402 - the path comes first

zoo: Any = import_module("zoo")
Row = dict[str, Any]
PAGE = HERE.with_name("results") / "first_answer.md"

BARE = """
import sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
path, given = sys.argv[1], dict(np.load(sys.argv[2]))
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
session.run(None, {x.name: given[x.name] for x in session.get_inputs()})
print("answered", flush=True)
"""
OURS = """
import sys
import numpy as np
import fusewire as fw
path, given = sys.argv[1], dict(np.load(sys.argv[2]))
program = fw.compile(path)
program(**given)
print("answered", flush=True)
"""
FUNCTION = """
import sys, time
import numpy as np
import fusewire as fw
from benchmarks.first_answer import FUNCTIONS
function, arrays = FUNCTIONS[sys.argv[1]]
start = time.perf_counter()
fw.compile(function)(*arrays)
print(time.perf_counter() - start, flush=True)
"""
SETTLE = """
import json, sys, time
import numpy as np
import fusewire as fw
path, given, start, budget = sys.argv[1], dict(np.load(sys.argv[2])), sys.argv[3], sys.argv[4]
begin = time.perf_counter()
program = fw.compile(path, start=start, budget_seconds=float(budget))
program(**given)
answered = time.perf_counter() - begin
is_settled = program.wait(600)
settled = time.perf_counter() - begin
why = program.why()
chosen = next((row.name for row in why.tried if row.is_chosen), why.backend)
times = []
for _ in range(30):
    begin = time.perf_counter()
    program(**given)
    times.append(time.perf_counter() - begin)
found = {"answered": answered, "settled": settled, "is_settled": is_settled, "chosen": chosen}
found |= {"median": sorted(times)[15], "notes": list(why.notes)}
print(json.dumps(found), flush=True)
"""


def _pca(x: Any) -> Any:
    centred = x - x.mean(axis=0)
    return np.linalg.svd(centred, full_matrices=False)[1]


def _heat(u: Any) -> Any:
    for _ in range(50):
        u = u + 0.1 * (np.roll(u, 1) - 2 * u + np.roll(u, -1))
    return u


_RNG = np.random.default_rng(0)
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "softmax": (
        lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(),
        (_RNG.normal(size=(64, 1000)).astype(np.float32),),
    ),
    "layer": (
        lambda x, w: np.tanh(x @ w).sum(axis=1),
        (_RNG.normal(size=(200, 300)), _RNG.normal(size=(300, 300))),
    ),
    "median": (lambda x: np.median(x, axis=0), (_RNG.normal(size=(1000, 50)),)),
    "pca": (_pca, (_RNG.normal(size=(500, 20)),)),
    "heat": (_heat, (_RNG.normal(size=10_000),)),
}


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process with a cache of its own."""
    path = f"{HERE.parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**start_environment(), "FUSEWIRE_CACHE": str(folder), "PYTHONPATH": path}


def run(code: str, *words: str) -> tuple[str, float, float]:
    """Run code in a fresh process; returns its line, the time until then, and from then to exit."""
    with tempfile.TemporaryDirectory(prefix="first-answer-") as folder:
        start = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(Path(folder)),
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            answered = time.perf_counter() - start
            process.wait()
        return line, answered, time.perf_counter() - start - answered


def given_file(name: str, folder: Path) -> str:
    """Write the inputs of a model, and return the path."""
    path = folder / f"{name}.npz"
    np.savez(path, **zoo.inputs(name))
    return str(path)


def answer(name: str, times: int, folder: Path) -> Row:
    """Compare the time to the first answer with that of ONNX Runtime alone."""
    words = str(zoo.path(name)), given_file(name, folder)
    found: dict[str, list[float]] = {"bare": [], "ours": [], "exit": []}
    for _ in range(times):
        found["bare"].append(run(BARE, *words)[1])
        line, seconds, exit_seconds = run(OURS, *words)
        if line != "answered":
            return {"problem": "ours gave no answer"}
        found["ours"].append(seconds)
        found["exit"].append(exit_seconds)
    return {key: min(values) for key, values in found.items()}


def functions(name: str, times: int) -> Row:
    """Time the first answer of a function."""
    return {"seconds": min(float(run(FUNCTION, name)[0]) for _ in range(times))}


def settle(name: str, budget: float, folder: Path) -> Row:
    """Compare what a program settles on with what it would have measured first."""
    words = str(zoo.path(name)), given_file(name, folder)
    rows = {}
    for start in ("now", "measured"):
        line, _, exit_seconds = run(SETTLE, *words, start, str(budget))
        rows[start] = {**json.loads(line), "exit": exit_seconds} if line else {"problem": "died"}
    return rows


def table(kept: dict[str, Row]) -> str:
    """Write what was found as a page."""
    engines = ", ".join(f"{x} {version(x)}" for x in ("onnxruntime", "numpy"))
    lines = [
        "# The first answer",
        "",
        f"`python benchmarks/first_answer.py`, {date.today()}, Python "
        f"{platform.python_version()}, {engines}, {os.cpu_count()} cores.",
        "",
        "| model | ONNX Runtime (s) | ours (s) | ratio | exit (s) |",
        "|---|---:|---:|---:|---:|",
    ]
    ratios = []
    for key, row in sorted(kept.items()):
        part, _, name = key.partition(" ")
        if part != "answer" or "problem" in row:
            continue
        ratios.append(row["ours"] / row["bare"])
        cells = f"{row['bare']:.2f} | {row['ours']:.2f} | {ratios[-1]:.2f} | {row['exit']:.2f}"
        lines.append(f"| {name} | {cells} |")
    if ratios:
        mean = math.exp(statistics.mean(map(math.log, ratios)))
        lines += ["", f"Geometric mean {mean:.2f}, worst {max(ratios):.2f}."]
    lines += ["", "| function | first answer (s) |", "|---|---:|"]
    lines += [
        f"| {key.partition(' ')[2]} | {row['seconds']:.3f} |"
        for key, row in sorted(kept.items())
        if key.startswith("functions ")
    ]
    lines += ["", "| model | settled after (s) | on | measured first | ratio of calls |"]
    lines += ["|---|---:|---|---|---:|"]
    for key, row in sorted(kept.items()):
        if not key.startswith("settle ") or any("problem" in x for x in row.values()):
            continue
        now, measured = row["now"], row["measured"]
        ratio = now["median"] / measured["median"]
        cells = f"{now['settled']:.1f} | {now['chosen']} | {measured['chosen']} | {ratio:.2f}"
        lines.append(f"| {key.partition(' ')[2]} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure a part, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["answer", "functions", "settle", "table"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--json", type=Path, default=Path("first_answer.json"))
    args = parser.parse_intermixed_args()
    kept: dict[str, Row] = json.loads(args.json.read_text()) if args.json.exists() else {}
    if args.part == "table":
        PAGE.write_text(table(kept))
        return
    names = args.names or list(FUNCTIONS if args.part == "functions" else zoo.MODELS)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            key = f"{args.part} {name}"
            if key in kept:
                continue
            if args.part == "answer":
                kept[key] = answer(name, args.times, Path(folder))
            elif args.part == "functions":
                kept[key] = functions(name, args.times)
            else:
                kept[key] = settle(name, args.budget, Path(folder))
            print(key, json.dumps(kept[key]), flush=True)
            args.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
