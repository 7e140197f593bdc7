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
from rich.progress import track

from fusewire.cli.terminal import Terminal
from fusewire.contract.backend import Backend, Device
from fusewire.contract.region import first_device
from fusewire.ops.declare import Op
from fusewire.ops.table import known_ops
from fusewire.registry import REGISTRY
from fusewire.registry.capability import (
    ConformanceRecord,
    Shown,
    path_of,
    records_of,
    with_record,
    write_records,
)
from fusewire.tables import Column, Sheet, styled
from fusewire.testing.conformance import cases, in_share, sliced
from fusewire.testing.constants import constant_cases, constant_outcomes, constant_problems
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
# Ops that are named for each reason of a refusal.
_FEW = 4


@click.command()
@click.argument("backend")
@click.option("--device", "place", help="Device to test, such as cuda:0 (default: the first).")
@click.option("--slice", "part", default="1/1", help="Run a fixed share of the cases, such as 1/8.")
@click.option("--op", "names", multiple=True, help="Op to test (default: all).")
@click.option(
    "--fallback", is_flag=True, help="Run refused ops on the reference; all must be right."
)
@click.option("--record", is_flag=True, help="Write the result beside the backend's code.")
@click.option("--all", "is_all", is_flag=True, help="List every op, proven and refused ones too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Also write the JSON to this file."
)
def command(
    backend: str,
    place: str | None,
    part: str,
    names: tuple[str, ...],
    fallback: bool,
    record: bool,
    is_all: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Run every sample of every op on a backend, in every dtype, without fallback.

    Constants of every dtype, of 0 to 100,000 elements, are run as well.

    Exits with 1 if the backend claims something and gets it wrong.
    """
    if record and (fallback or names or part != "1/1"):
        raise click.UsageError(
            "--record needs all ops and samples, without --op, --slice or --fallback."
        )
    runs = REGISTRY.get(backend)
    device = first_device(runs, place)
    start = time.perf_counter()
    rows, constants, problems = _run(runs, device, _chosen(names, fallback), part, fallback)
    problems += [f"{x.name}: {x.problem}" for x in REGISTRY.meet(backend).extensions if x.problem]
    report = _report(runs, device, rows, constants, problems)
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
        _print(report, is_all)
    sys.exit(1 if problems else 0)


def _chosen(names: tuple[str, ...], fallback: bool) -> list[Op[Any]]:
    """Choose ops on tensors; with fallback the others too, because the reference runs them."""
    ops = known_ops()
    if unknown := [name for name in names if name not in ops]:
        raise click.UsageError(f"Unknown op: {', '.join(unknown)}. `fusewire ops` lists all ops.")
    found = [op for op in ops.values() if fallback or is_tensor_op(op)]
    return [op for op in found if not names or op.name in names]


def _run(
    runs: Backend, device: Device, chosen: list[Op[Any]], part: str, fallback: bool
) -> tuple[list[OpReport], Counter[str], list[str]]:
    share = Fraction(part)
    rows: list[OpReport] = []
    problems: list[str] = []
    for op in track(chosen, "conform", console=Terminal(stderr=True), transient=True):
        found = sliced([c for c in cases([op]) if fallback or c.is_numeric], share)
        more, wrong = (reports_with_fallback if fallback else reports)(runs, device, found)
        rows += more
        problems += wrong
    constants, lost = _constants(runs, device, [] if fallback else chosen, share)
    return rows, constants, problems + lost


def _constants(
    runs: Backend, device: Device, chosen: list[Op[Any]], share: Fraction
) -> tuple[Counter[str], list[str]]:
    """Run the constants that the chosen ops use; count them by result."""
    names = {op.name for op in chosen}
    found = [c for c in constant_cases() if c.reader in names and in_share(c.id, share)]
    outcomes = constant_outcomes(runs, device, found)
    counts = Counter(str(outcome.status) for outcome in outcomes.values())
    return counts, constant_problems(runs, device, outcomes)


def _report(
    runs: Backend,
    device: Device,
    rows: list[OpReport],
    constants: Counter[str],
    problems: list[str],
) -> dict[str, Any]:
    statuses = Counter(row.status for row in rows)
    proven = Counter(row.form for row in rows if row.status == "proven")
    return {
        "backend": runs.info.name,
        "version": runs.info.version,
        "device": device.name,
        "device_id": device.id,
        "counts": {status: statuses[status] for status in COLOURS},
        "proven": {form: proven[form] for form in FORMS},
        "taken_natively": sum(row.counts["native"] > 0 for row in rows),
        "of": len(rows),
        "cases": sum((row.counts for row in rows), Counter()),
        "constants": constants,
        "problems": problems,
        "ops": [_described(row) for row in rows],
    }


def _described(row: OpReport) -> dict[str, Any]:
    return {
        "op": row.op.name,
        "family": row.op.family,
        "status": row.status,
        "form": row.form,
        "dtypes": len({case.dtypes for case in row.results}),
        "declared": row.dtypes(proven=False),
        "proven": row.dtypes(proven=True),
        "cases": row.counts,
        "reason": row.reason,
    }


def _record(runs: Backend, device: Device, rows: list[OpReport], shown: dict[str, Shown]) -> None:
    name = runs.info.name
    reference = REGISTRY.backends.describe(name).reference
    path = path_of(reference)
    if path is None:
        raise click.ClickException(f"{name} has no folder to write the record to.")
    partial = [row for row in rows if row.status == "partial"]
    new = ConformanceRecord(
        name,
        runs.info.version,
        device.name,
        dt.date.today().isoformat(),
        {row.op.name: row.status for row in rows if row.status != "refused"},
        shown,
        {row.op.name: tuple(_alone(row.dtypes(proven=True))) for row in partial},
        device.id,
    )
    is_first = device.id == first_device(runs).id
    records = with_record(records_of(name, reference), new, is_first=is_first)
    path.write_text(write_records(records), encoding="utf-8")
    Terminal(stderr=True).print(f"Recorded in {path}.")


def _alone(dtypes: list[str]) -> list[str]:
    """Leave out combinations of dtypes."""
    return [name for name in dtypes if " " not in name]


def _print(report: dict[str, Any], is_all: bool) -> None:
    console = Terminal()
    console.show(_counts(report))
    if report["constants"]:
        console.print("Constants:", _listed(report["constants"]))
    for sheet in (_ops(report, is_all), None if is_all else _refused(report)):
        if sheet is not None:
            console.print()
            console.show(sheet)
    for problem in report["problems"]:
        console.show(styled(problem, "red"))


def _counts(report: dict[str, Any]) -> Sheet:
    """Count the ops by status."""
    place = f"{report['device_id']} ({report['device']})"
    device = f"{report['backend']} {report['version']} on {place}"
    title = f"{device}: {report['of']} ops in {report['seconds']} s"
    number = Column("ops", align="right")
    sheet = Sheet("status", number, Column("share", align="right"), "form", title=title)
    for status, count in report["counts"].items():
        forms = ", ".join(f"{n} {form}" for form, n in report["proven"].items() if n)
        share = f"{count / max(1, report['of']):.1%}"
        said = forms if status == "proven" else ""
        sheet.add(styled(status, COLOURS[status]), str(count), share, said)
    return sheet


def _ops(report: dict[str, Any], is_all: bool) -> Sheet | None:
    """List the ops that are neither proven nor refused, or all of them."""
    quiet = () if is_all else ("proven", "refused")
    rows = [row for row in report["ops"] if row["status"] not in quiet]
    sheet = Sheet("op", "status", "dtypes", Column("reason", "prose"), Column("cases", "extra"))
    for row in rows:
        counted = _listed(row["cases"])
        dtypes = f"{len(row['proven'])} of {row['dtypes']}"
        status = styled(row["status"], COLOURS[row["status"]])
        sheet.add(row["op"], status, dtypes, row["reason"], counted)
    return sheet if rows else None


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _refused(report: dict[str, Any]) -> Sheet | None:
    """Group the refused ops by reason: one sentence often stands for hundreds."""
    refused = [row for row in report["ops"] if row["status"] == "refused"]
    grouped: dict[str, list[str]] = {}
    for row in refused:
        # Reasons name the op; without it they are the same sentence.
        grouped.setdefault(row["reason"].replace(row["op"], "OP"), []).append(row["op"])
    sheet = Sheet(
        Column("ops", align="right"),
        Column("refused because", "prose"),
        Column("such as", "prose"),
        title=f"{len(refused)} refused ops, by reason",
        caption="--all lists every op",
    )
    for reason, names in sorted(grouped.items(), key=lambda item: -len(item[1])):
        said = reason if len(names) > 1 else reason.replace("OP", names[0])
        sheet.add(str(len(names)), said, ", ".join(names[:_FEW]))
    return sheet if refused else None
