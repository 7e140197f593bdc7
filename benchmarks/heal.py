"""Does a bad call cost the good ones anything? Bad, good, bad, good, on every engine.

    python benchmarks/heal.py [--count 1000] [--models lac ...] [--engines onnxruntime ...]
                              [--seed 0] [--json]

Real models with an embedding, from the zoo, and a small one whose indices the graph computes. A bad
call has one value out of range, at a place that the seed chooses. Each good call of a program that
also gets bad calls is timed beside the same call of a program that gets none, and that beside a
third, which tells the noise (A/A). Every bad call must raise the same CheckError on every engine,
and every good answer must be that of the program without bad calls. Exit 1 if not, or if good calls
take more than 1.1 times as long, and more than the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
# The root, for `benchmarks`; the folder beside this file, whose list and fetch script are `zoo`.
sys.path[:0] = [str(HERE.with_name("zoo")), str(HERE.parents[1])]

import fusewire as fw  # noqa: E402 - the path comes first
from benchmarks.overhead import about, child  # noqa: E402 - the path comes first
from benchmarks.timing import Timing, ratio  # noqa: E402 - the path comes first
from fusewire.errors import CheckError, FusewireError, RefusedError  # noqa: E402 - the same

zoo: Any = import_module("zoo")

ENGINES = ("reference", "onnxruntime", "openvino", "xla", "webgpu")
# The input with an index, of each model.
MODELS = {
    "tashkeel": "char_inputs",
    "minimol": "edge_index",
    "lac": "token_ids",
    "minilm-l3": "input_ids",
    "computed": "x",
}
BAR = 1.1
_TABLE = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
_OUT_OF_RANGE = 10**6


def computed(x: Any) -> Any:
    """Look rows up by indices that the graph computes."""
    rows = np.take(_TABLE, np.floor(x * 63).astype(np.int64), axis=0)
    return np.tanh(rows @ _TABLE.T).sum(1)


def model_of(name: str) -> tuple[Any, list[Any], int]:
    """Return a source, good arguments, and the place of the one that holds indices."""
    if name == "computed":
        x = np.random.default_rng(1).uniform(0, 1, 256).astype(np.float32)
        return fw.trace(computed, x), [x], 0
    path, made = str(zoo.path(name)), zoo.inputs(name)
    names = [value.name for value in fw.load(path).inputs]
    return path, [made[x] for x in names], names.index(MODELS[name])


def spoiled(arguments: list[Any], place: int, seed: int) -> list[Any]:
    """Put one value out of range."""
    bad = arguments[place].copy()
    bad.flat[np.random.default_rng(seed).integers(bad.size)] = _OUT_OF_RANGE
    return [bad if place == at else x for at, x in enumerate(arguments)]


def timed(program: fw.Program, arguments: list[Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    outputs = program(*arguments)
    return time.perf_counter() - start, outputs


def outcome(program: fw.Program, arguments: list[Any]) -> str:
    """Say what comes of a call."""
    try:
        program(*arguments)
    except FusewireError as error:
        return f"{type(error).__name__}: {error}"
    return "an answer"


def is_same(left: Any, right: Any) -> bool:
    """Tell whether two results are equal, as far as one engine repeats itself."""
    left, right = (x if isinstance(x, tuple) else (x,) for x in (left, right))
    pairs = zip(left, right, strict=True)
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)


def _programs(source: Any, good: list[Any], options: dict[str, Any]) -> dict[str, fw.Program]:
    programs = {x: fw.compile(source, **options) for x in ("disturbed", "quiet", "again")}
    for program in programs.values():
        program(*good)
    return programs


def measure(name: str, engine: str, count: int, seed: int) -> dict[str, Any]:
    """Disturb one program of three with bad calls, ``count`` calls in all, and time the rest."""
    warnings.simplefilter("ignore")
    source, good, place = model_of(name)
    bad = spoiled(good, place, seed)
    options: dict[str, Any] = {"backend": engine, "fallback": "error", "threads": 1}
    if engine in ("reference", "webgpu"):
        options.pop("threads")
    expected = outcome(fw.compile(source, backend="reference", cache=False), bad)
    row: dict[str, Any] = {"model": name, "engine": engine, "expected": expected}
    try:
        ways = _programs(source, good, options)
    except RefusedError:
        # The fallback runs what the engine refuses.
        row["is_split"] = True
        ways = _programs(source, good, {**options, "fallback": "allow"})
    answer = ways["quiet"](*good)
    seconds: dict[str, list[float]] = {x: [] for x in ways}
    outcomes: dict[str, int] = {}
    wrong = 0
    for turn in range(count // 2):
        order = [*ways][turn % 3 :] + [*ways][: turn % 3]
        for way in order:
            if way == "disturbed":
                text = outcome(ways[way], bad)
                outcomes[text] = outcomes.get(text, 0) + 1
            else:
                # The same work goes before the call: what it leaves in the caches is no difference.
                outcome(ways["disturbed"], bad)
            took, outputs = timed(ways[way], good)
            seconds[way].append(took)
            wrong += not is_same(outputs, answer)
    timings = {x: Timing(tuple(samples)) for x, samples in seconds.items()}
    return {
        **row,
        "count": count,
        "outcomes": outcomes,
        "wrong": wrong,
        "quiet_ms": timings["quiet"].median * 1e3,
        "disturbed_ms": timings["disturbed"].median * 1e3,
        "ratio": ratio(timings["disturbed"], timings["quiet"]),
        "again": ratio(timings["again"], timings["quiet"]),
    }


def problems(row: dict[str, Any]) -> list[str]:
    """Say what a row does not meet."""
    found = []
    if not row["expected"].startswith(CheckError.__name__):
        found.append(f"the reference gives {row['expected']}")
    others = {text: n for text, n in row["outcomes"].items() if text != row["expected"]}
    found += [f"{n} bad calls: {text}" for text, n in others.items()]
    if row["wrong"]:
        found.append(f"{row['wrong']} wrong answers")
    noise = abs(row["again"] - 1)
    if row["ratio"] > max(BAR, 1 + noise):
        found.append(f"good calls take {row['ratio']:.2f} times as long")
    return found


def show(row: dict[str, Any]) -> str:
    """Write a row of the table."""
    split = " (split)" if row.get("is_split") else ""
    name = f"| {row['model']} | {row['engine']}{split} |"
    verdict = "; ".join(problems(row)) or "met"
    return (
        f"{name} {row['quiet_ms']:.3f} | {row['disturbed_ms']:.3f} | {row['ratio']:.3f} | "
        f"{row['again']:.3f} | {verdict} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="calls of each program, half bad")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="measure in this process")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(measure(args.models[0], args.engines[0], args.count, args.seed)))
        return 0
    rows = []
    if not args.json:
        print(f"{about()}\n\n| model | engine | quiet, ms | disturbed, ms | ratio | A/A | |")
        print("|---|---|---|---|---|---|---|")
    for model in args.models:
        for engine in args.engines:
            command = ["--models", model, "--engines", engine, "--alone"]
            command += ["--count", str(args.count), "--seed", str(args.seed)]
            rows.append(child("benchmarks.heal", *command))
            if not args.json:
                print(show(rows[-1]), flush=True)
    if args.json:
        print(json.dumps({"about": about(), "pid": os.getpid(), "rows": rows}, indent=1))
    return int(any(problems(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
