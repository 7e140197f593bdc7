"""What does each engine prove of the ops, and what does it refuse?

    python benchmarks/conform.py [--backends xla,webgpu] [--helped xla] [--keep DIR] [--write FILE]

Runs `fusewire conform BACKEND --record` and, of those in --helped, `fusewire conform BACKEND
--fallback`, each in a process of its own, and writes one table of all. With --keep, what a run
reports is kept there and not run again. Exit 1 if a run found a problem.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.ops.declare import Trait
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.registry.capability import FLAGS

RESULTS = Path(__file__).parent / "results" / "conform.md"
OURS = "fusewire.backends."
Report = dict[str, Any]
DTYPES = ("bool", "int8", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64",
          "complex64")  # fmt: skip
# An op is elementwise by its declaration.
ELEMENTWISE = [name for name, op in all_ops().items() if op.is_(Trait.ELEMENTWISE)]


def run(name: str, folder: Path, *options: str) -> Report:
    """Run the command, unless its report is there."""
    path = folder / f"{name}{''.join(options)}.json"
    if not path.exists():
        print(f"conform {name} {' '.join(options)}", file=sys.stderr)
        command = [sys.executable, "-c", "from fusewire.cli import main; main()", "conform", name]
        subprocess.run([*command, *options, "-o", path], stdout=subprocess.DEVNULL, check=False)
    found: Report = json.loads(path.read_text(encoding="utf-8"))
    return found


def alone(report: Report) -> dict[str, object]:
    """Summarize a run without fallback, as a row."""
    counts, ops = report["counts"], report["ops"]
    proven = {row["op"]: row for row in ops if row["status"] == "proven"}
    everywhere = sum(len(row["proven"]) == row["dtypes"] for row in proven.values())
    pairs = [sum(len(row[key]) for row in ops) for key in ("proven", "declared")]
    return {
        "backend": report["backend"],
        "engine": report["version"],
        "tensor ops": report["of"],
        "taken whole": report["taken_natively"],
        "proven": counts["proven"],
        "share": f"{counts['proven'] / report['of']:.1%}",
        "natively": report["proven"]["native"],
        "by expansion": report["proven"]["expanded"],
        "in all dtypes": everywhere,
        "in part": counts["partial"],
        "refused": counts["refused"],
        "gap": counts["gap"],
        "failed": counts["failed"],
        "elementwise": f"{sum(name in proven for name in ELEMENTWISE)} of {len(ELEMENTWISE)}",
        "op and dtype": f"{pairs[0]:,} of {pairs[1]:,} of {sum(row['dtypes'] for row in ops):,}",
        "cases": f"{sum(report['cases'].values()):,}",
        "seconds": report["seconds"],
    }


def helped(report: Report) -> dict[str, object]:
    """Summarize a run with fallback, as a row."""
    counts = report["counts"]
    return {
        "backend": report["backend"],
        "ops": report["of"],
        "right": counts["proven"],
        "share": f"{counts['proven'] / report['of']:.1%}",
        "helped by the reference": report["proven"]["helped"],
        "gap": counts["gap"],
        "failed": counts["failed"],
        "cases": f"{sum(report['cases'].values()):,}",
        "seconds": report["seconds"],
    }


def families(reports: list[Report]) -> Iterator[dict[str, object]]:
    """Count by family what is proven, as rows."""
    names = dict.fromkeys(row["family"] for row in reports[0]["ops"])
    for name in names:
        row: dict[str, object] = {"family": name}
        for report in reports:
            own = [op for op in report["ops"] if op["family"] == name]
            row[report["backend"]] = sum(op["status"] == "proven" for op in own)
            row["of"] = len(own)
        yield row


def dtypes(reports: list[Report]) -> Iterator[dict[str, object]]:
    """Count by the dtype under test the ops that are proven in it, as rows."""
    for of in DTYPES:
        having = [name for name, op in all_ops().items() if of in {x.name for x in op.dtypes}]
        row: dict[str, object] = {"dtype": of}
        for report in reports:
            found = [op for op in report["ops"] if op["op"] in having]
            row[report["backend"]] = sum(_is_proven(op, of) for op in found)
            row["of"] = len(found)
        yield row


def _is_proven(op: dict[str, Any], of: str) -> bool:
    """Tell whether all that is declared of a dtype is proven, whatever else samples name."""
    declared, proven = (
        {x for x in op[key] if x.split()[0] == of} for key in ("declared", "proven")
    )
    return bool(declared) and declared <= proven


def flags(names: list[str]) -> Iterator[dict[str, object]]:
    """Tell what each backend was shown to hold, as rows."""
    held = {name: REGISTRY.capabilities(name) for name in names}
    for flag in FLAGS:
        yield {"flag": flag, **{n: "yes" if held[n][flag].is_held else "-" for n in names}}


def reasons(report: Report, *statuses: str) -> Iterator[str]:
    """List ops by the first reason that was given."""
    grouped: dict[str, list[str]] = {}
    for row in report["ops"]:
        if row["status"] in statuses:
            # Names of sizes are numbered, and differ from node to node.
            said = re.sub(r"\?u\d+", "?n", row["reason"])
            said = re.sub(rf"\b{row['op']}\b", "this op", said)
            grouped.setdefault(said, []).append(row["op"])
    for said, ops in sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"- {', '.join(ops)}: {said}"


def table(rows: list[dict[str, object]]) -> Iterator[str]:
    """Print rows as Markdown."""
    yield f"| {' | '.join(rows[0])} |"
    yield f"|{'---|' * len(rows[0])}"
    for row in rows:
        yield f"| {' | '.join(map(str, row.values()))} |"
    yield ""


def page(reports: list[Report], rescued: list[Report]) -> Iterator[str]:
    """Print it all."""
    devices = ", ".join(f"{r['backend']} on {r['device']}" for r in reports)
    yield "# What each engine proves of the ops\n"
    yield (
        f"`python benchmarks/conform.py`, {dt.date.today().isoformat()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores shared with other work, Python "
        f"{platform.python_version()}, NumPy {np.__version__}; {devices}.\n"
    )
    yield "## Without fallback\n"
    yield (
        "Every sample of every op in every dtype, on the engine alone; strings and sequences, "
        "which no engine has, are left out. An op is proven when every sample of every dtype that "
        "the backend takes is within the bound of the op against the float64 oracle; *in all "
        "dtypes*: of every dtype that the op has. *In part*: a sample is refused in a dtype of "
        "which others are taken. *Gap*: known to be wrong, with a reason. *Op and dtype*: proven, "
        "of declared, of all.\n"
    )
    yield from table([alone(report) for report in reports])
    yield "## With fallback\n"
    left = {report["backend"] for report in reports} - {report["backend"] for report in rescued}
    yield "Every op, strings and sequences too, by `fw.compile` with `fallback='allow'`." + (
        f" Not run: {', '.join(sorted(left))}.\n" if left else "\n"
    )
    yield from table([helped(report) for report in rescued])
    yield "## Proven, by family\n"
    yield from table(list(families(reports)))
    yield "## Proven, by dtype\n"
    yield "Ops that are proven in every sample of a dtype that is taken, of all that have it.\n"
    yield from table(list(dtypes(reports)))
    yield "## Capabilities\n"
    yield from table(list(flags([report["backend"] for report in reports])))
    for report in reports:
        for flag, found in REGISTRY.capabilities(report["backend"]).items():
            yield f"- {report['backend']}, {flag}: {found.reason}"
    for report in reports:
        for title, *statuses in (
            ("refuses", "refused"),
            ("takes in part", "partial"),
            ("has a gap in", "gap"),
            ("fails", "failed"),
        ):
            if lines := list(reasons(report, *statuses)):
                yield f"\n## What {report['backend']} {title}\n"
                yield from lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", help="names, with commas; ours by default")
    parser.add_argument("--helped", help="names to run with fallback as well; all by default")
    parser.add_argument("--keep", type=Path, help="a folder for what the runs report")
    parser.add_argument("--write", type=Path, default=RESULTS)
    given = parser.parse_args()
    backends = REGISTRY.backends
    ours = [n for n in backends.names() if backends.describe(n).reference.startswith(OURS)]
    names = given.backends.split(",") if given.backends else ours
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        reports = [run(name, folder, "--record") for name in names]
        aided = given.helped.split(",") if given.helped else names
        rescued = [run(name, folder, "--fallback") for name in aided]
    given.write.write_text("\n".join(page(reports, rescued)) + "\n", encoding="utf-8")
    problems = [problem for report in (*reports, *rescued) for problem in report["problems"]]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
