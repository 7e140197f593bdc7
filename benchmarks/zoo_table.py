"""Write results/zoo.md of what zoo.py found."""

from __future__ import annotations

import datetime as dt
import json
import math
import platform
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

# Put on the path by zoo.py.
zoo: Any = import_module("zoo")
PAGE = Path(__file__).with_name("results") / "zoo.md"
ENGINES = ("bare onnxruntime", "reference", "onnxruntime", "openvino", "torch", "xla")
LIBRARIES = ("fusewire", "numpy", "onnx", "onnxruntime", "openvino", "torch", "jax")


def write() -> None:
    """Write the page."""
    right, speed = ({n: _read(part, n) for n in zoo.MODELS} for part in ("right", "speed"))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    PAGE.write_text("\n".join([
        "# The zoo: 35 trained models", "",
        "Written by `python benchmarks/zoo.py table`, after `right` and `speed`. "
        f"{today}, {platform.machine()}, {versions}.", "",
        *_right(right), *_shapes(right), *_refusals(right), *_speed(speed),
    ]) + "\n")  # fmt: skip
    print(PAGE)


def _read(part: str, name: str) -> dict[str, Any] | None:
    path = zoo.home() / "results" / f"{part}.{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    head = list(head)
    lines = [head, ["---"] * len(head), *(list(map(str, row)) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["status"] == "refused":
        return "refused"
    more = [f"{row['error']:.2g}"]
    if row.get("codes"):
        more.append(f"{row['codes']} codes differ")
    if row.get("host"):
        more.append(f"{row['host']} by host")
    return f"{row['status']} ({', '.join(more)})"


def _right(found: dict[str, Any]) -> list[str]:
    done = {name: of for name, of in found.items() if of}
    counts = []
    for engine in ENGINES:
        sets = [of["sets"][0]["engines"].get(engine, {}) for of in done.values()]
        kinds = [row.get("status") for row in sets]
        fell = [of["sets"][0]["engines"].get(f"{engine} + fallback", {}) for of in done.values()]
        more = sum(row.get("status") == "right" for row in fell)
        counts.append([
            engine, *(kinds.count(kind) for kind in ("right", "wrong", "cannot say", "refused")),
            kinds.count("right") + more if engine in ENGINES[2:] else "",
        ])  # fmt: skip
    head = ["", "right", "wrong", "cannot say", "refused", "right with fallback"]
    rows = [
        [name, of["sets"][0]["nodes"], *(_cell(of["sets"][0]["engines"].get(e)) for e in ENGINES)]
        for name, of in done.items()
    ]
    return [
        "## Right", "",
        f"{len(done)} models at their own shapes, without fallback: every node that works on model "
        "data runs on the named engine; control flow and sizes that the host does are counted in "
        "nodes. The oracle judges all of them, ONNX Runtime run bare on the file among them; the "
        "number is the largest error over what the model's own rounding allows.", "",
        *_table(head, counts), *_table(["model", "nodes", *ENGINES], rows),
    ]  # fmt: skip


def _shapes(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, of in found.items():
        if of is None or len(of["sets"]) < 3:
            continue
        more = of["sets"][1:]
        cells = []
        for engine in ENGINES:
            made = [row["engines"].get(engine, {"status": "-"}) for row in more]
            said = "/".join(dict.fromkeys(row["status"] for row in made))
            times = [row["first call"] for row in made if "first call" in row]
            cells.append(f"{said} {max(times) * 1e3:.0f} ms" if times else said)
        rows.append([name, *cells])
    return [
        "## Other shapes", "",
        f"{len(rows)} dynamic models at two further shapes each, with the slower first call at a "
        "new shape, by the same program or session.", "", *_table(["model", *ENGINES], rows),
    ]  # fmt: skip


def _refusals(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, of in found.items():
        for number, row in enumerate(of["sets"] if of else ()):
            for engine, said in row["engines"].items():
                if said["status"] != "right" and not (number and said["status"] == "refused"):
                    reason = " ".join(said.get("reason", "").split())[:400].replace("|", "/")
                    rows.append([name, number, engine, said["status"], reason])
    return ["## What was not right", "", *_table(
        ["model", "inputs", "engine", "verdict", "reason"], rows
    )]  # fmt: skip


def _speed(found: dict[str, Any]) -> list[str]:
    lines = ["## No tax", "", (
        "Fusewire on an engine over that engine run bare on the file: same threads, spinning and "
        "precision, interleaved, medians. A/A is the bare engine over itself in the same run. "
        "Compile is reading, importing, compiling in a child and loading; load is the engine's own "
        "from file to ready."
    ), ""]  # fmt: skip
    for engine in ("onnxruntime", "openvino"):
        rows, ratios = [], []
        for name, of in found.items():
            row = (of or {}).get("engines", {}).get(engine)
            if row is None:
                continue
            if "refused" in row:
                rows.append([name, " ".join(row["refused"].split())[:160].replace("|", "/")])
                continue
            ratios.append(row["ratio"])
            rows.append([
                name, f"{row['bare'] * 1e3:.3f}", f"{row['ours'] * 1e3:.3f}",
                f"{row['ratio']:.3f}", f"{row['noise']:.3f}", f"{row['spread']:.1%}",
                f"{row['load']:.2f}", f"{row['compile']:.2f}",
            ])  # fmt: skip
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines += [
                f"**{engine}**: {len(ratios)} models, geometric mean {mean:.3f}, "
                f"largest {max(ratios):.3f}.", "",
            ]  # fmt: skip
        head = ["model", "bare ms", "ours ms", "ratio", "A/A", "spread", "load s", "compile s"]
        lines += _table(head, ([*row, *[""] * (len(head) - len(row))] for row in rows))
    return lines
