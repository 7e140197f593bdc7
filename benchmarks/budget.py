"""Count how many benches of real models end within their budget: 1.25 times it, plus 2 seconds.

Each model of the zoo runs ``fusewire bench`` in a process of its own, with an empty cache and the
default budget; the seconds are those of the whole process.

    python benchmarks/budget.py --json /tmp/budget.json --page benchmarks/results/budget.md

A row that the JSON file has is not measured again; ``--only`` takes names, separated by commas.
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
from pathlib import Path
from typing import Any

ZOO = Path.home() / ".cache" / "fusewire-zoo"
BAR = 0.95


def bound(budget: float) -> float:
    """Return the seconds that a bench may take."""
    return 1.25 * budget + 2


def bench(model: Path, budget: float) -> dict[str, Any]:
    """Run the command on a model, and tell how long it took and what it compared."""
    command = [sys.executable, "-m", "fusewire", "bench", str(model), "--json"]
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--budget", f"{budget:g}"],
            env={**os.environ, "FUSEWIRE_CACHE": cache},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
    row: dict[str, Any] = {"name": model.stem, "seconds": seconds, "code": done.returncode}
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return {**row, "error": done.stderr.strip()[-300:]}
    timed = [x for x in report["rows"] if x["seconds"] is not None]
    left = [x for x in report["rows"] if x["status"] == "not tried"]
    about = {"comparing": report["seconds"], "compared": len(timed), "left_out": len(left)}
    return {**row, **about, "chosen": report["chosen"]}


def page(rows: list[dict[str, Any]], budget: float) -> str:
    """Write the results as a page."""
    within = [row for row in rows if row["seconds"] <= bound(budget)]
    share = len(within) / max(len(rows), 1)
    lines = [
        "# Benches within their budget",
        "",
        f"`python benchmarks/budget.py`, {time.strftime('%Y-%m-%d')}, Python "
        f"{platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores. `fusewire bench` with an empty cache and a budget of "
        f"{budget:g} s: the bound is {bound(budget):g} s for the whole process.",
        "",
        f"**{len(within)} of {len(rows)} models are within the bound: {share:.0%}; the bar of "
        f"{BAR:.0%} is {'met' if share >= BAR else 'missed'}.**",
        "",
        "| model | whole process | comparing | compared | not tried | chosen |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        shown = [row.get("comparing", ""), row.get("compared", ""), row.get("left_out", "")]
        cells = " | ".join(map(str, [*shown, row.get("chosen") or "none"]))
        lines.append(f"| `{row['name']}` | {row['seconds']:.1f} s | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Bench the models that have no row yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, help="file of rows; measured ones are kept")
    parser.add_argument("--page", type=Path, help="results page to write")
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds")
    given = parser.parse_args()
    known = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    models = {path.stem: path for path in sorted(ZOO.glob("*.onnx"))}
    for name in [x for x in models if not given.only or x in given.only.split(",")]:
        if name not in known:
            known[name] = bench(models[name], given.budget)
            print(json.dumps(known[name])[:200], flush=True)
            if given.json:
                given.json.write_text(json.dumps(known, indent=1))
    text = page([known[name] for name in models if name in known], given.budget)
    if given.page:
        given.page.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
