"""``fusewire conform BACKEND``: compare what a backend declares with what it proves."""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from fusewire.cli.terminal import Terminal
from fusewire.contract.backend import Backend, Device
from fusewire.contract.region import first_device
from fusewire.ops.declare import Op
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.registry.capability import ConformanceRecord, Shown, path_of
from fusewire.testing.conformance import cases, sliced
from fusewire.testing.demonstration import demonstrate
from fusewire.testing.fallback import reports_with_fallback
from fusewire.testing.suite import OpReport, is_tensor_op, reports

COLOURS = {
    "proven": "green",
    "partial": "yellow",
    "refused": "dim",
    "gap": "magenta",
    "failed": "red",
}
FORMS = ("native", "expanded", "helped")


@click.command()
@click.argument("backend")
@click.option("--slice", "part", default="1/1", help="Run a fixed share of the cases, such as 1/8.")
@click.option("--op", "names", multiple=True, help="Op to test (default: all).")
@click.option(
    "--fallback", is_flag=True, help="Run refused ops on the reference; all must be right."
)
@click.option("--record", is_flag=True, help="Write the result beside the backend's code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Also write the JSON to this file."
)
def command(
    backend: str,
    part: str,
    names: tuple[str, ...],
    fallback: bool,
    record: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Run every sample of every op on a backend, in every dtype, without fallback.

    Exits with 1 if the backend claims something and gets it wrong.
    """
    if record and (fallback or names or part != "1/1"):
        raise click.UsageError(
            "--record needs all ops and samples, without --op, --slice or --fallback."
        )
    runs = REGISTRY.get(backend)
    device = first_device(runs)
    start = time.perf_counter()
    rows, problems = _run(runs, device, _chosen(names, fallback), Fraction(part), fallback)
    report = _report(runs, device, rows, problems)
    report |= {"fallback": fallback, "seconds": round(time.perf_counter() - start)}
    if record:
        shown = demonstrate(runs, device)
        report["shown"] = {flag: found.reason for flag, found in shown.items()}
        _record(runs, device, rows, shown)
    text = json.dumps(report, indent=1)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        click.echo(text)
    else:
        _print(report)
    sys.exit(1 if problems else 0)


def _chosen(names: tuple[str, ...], fallback: bool) -> list[Op[Any]]:
    """Choose ops on tensors; with fallback the others too, because the reference runs them."""
    ops = all_ops()
    if unknown := [name for name in names if name not in ops]:
        raise click.UsageError(f"Unknown op: {', '.join(unknown)}. `fusewire ops` lists all ops.")
    found = [op for op in ops.values() if fallback or is_tensor_op(op)]
    return [op for op in found if not names or op.name in names]


def _run(
    runs: Backend, device: Device, chosen: list[Op[Any]], part: Fraction, fallback: bool
) -> tuple[list[OpReport], list[str]]:
    rows: list[OpReport] = []
    problems: list[str] = []
    for op in track(chosen, "conform", console=Terminal(stderr=True), transient=True):
        found = sliced([c for c in cases([op]) if fallback or c.is_numeric], part)
        more, wrong = (reports_with_fallback if fallback else reports)(runs, device, found)
        rows += more
        problems += wrong
    return rows, problems


def _report(
    runs: Backend, device: Device, rows: list[OpReport], problems: list[str]
) -> dict[str, Any]:
    statuses = Counter(row.status for row in rows)
    proven = Counter(row.form for row in rows if row.status == "proven")
    return {
        "backend": runs.info.name,
        "version": runs.info.version,
        "device": device.name,
        "counts": {status: statuses[status] for status in COLOURS},
        "proven": {form: proven[form] for form in FORMS},
        "taken_natively": sum(row.counts["native"] > 0 for row in rows),
        "of": len(rows),
        "cases": sum((row.counts for row in rows), Counter()),
        "problems": problems,
        "ops": [_described(row) for row in rows],
    }


def _described(row: OpReport) -> dict[str, Any]:
    return {
        "op": row.op.name,
        "family": row.op.family,
        "status": row.status,
        "form": row.form,
        "dtypes": len({case.dtypes for case in row.outcomes}),
        "declared": row.dtypes(proven=False),
        "proven": row.dtypes(proven=True),
        "cases": row.counts,
        "reason": row.reason,
    }


def _record(runs: Backend, device: Device, rows: list[OpReport], shown: dict[str, Shown]) -> None:
    name = runs.info.name
    path = path_of(REGISTRY.backends.describe(name).reference)
    if path is None:
        raise click.ClickException(f"{name} has no folder to write the record to.")
    statuses = {row.op.name: row.status for row in rows if row.status != "refused"}
    today = dt.date.today().isoformat()
    held = ConformanceRecord(name, runs.info.version, device.name, today, statuses, shown)
    path.write_text(held.to_text(), encoding="utf-8")
    Terminal(stderr=True).print(f"Recorded in {path}.")


def _print(report: dict[str, Any]) -> None:
    console = Terminal()
    title = f"{report['backend']} {report['version']} on {report['device']}"
    table = Table(title=escape(title), header_style="bold")
    for column in ("op", "status", "declared", "proven", "of", "cases", "first reason"):
        table.add_column(column)
    for row in report["ops"]:
        if row["status"] == "proven":
            continue
        status = f"[{COLOURS[row['status']]}]{row['status']}[/]"
        counted = ", ".join(f"{count} {name}" for name, count in row["cases"].items())
        sizes = (str(len(row["declared"])), str(len(row["proven"])), str(row["dtypes"]))
        table.add_row(row["op"], status, *sizes, counted, escape(row["reason"]))
    console.print(table)
    for status, count in report["counts"].items():
        forms = ", ".join(f"{n} {form}" for form, n in report["proven"].items() if n)
        share = f"{count / max(1, report['of']):.1%}"
        said = f"  ({forms})" if status == "proven" and forms else ""
        console.print(
            f"[{COLOURS[status]}]{status:8}[/] {count:4} of {report['of']}  {share}{said}"
        )
    console.print(f"{report['seconds']} s")
    for problem in report["problems"]:
        console.print(f"[red]{escape(problem)}[/]")
