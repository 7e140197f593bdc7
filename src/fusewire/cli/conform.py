"""``fusewire conform BACKEND``: what a backend declares, against what it can be shown to do."""

from __future__ import annotations

import json
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fusewire.ops.table import all_ops
from fusewire.region import first_device
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import cases, sliced
from fusewire.testing.suite import OpReport, is_tensor_op, reports

STATUSES = ("proven", "partial", "refused", "failed")
COLOURS = {"proven": "green", "partial": "yellow", "refused": "dim", "failed": "red"}


@click.command()
@click.argument("backend")
@click.option("--slice", "part", default="1/1", help="A fixed share of the cases, such as 1/8.")
@click.option("--op", "names", multiple=True, help="Only these ops.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the JSON here.")
def command(
    backend: str, part: str, names: tuple[str, ...], as_json: bool, output: Path | None
) -> None:
    """Run every op, sample and dtype on a backend, without fallback."""
    runs = REGISTRY.backends.get(backend)
    device = first_device(runs)
    chosen = [op for op in all_ops().values() if is_tensor_op(op)]
    chosen = [op for op in chosen if not names or op.name in names]
    rows: list[OpReport] = []
    problems: list[str] = []
    for op in track(chosen, "conform", console=Console(stderr=True), transient=True):
        found = sliced(list(cases([op])), Fraction(part))
        more, wrong = reports(runs, device, found)
        rows += more
        problems += wrong
    report = _report(backend, runs.info.version, rows, problems)
    if output is not None:
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        _print(report)
    sys.exit(1 if problems else 0)


def _report(backend: str, version: str, rows: list[OpReport], wrong: list[str]) -> dict[str, Any]:
    return {
        "backend": backend,
        "version": version,
        "counts": {status: Counter(r.status for r in rows)[status] for status in STATUSES},
        "of": len(rows),
        "cases": Counter(o.status for r in rows for o in r.outcomes.values()),
        "problems": wrong,
        "ops": [
            {
                "op": row.op.name,
                "status": row.status,
                "declared": row.dtypes(proven=False),
                "proven": row.dtypes(proven=True),
                "cases": Counter(o.status for o in row.outcomes.values()),
                "reason": row.reason,
            }
            for row in rows
        ],
    }


def _print(report: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f"{report['backend']} {report['version']}", header_style="bold")
    for column in ("op", "status", "declared", "proven", "cases", "first reason"):
        table.add_column(column)
    for row in report["ops"]:
        if row["status"] == "proven":
            continue
        status = f"[{COLOURS[row['status']]}]{row['status']}[/]"
        counted = ", ".join(f"{count} {name}" for name, count in row["cases"].items())
        sizes = str(len(row["declared"])), str(len(row["proven"]))
        table.add_row(row["op"], status, *sizes, counted, row["reason"])
    console.print(table)
    for status, count in report["counts"].items():
        share = count / max(1, report["of"])
        console.print(f"[{COLOURS[status]}]{status:8}[/] {count:4} of {report['of']}  {share:.1%}")
    for problem in report["problems"]:
        console.print(f"[red]{problem}[/]")
