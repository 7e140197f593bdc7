"""Write results/modules.md from what `benchmarks/module_doors.py` kept.

What the tables show is kept beside the page, in modules.json: a run of some modules, or of one
part, leaves the other rows as they were. Each row has its date.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("results") / "modules.md"
ROWS = PAGE.with_suffix(".json")
PACKAGES = ("torch", "numpy", "onnxruntime", "openvino", "jax", "transformers")
# Below this, a call is mostly overhead, which is given in microseconds instead.
SHORT = 1e-4
Row = dict[str, Any]


# What no table shows, and takes the most room.
_LONG = {"steps", "samples", "trace"}


def write(folder: Path) -> None:
    """Add what a folder has to the rows, and write the page."""
    rows: dict[str, dict[str, Row]] = json.loads(ROWS.read_text())
    for path in sorted(folder.glob("*.json")):
        part, name = path.name.removesuffix(".json").split(".", 1)
        found = _short(json.loads(path.read_text()))
        rows[part][name] = {"date": str(date.fromtimestamp(path.stat().st_mtime)), **found}
    rows = {part: dict(sorted(of.items())) for part, of in rows.items()}
    ROWS.write_text(json.dumps(rows, indent=1) + "\n")
    tables = {"right": right_table, "doors": doors_table, "time": time_table, "first": first_table}
    parts = [tables[part](of) for part, of in rows.items() if of]
    PAGE.write_text("\n\n".join([heading(), *parts]) + "\n")


def _short(row: Row) -> Row:
    return {
        key: _short(value) if isinstance(value, dict) else value
        for key, value in row.items()
        if key not in _LONG
    }


def heading() -> str:
    """Say what was run, when, and on what."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    cores = len(os.sched_getaffinity(0))
    return (
        "# PyTorch modules\n\n"
        f"`python benchmarks/module_doors.py`, {date.today()}, Python {platform.python_version()}, "
        f"{versions}, {platform.system()} {platform.machine()}, {cores} cores."
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not here"


def _table(head: Iterable[str], body: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in body]
    return "\n".join(lines)


def right_table(found: dict[str, Row]) -> str:
    """Show what the oracle said of each engine, with the nodes on fallback."""
    if not found:
        return ""
    engines = list(dict.fromkeys(e for row in found.values() for e in row.get("engines", {})))
    body = []
    for name, row in found.items():
        if "engines" not in row:
            body.append([f"`{name}`", "", row["said"], *[""] * len(engines)])
            continue
        cells = [_engine(row["engines"].get(engine)) for engine in engines]
        body.append([f"`{name}`", row["nodes"], f"{row['held']['error']:.0e}", *cells])
    count = sum(row["ok"] for row in found.values())
    said = (
        f"{count} of {len(found)} are right on every engine with fallback. *Held* is the largest "
        "difference of the oracle and eager in float64, over the largest number of an output. "
        "A cell is the number of nodes that ran on fallback. *Doubtful* is off by less than ten "
        "tolerances; where images are resized, PyTorch in float32 is as far off as ONNX Runtime: "
        "both compute places in float32."
    )
    return f"## Engines\n\n{said}\n\n" + _table(["module", "nodes", "held", *engines], body)


def _engine(row: Row | None) -> str:
    if row is None or row["status"] == "not here":
        return ""
    return str(row["fallback"]) if row["status"] == "right" else f"{row['status']}"


def doors_table(found: dict[str, Row]) -> str:
    """Show what came through each door."""
    if not found:
        return ""
    body = []
    for name, row in found.items():
        cells = [row.get(door, row).get("said", "") for door in ("fw.compile", "torch.compile")]
        graphs = row.get("torch.compile", {}).get("graphs", [])
        body.append([f"`{name}`", *cells, "/".join(map(str, graphs))])
    count = sum(row["ok"] for row in found.values())
    said = (
        f"{count} of {len(found)} are right through both doors, in the first call and settled, at "
        "every size. *Graphs* counts those that Dynamo had compiled after each call; for the "
        "settled calls everything is compiled once more."
    )
    head = ["module", "`fw.compile`", "`torch.compile`", "graphs"]
    return f"## Doors\n\n{said}\n\n" + _table(head, body)


def time_table(found: dict[str, Row]) -> str:
    """Show the settled programs over the better of eager and Inductor."""
    timed = {name: row for name, row in found.items() if "medians" in row}
    if not timed:
        return ""
    body, ratios = [], []
    for name, row in timed.items():
        best = row["medians"][row["best"]]
        cells = [_ratio(row, door, best) for door in ("fw.compile", "torch.compile")]
        if best >= SHORT:
            ratios += [row["ratios"].get("torch.compile", math.nan)]
        ours = ", ".join(dict.fromkeys(row["settled on"]["fw.compile"]))
        ways = ("eager", "dynamo", "inductor")
        times = [_milliseconds(row["medians"].get(x)) for x in ways]
        body.append([f"`{name}`", ours, *times, *cells, f"{row['noise']:.3f}"])
    logs = [math.log(x) for x in ratios if x == x]
    mean = math.exp(sum(logs) / len(logs)) if logs else math.nan
    said = (
        f"Over the better of eager and Inductor, {len(logs)} modules of 0.1 ms or more: geometric "
        f"mean {mean:.3f}. Those below show microseconds more than the better one."
    )
    head = ["module", "settled on", "eager, ms", "Dynamo alone", "Inductor", "`fw.compile`"]
    return f"## Times\n\n{said}\n\n" + _table([*head, "`torch.compile`", "A/A"], body)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"


def _ratio(row: Row, door: str, best: float) -> str:
    if door not in row["ratios"]:
        return "failed"
    if best < SHORT:
        return f"{(row['medians'][door] - best) * 1e6:+.0f} us"
    return f"{row['ratios'][door]:.3f}"


def first_table(found: dict[str, Row]) -> str:
    """Show the first calls."""
    timed = {name: row for name, row in found.items() if "least" in row}
    if not timed:
        return ""
    body = []
    for name, row in timed.items():
        least = row["least"]
        over = least["torch.compile"] / least["dynamo eager"]
        body.append([f"`{name}`", *(f"{x * 1e3:.0f}" for x in least.values()), f"{over:.2f}"])
    head = ["module", "eager", "`fw.compile`", "Dynamo alone", "`torch.compile`", "over Dynamo"]
    said = "Milliseconds in a fresh process with an empty cache, the least of several."
    return f"## First call\n\n{said}\n\n" + _table(head, body)
