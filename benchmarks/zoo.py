"""Do the 35 real models run right everywhere, and what does Fusewire cost them?

    python benchmarks/zoo.py right  [--backends a,b] [--tag small] [--first] [NAME ...]
    python benchmarks/zoo.py speed  [--backends onnxruntime,openvino] [NAME ...]
    python benchmarks/zoo.py table  writes results/zoo.md from what was found so far

``right`` loads each model, runs it on the reference, and lets the oracle judge every engine
without fallback, then with it, and ONNX Runtime run bare on the file, at the model's own shapes
and at two others (``--first``: its own alone). ``speed`` compares Fusewire on an engine with that
engine run bare on the file: same threads, precision and spinning, interleaved. Each model has a
process of its own, and what it found is kept in $FUSEWIRE_ZOO/results, so that a run can go on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__)
# The root, for `benchmarks`; the folder beside this file, whose list and fetch script are `zoo`.
sys.path[:0] = [str(HERE.with_name("zoo")), str(HERE.parents[1])]
zoo: Any = import_module("zoo")

ENGINES = ("reference", "onnxruntime", "openvino", "torch", "xla")


def kept(part: str, name: str) -> Path:
    """Give the place of what was found of a model."""
    folder: Path = zoo.home() / "results"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{part}.{name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["right", "speed", "table"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tag")
    parser.add_argument("--backends", default="")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--again", action="store_true", help="also what is kept already")
    parser.add_argument("--runs", type=int, default=8, help="of the oracle, to see a spread")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    names = args.names or [
        n for n, m in zoo.MODELS.items() if not args.tag or args.tag in m["tags"]
    ]
    if args.part == "table":
        from benchmarks.zoo_table import write

        write()
    elif args.child:
        from benchmarks.zoo_model import right, speed

        (name,) = names
        backends = tuple(args.backends.split(",")) if args.backends else ()
        found = (
            right(name, backends or ENGINES, args.first, args.runs)
            if args.part == "right"
            else speed(name, backends or ENGINES[1:3], args.seconds)
        )
        kept(args.part, name).write_text(json.dumps(found, indent=1))
    else:
        zoo.fetch(names)
        run_all(names, args)


def run_all(names: list[str], args: argparse.Namespace) -> None:
    """Run each model in a process of its own and say what came of it."""
    for position, name in enumerate(names, 1):
        if kept(args.part, name).exists() and not args.again:
            continue
        start = time.perf_counter()
        command = [sys.executable, str(HERE), args.part, name, "--child"]
        command += ["--backends", args.backends, "--seconds", str(args.seconds)]
        command += ["--runs", str(args.runs), *(["--first"] if args.first else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
        seconds = time.perf_counter() - start
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["?"])[-1]
            said = f"FAILED ({done.returncode}): {last}"
        else:
            said = shown(args.part, json.loads(kept(args.part, name).read_text()))
        print(f"[{position}/{len(names)}] {name:20} {seconds:6.1f} s  {said}", flush=True)


def shown(part: str, found: dict[str, Any]) -> str:
    """Say in a line what was found of a model."""
    if part == "speed":
        rows = found["engines"].items()
        return "  ".join(f"{b} {r.get('ratio', r.get('refused', ''))!s:.60}" for b, r in rows)
    sets = found["sets"]
    names = dict.fromkeys(engine for row in sets for engine in row["engines"])
    return "  ".join(
        f"{engine} {'/'.join(row['engines'].get(engine, {}).get('status', '-') for row in sets)}"
        for engine in names
    )


if __name__ == "__main__":
    main()
