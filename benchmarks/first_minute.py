"""What does somebody see in the first minute after `pip install`?

    python benchmarks/first_minute.py [--model ppocr-rec] [--folder DIR]

Makes a clean virtual environment, builds the wheel and installs it with three engines from the
package index. Then, with an empty cache each: `fusewire bench` (at most 60 s on two quiet cores)
and `fusewire run`, whose first call compares the engines (at most 20 s), and once more when that is
remembered. Prints Markdown for benchmarks/results/first_minute.md. A folder that is given is kept,
and an environment in it used again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from fusewire.cli.comparison import markdown

ROOT = Path(__file__).parents[1]
EXTRAS = "onnx,onnxruntime,openvino,xla"
BENCH_SECONDS, DECIDE_SECONDS = 60.0, 20.0
sys.path.insert(0, str(ROOT / "benchmarks" / "zoo"))
zoo: Any = import_module("zoo")


def run(*words: object, cache: Path | None = None) -> tuple[str, float]:
    """Run a command as somebody would who has no settings; gives what it said, and the seconds."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FUSEWIRE", "PYTHON"))}
    if cache is not None:
        environment["FUSEWIRE_CACHE"] = str(cache)
    start = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in words], env=environment, stdout=subprocess.PIPE, text=True
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stdout}")
    return done.stdout, seconds


def install(folder: Path) -> dict[str, float]:
    """Make the environment; gives the seconds of each step."""
    python = folder / "venv" / "bin" / "python"
    if python.exists():
        return {}
    steps: dict[str, float] = {}
    _, steps["python -m venv"] = run(sys.executable, "-m", "venv", folder / "venv")
    _, steps["the wheel"] = run(
        python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "wheel", ROOT
    )
    (wheel,) = (folder / "wheel").glob("fusewire-*.whl")
    _, steps["pip install"] = run(python, "-m", "pip", "install", "-q", f"{wheel}[{EXTRAS}]")
    return steps


def shape_words(name: str) -> list[str]:
    """Say the shapes of a model's inputs, which the zoo knows."""
    made = zoo.inputs(name)
    shapes = (f"{k}={','.join(map(str, v.shape))}" for k, v in made.items())
    return [word for shape in shapes for word in ("--shape", shape)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ppocr-rec", help="a model of the zoo")
    parser.add_argument("--folder", type=Path, help="where the environment is kept")
    given = parser.parse_args()
    zoo.fetch([given.model])
    model, words = zoo.path(given.model), shape_words(given.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        steps = install(folder)
        command, caches = folder / "venv" / "bin" / "fusewire", Path(temporary)
        load = os.getloadavg()[0]
        said, took = run(command, "bench", model, *words, "--json", cache=caches / "one")
        report = json.loads(said)
        runs = []
        for _ in range(2):
            said, whole = run(command, "run", model, *words, "--json", cache=caches / "two")
            runs.append((json.loads(said)["first_seconds"], whole))
    (first, first_whole), (again, again_whole) = runs
    rows = [
        *((f"installing: {name}", seconds, None) for name, seconds in steps.items()),
        (f"fusewire bench {given.model}", took, BENCH_SECONDS),
        ("fusewire run: compare, choose, first answer", first, DECIDE_SECONDS),
        ("the same, the whole process", first_whole, None),
        ("fusewire run again: first answer", again, None),
        ("the same, the whole process", again_whole, None),
    ]
    print("| step | seconds | at most |\n|---|---:|---:|")
    for name, seconds, most in rows:
        print(f"| {name} | {seconds:.1f} | {'' if most is None else f'{most:.0f}'} |")
    print(f"\nLoad before bench: {load:.1f}.\n\n{markdown(report)}")
    sys.exit(any(most is not None and seconds > most for _, seconds, most in rows))


if __name__ == "__main__":
    main()
