"""Does a plan of several engines (level 2) beat the best plan of one (level 1), and never lose?

    python benchmarks/splits.py                       the eight chains of chains.py
    python benchmarks/splits.py --only "tiny MLP" ppocr-rec    rows of engines.py
    python benchmarks/splits.py --rows all            the chains, the workloads and the zoo
    python benchmarks/splits.py --resume | --page     goes on where it was cut; writes the page

For each row, level 1 and level 2 choose in processes of their own, each with an empty cache, in
--budget seconds; how long they took is kept. Then two processes that recall the choices, and a
third with that of level 1 once more (A/A), are asked in turns for batches of 10 ms or one call. A
row passes if level 2 takes at most 1.03 times as long, or lies within the noise. Kept in
~/.cache/fusewire-splits, and written to results/splits.md by --page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

import numpy as np  # noqa: E402 - the path comes first

from benchmarks import chains  # noqa: E402
from benchmarks.contestants import Task  # noqa: E402
from benchmarks.engines import PACKAGES, machine, original, slug, zoo  # noqa: E402
from benchmarks.match import Match, Player, verdict  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402

HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fusewire-splits"
PAGE = ROOT / "benchmarks" / "results" / "splits.md"
BAR = 1.03
Row = dict[str, Any]


def begun(name: str, args: argparse.Namespace) -> Task:
    """Write the model and the inputs of a row into an empty folder."""
    folder = HOME / "work" / slug(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    if name in chains.CHAINS:
        path = folder / "model.onnx"
        inputs = chains.save(name, path)
    else:
        path, inputs = original(name)
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type] # names are the file's
    held = str(folder / "inputs.npz")
    return Task("fusewire", name, str(path), held, "", args.threads, budget=args.budget)


def started(task: Task, level: int, who: str) -> Player:
    """Start a process that chooses at a level, or recalls what one of that level chose."""
    folder = Path(task.inputs).parent
    cache = folder / f"level-{level}"
    cache.mkdir(exist_ok=True, mode=0o700)
    settings = {"FUSEWIRE_CACHE": str(cache), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    named = replace(task, level=level, outputs=str(folder / f"{who}.npz"))
    return Player(asdict(named), settings)


def measure(name: str, args: argparse.Namespace) -> Row:
    """Let both levels choose, then time the choices in turns."""
    task = begun(name, args)
    choices: dict[int, Mapping[str, Any]] = {}
    for level in (1, 2):
        with started(task, level, "choice") as chooser:
            choices[level] = chooser.ready
    row: Row = {"name": name, "choices": choices, "budget": args.budget, "machine": machine()}
    row |= {"versions": {x: version(x) for x in PACKAGES}, "date": time.strftime("%Y-%m-%d")}
    if refused := [x["refused"] for x in choices.values() if "refused" in x]:
        return {**row, "verdict": "fail", "because": refused[0]}
    players = {"level 1": started(task, 1, "one"), "fusewire": started(task, 2, "two")}
    try:
        match = Match(players)
        match.heats(["level 1"])
        players["again"] = started(task, 1, "again")
        match.final("level 1", players["again"], args.seconds)
        found = verdict(match)
        row |= {**match.found(), **found, "verdict": came(found)}
    finally:
        for player in players.values():
            player.close()
        shutil.rmtree(Path(task.inputs).parent, ignore_errors=True)
    return row


def came(found: Mapping[str, Any]) -> str:
    """Say whether a row loses: beyond the bar and beyond what level 1 differs from itself."""
    (low, high), noise = found["interval"], found["aa_interval"]
    if high <= BAR or found["ratio"] <= max(BAR, noise[1]):
        return "pass"
    return "unclear" if low <= max(BAR, noise[1]) else "fail"


def kept(name: str) -> Path:
    return HOME / "rows" / f"{slug(name)}.json"


def plan_of(choice: Mapping[str, Any]) -> str:
    """Name what was chosen."""
    return str(next((x["name"] for x in choice["tried"] if x["is_chosen"]), choice["backend"]))


def shown(row: Row) -> str:
    """Give a row of the table."""
    name = row["name"]
    if "ratio" not in row:
        return f"| {name} | | | | | | | {row['verdict']}: {row['because'][:120]} |"
    one, two = row["choices"]["1"], row["choices"]["2"]
    notes = [x for x in two["notes"] if "split" in x]
    gain = 1 / row["ratio"]
    ends = "-".join(f"{1 / x:.3f}" for x in reversed(row["interval"]))
    noise = "-".join(f"{x:.3f}" for x in row["aa_interval"])
    return (
        f"| {name} | {plan_of(one)} | {plan_of(two)} | {1e3 * row['ours']['seconds']:.3f} "
        f"| {gain:.3f} ({ends}) | {noise} | {one['ready']:.0f}, {two['ready']:.0f} "
        f"| {row['verdict']}. {' '.join(notes)} |"
    )


def page(rows: Sequence[Row]) -> str:
    """Write what all rows came to."""
    timed = [row for row in rows if "ratio" in row]
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in timed))
    counts = {x: sum(row["verdict"] == x for row in rows) for x in ("pass", "fail", "unclear")}
    versions = ", ".join(f"{x} {v}" for x, v in rows[-1]["versions"].items())
    head = [
        "# Is a plan of several engines faster than the best of one?",
        "",
        f"Written by `python benchmarks/splits.py --page`. {rows[-1]['date']}, "
        f"{rows[-1]['machine']}. {versions}.",
        "",
        "Speed of level 2 over level 1, each chosen in an earlier process and recalled here; A/A: "
        "level 1 in two processes. Intervals: 95%, of the median.",
        "",
        f"- {len(timed)} rows: {counts['pass']} pass, {counts['fail']} fail, "
        f"{counts['unclear']} unclear. Level 2 over level 1, time, geometric mean: {mean:.3f}.",
        "",
        "| row | level 1 | level 2 | ms | gain | A/A | chosen in s | came to |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *map(shown, rows), ""])


def run(names: Sequence[str], args: argparse.Namespace) -> None:
    """Measure rows one after the other, and keep each."""
    kept("").parent.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(names, 1):
        path = kept(name)
        if args.resume and path.exists() and json.loads(path.read_text())["verdict"] != "unclear":
            continue
        row = measure(name, args)
        path.write_text(json.dumps(row, indent=1))
        said = row.get("because") or f"{1 / row['ratio']:.3f} {row['verdict']}"
        print(f"[{place}/{len(names)}] {name}: {said}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rows", choices=["chains", "all"], default="chains")
    parser.add_argument("--seconds", type=float, default=6.0, help="of rounds, for a row")
    parser.add_argument("--budget", type=float, default=60.0, help="in which each level chooses")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="leave what is clear already")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    args = parser.parse_args()
    every = [*chains.CHAINS, *WORKLOADS, *zoo.MODELS]
    names = args.only or (every if args.rows == "all" else list(chains.CHAINS))
    if not args.page:
        run(names, args)
        return
    PAGE.write_text(page([json.loads(kept(x).read_text()) for x in every if kept(x).exists()]))


if __name__ == "__main__":
    main()
