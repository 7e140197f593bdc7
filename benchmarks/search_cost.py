"""How long does a search at level 2 take, and what is saved if a second model shares blocks?

    python benchmarks/search_cost.py [--budget 110] [--models ppocr-rec minilm-l3 layout-picodet]
                                     [--json] [--write results/search_cost.md]

Each model of the zoo is searched in a new process with an empty cache: the clock runs from the file
to the answer of the chosen plan. Then two models with the same six encoder layers, the second with
another end, share a cache: what was measured of parts of the first serves the second. Exit 1 if a
search takes over 120 s, or the second over half of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

import numpy as np  # noqa: E402 - the path comes first

import fusewire as fw  # noqa: E402
from benchmarks.engines import original  # noqa: E402
from benchmarks.workloads import Draw, Workload, encode, encoder_weights  # noqa: E402

MODELS = ("ppocr-rec", "minilm-l3", "layout-picodet")
PACKAGES = ("fusewire", "numpy", "onnxruntime", "openvino", "jax", "torch")
MOST, SHARE = 120.0, 0.5
Row = dict[str, Any]


def ended(k: Any, w: Any, x: Any, end: str) -> Any:
    """Encode 128 positions six times; then a class of the whole, or words for each."""
    layers, (weight, bias) = w
    x = encode(k, layers, x, heads=6)
    return (k.np.mean(x, axis=1) if end == "class" else k.np.tanh(x)) @ weight + bias


def weights_of(draw: Draw, made: int) -> Any:
    return [encoder_weights(draw, 384), draw.linear(384, made)]


def workload(end: str) -> Workload:
    """Return a model; the layers are the same, whichever its end."""
    made = {"class": 1000, "words": 64}[end]
    function = partial(ended, end=end)
    return Workload(function, partial(weights_of, made=made), lambda d: [d.normal(1, 128, 384)])


def search(path: str, inputs: str, budget: float) -> Row:
    """Search for a plan, in this process."""
    with np.load(inputs) as held:
        arrays = [held[name] for name in held.files]
    start = time.perf_counter()
    program = fw.compile(path, level=2, budget_seconds=budget, start="measured", threads=2)
    program(*arrays)
    seconds = time.perf_counter() - start
    why = program.why()
    return {"seconds": seconds, "chosen": why.backend, "notes": list(why.notes)}


def search_apart(name: str, path: Path, arrays: Any, cache: Path, budget: float) -> Row:
    """Search in a new process."""
    inputs = cache.parent / "inputs.npz"
    np.savez(inputs, **arrays)
    words = [sys.executable, "-W", "ignore", __file__, "--search", str(path), str(inputs)]
    env = {**os.environ, "FUSEWIRE_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    words += ["--budget", str(budget)]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return {"name": name, **json.loads(done.stdout.splitlines()[-1])}


def searches(models: list[str], budget: float) -> Iterator[Row]:
    """Search each model with a cache of its own, and the two that share blocks with one cache."""
    for name in models:
        with tempfile.TemporaryDirectory(prefix="search-") as folder:
            path, inputs = original(name)
            yield search_apart(name, path, inputs, new_folder(Path(folder) / "cache"), budget)
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        cache = new_folder(Path(folder) / "cache")
        for number, end in (("first", "class"), ("second", "words")):
            path = Path(folder) / f"{number}.onnx"
            arrays = dict(enumerate(workload(end).save(path)))
            given = {f"x{at}": array for at, array in arrays.items()}
            yield search_apart(f"{number} of two", path, given, cache, budget)


def new_folder(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def table(rows: list[Row]) -> str:
    """Write what was found as a table, and what of it the searches said of splits."""
    lines = ["| model | seconds | chosen | about splits |", "|---|---:|---|---|"]
    for row in rows:
        about = " ".join(x for x in row["notes"] if "split" in x.lower())
        lines.append(f"| {row['name']} | {row['seconds']:.1f} | {row['chosen']} | {about} |")
    return "\n".join(lines)


def page(rows: list[Row], budget: float) -> str:
    """Write the page of results."""
    versions = ", ".join(f"{x} {version(x)}" for x in PACKAGES)
    share = rows[-1]["seconds"] / rows[-2]["seconds"]
    return (
        "# What a search at level 2 costs\n\n"
        f"`python benchmarks/search_cost.py --budget {budget:g}`, {date.today()}, "
        f"Python {platform.python_version()}, {versions}, {os.cpu_count()} cores.\n"
        "From the file to the first answer of the chosen plan, in a new process with an empty "
        f"cache; asked: at most {MOST:g} s.\nThe second of two models that share six encoder "
        f"layers has the cache of the first, and took {share:.2f} of its time (asked: at most "
        f"{SHARE:g}).\n\n{table(rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=110.0, help="seconds of a search")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--search", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    if args.search:
        path, inputs = args.search
        print(json.dumps(search(path, inputs, args.budget)))
        return
    rows = []
    for row in searches(args.models, args.budget):
        rows.append(row)
        print(f"{row['name']}: {row['seconds']:.1f} s, {row['chosen']}", file=sys.stderr)
    print(json.dumps(rows) if args.json else table(rows))
    if args.write:
        args.write.write_text(page(rows, args.budget))
    share = rows[-1]["seconds"] / rows[-2]["seconds"]
    sys.exit(any(row["seconds"] > MOST for row in rows) or share > SHARE)


if __name__ == "__main__":
    main()
