"""What rows of engines.py come to: the means, what choosing gains, and a table of all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.options import LONG_BUDGET

ENGINES = ("onnxruntime", "openvino", "torch", "inductor", "xla", "numpy")
# The geometric mean of all rows may be this.
BAR = 1.02
# An engine that takes this many times as long as ours is a cliff.
CLIFF = 5.0
RESAMPLES = 2000
HEAD = ("row", *(f"{name} ms" for name in ENGINES), "chosen", "ours ms", "over best", "interval",
        "A/A", "over the same", "verdict")  # fmt: skip
Row = Mapping[str, Any]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Give the means, the speed-ups and the cliffs."""
    timed = [row for row in rows if "ratio" in row]
    verdicts = [row["verdict"] for row in rows]
    halves = {
        "all": timed,
        "workloads": [row for row in timed if not row["is_zoo"]],
        "zoo": [row for row in timed if row["is_zoo"]],
    }
    means = {half: _mean([row["ratio"] for row in part]) for half, part in halves.items() if part}
    return {
        "rows": len(rows), "verdicts": {x: verdicts.count(x) for x in sorted(set(verdicts))},
        "geometric_mean": means, "worst": max((row["ratio"] for row in timed), default=0.0),
        "wins": {engine: _wins(timed, engine) for engine in ENGINES},
        "speedup": {engine: _speedup(timed, engine) for engine in ENGINES},
        "left_out": _left_out(timed),
        "cliffs": _cliffs(timed),
        "passes": bool(rows) and set(verdicts) == {"pass"} and means.get("all", math.inf) <= BAR,
    }  # fmt: skip


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _speedup(rows: Sequence[Row], engine: str) -> dict[str, Any]:
    """Tell how much an engine that is used everywhere loses to what was chosen before."""
    logs = [
        math.log(row["bare"][engine]["seconds"] / row["ours"]["seconds"])
        for row in rows
        if engine in row["bare"]
    ]
    if not logs:
        return {"rows": 0}
    drawn = np.random.default_rng(0).choice(logs, (RESAMPLES, len(logs))).mean(1)
    low, high = np.exp(np.percentile(drawn, [2.5, 97.5]))
    return {
        "rows": len(logs), "refused": len(rows) - len(logs),
        "times": math.exp(sum(logs) / len(logs)), "interval": (float(low), float(high)),
    }  # fmt: skip


def _wins(rows: Sequence[Row], engine: str) -> dict[str, Any]:
    """Tell where an engine is the best of those run bare, how far ahead, and where it was chosen.

    Rows that have no other engine to be ahead of count as won, and not in the mean.
    """
    won, leads = [], []
    for row in rows:
        times = sorted((time["seconds"], name) for name, time in row["bare"].items())
        if times[0][1] == engine:
            won.append(row["name"])
            leads += [times[1][0] / times[0][0]] if len(times) > 1 else []
    return {
        "rows": won, "of": sum(engine in row["bare"] for row in rows),
        "lead": _mean(leads) if leads else None, "most": max(leads, default=None),
        "chosen": sum(row["choice"]["backend"] == engine for row in rows),
    }  # fmt: skip


def _left_out(rows: Sequence[Row]) -> dict[str, Any]:
    """Tell how far Inductor is ahead of ours where the budget left it out of the choice."""
    found = [
        row["ours"]["seconds"] / row["bare"]["inductor"]["seconds"]
        for row in rows
        if "inductor" in row["bare"] and row["budget"] < LONG_BUDGET
    ]
    ahead = [times for times in found if times > 1]
    if not found:
        return {}
    return {"rows": len(ahead), "of": len(found), "lead": _mean(ahead) if ahead else None}


def _cliffs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = [
        {"row": row["name"], "engine": engine, "times": time["seconds"] / row["ours"]["seconds"]}
        for row in rows
        for engine, time in row["bare"].items()
        if time["seconds"] >= CLIFF * row["ours"]["seconds"]
    ]
    return sorted(found, key=lambda cliff: -cliff["times"])


def _cells(row: Row) -> list[str]:
    if "ratio" not in row:
        return [row["name"], *[""] * (len(HEAD) - 2), f"{row['verdict']}: {row['because']}"]
    bare, backend = row["bare"], row["choice"]["backend"]
    times = []
    for engine in ENGINES:
        said = row["ready"].get(engine, {})
        far = row["apart"].get(engine, 0.0)
        refused = "" if engine == "numpy" else "refused"
        other = refused if "refused" in said else f"apart {far:.1g}" if said else ""
        times.append(_ms(bare[engine]["seconds"]) if engine in bare else other)
    same = row["ours"]["seconds"] / bare[backend]["seconds"] if backend in bare else None
    low, high = row["interval"]
    return [
        row["name"], *times, backend, _ms(row["ours"]["seconds"]), f"{row['ratio']:.3f}",
        f"{low:.3f}-{high:.3f}", "{:.3f}-{:.3f}".format(*row["aa_interval"]),
        f"{same:.3f}" if same else "", row["verdict"],
    ]  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _lines(found: Mapping[str, Any]) -> list[str]:
    """Say what a summary holds."""
    means = ", ".join(f"{half} {mean:.3f}" for half, mean in found["geometric_mean"].items())
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in found["verdicts"].items())
    lines = [
        f"{found['rows']} rows: {verdicts}. Ours over the best bare engine, geometric mean: "
        f"{means} (bar {BAR}); worst {found['worst']:.3f}."
    ]
    for engine, won in found["wins"].items():
        if won["of"]:
            ahead = f", {won['lead']:.2f} times ahead of the next" if won["lead"] else ""
            most = f" (at most {won['most']:.2f})" if won["lead"] else ""
            lines.append(
                f"{engine} is the best bare engine of {len(won['rows'])} of the {won['of']} rows "
                f"it runs{ahead}{most}; chosen for {won['chosen']}."
            )
    for engine, gain in found["speedup"].items():
        if gain["rows"]:
            low, high = gain["interval"]
            lines.append(
                f"Over {engine} everywhere, chosen before and paid here: {gain['times']:.2f} times "
                f"(95% interval {low:.2f}-{high:.2f}, {gain['rows']} rows, "
                f"{gain['refused']} without it)."
            )
    if ahead := found["left_out"]:
        lines.append(
            f"inductor, which a search of this budget leaves out because it compiles for half a "
            f"minute, is ahead of what was chosen in {ahead['rows']} of {ahead['of']} rows"
            + (f": {ahead['lead']:.2f} times, geometric mean." if ahead["rows"] else ".")
        )
    cliffs = "; ".join(f"{x['engine']} on {x['row']} {x['times']:.1f}" for x in found["cliffs"])
    return [*lines, f"Cliffs avoided, {CLIFF:.0f} times or more: {cliffs or 'none'}."]


def shown(rows: Sequence[Row], found: Mapping[str, Any]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if Console().is_terminal else 200)
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*_cells(row), style={"fail": "red", "unclear": "yellow"}.get(row["verdict"]))
    console.print(table)
    for line in _lines(found):
        console.print(line)


def page(rows: Sequence[Row], found: Mapping[str, Any]) -> str:
    """Write results/engines.md."""
    first = next(row for row in rows if "ratio" in row)
    ways = sorted({
        f"{who}: {said['way']}"
        for row in rows for who, said in row.get("ready", {}).items()
        if "way" in said and who != "fusewire"
    })  # fmt: skip
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    dates = " to ".join(dict.fromkeys((min(r["date"] for r in rows), max(r["date"] for r in rows))))
    body = [" | ".join(cells) for cells in (HEAD, ["---"] * len(HEAD), *map(_cells, rows))]
    refused = [
        f"- {row['name']}: {who}: {said['refused']}".replace("\n", " ")
        for row in rows for who, said in row.get("ready", {}).items()
        if "refused" in said and who != "numpy"
    ]  # fmt: skip
    return "\n".join([
        "# Does Fusewire pick the right engine?", "",
        f"Written by `python benchmarks/engines.py --page`. {dates}, {first['machine']}, "
        f"{first['threads']} threads, float32. {versions}.", "",
        "Each contestant in its own process, asked in turns for batches of 10 ms or one call, each "
        "when all are quiet. Engines run bare get the ONNX file; OpenVINO also with the sizes of "
        "the inputs fixed, where the file leaves them open; PyTorch, eager and compiled by "
        "Inductor, the steps that we make of it; XLA and NumPy the same function written for them, "
        "and none of the zoo. All get the same arrays, aligned at "
        f"{first['align']} bytes, and give arrays that the caller may keep. Fusewire chose in an "
        "earlier process with a cache that was empty but for Inductor's library, if that was "
        f"compiled before, and a budget of {first['budget']:.0f} s. A/A: the best bare engine in "
        "two processes. \"Over the same\": ours over the bare engine that was chosen. Intervals: "
        "95%, of the median. The quickest ways to call, row by row, were "
        f"{'; '.join(ways)}.", "",
        *(f"- {line}" for line in _lines(found)), "",
        "Outputs over 32 MB, against the same engine with new ones for each call: "
        "`benchmarks/outputs.py`.", "",
        *(f"| {line} |" for line in body), "",
        *(["What engines did not run:", "", *refused, ""] if refused else []),
    ])  # fmt: skip
