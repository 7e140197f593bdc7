"""``fusewire devices``: every device that a graph can run on, with its properties."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape

from fusewire.cli.backends import describe_all
from fusewire.cli.device_facts import Measured, best, known, measure
from fusewire.cli.terminal import Terminal
from fusewire.planning.policy import TargetFinder, interprets, why_left_out
from fusewire.planning.target import Target
from fusewire.process.child import CAN_ISOLATE
from fusewire.process.machine import machine
from fusewire.registry import REGISTRY
from fusewire.tables import Column, Sheet

# The time for finding and measuring all devices.
SECONDS = 55.0
# These get columns of their own once they are measured.
FIGURES = {"bandwidth_gb_s": "GB/s", "gflops": "GFLOP/s", "call_us": "us/call"}


@click.command()
@click.option(
    "--measure", "is_measured", is_flag=True, help="Measure each device, in a minute for all."
)
@click.option("--backend", "names", multiple=True, help="Backend to list (default: all).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(is_measured: bool, names: tuple[str, ...], as_json: bool) -> None:
    """List the devices of every backend, with their properties, and those that cannot be used."""
    end = time.monotonic() + SECONDS
    described = [row for row in describe_all() if not names or row["name"] in names]
    targets = _targets([row["name"] for row in described if row["devices"]])
    found = _measured(targets, bool(names), end) if is_measured else [_known(x) for x in targets]
    first = best(found) if is_measured and found else None
    rows = [{**_row(item), "is_best": item is first} for item in found]
    rows += [_unavailable(row["name"], x) for row in described for x in row["unavailable"]]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    _print(rows, is_measured)


def _targets(names: Sequence[str]) -> list[Target]:
    finder = TargetFinder(REGISTRY, isolate=CAN_ISOLATE)
    return [target for name in names for target in finder.targets(name)]


def _known(target: Target, missing: Mapping[str, str] = {}) -> Measured:
    return Measured(target.name, known(target), missing=missing)


def _measured(targets: Sequence[Target], is_named: bool, end: float) -> list[Measured]:
    """Measure devices in turn, each for its share of the time that is left."""
    skipped = {} if is_named else {id(x): why for x in targets if (why := _why_skipped(x))}
    left = len(targets) - len(skipped)
    found = []
    for target in targets:
        if id(target) in skipped:
            found.append(_known(target, {"all": skipped[id(target)]}))
            continue
        seconds = max(0.0, end - time.monotonic()) / left
        found.append(measure(target, seconds=seconds))
        left -= 1
    return found


def _why_skipped(target: Target) -> str:
    """Say why a device is not measured unless its backend is named."""
    if interprets(target):
        return "It interprets kernels, for debugging."
    return why_left_out(target.backend.info) if target.backend.info.is_slow else ""


def _row(item: Measured) -> dict[str, Any]:
    row = asdict(item)
    return {
        "backend": item.backend,
        "state": "ready",
        **row["device"],
        "hints": row["hints"],
        "missing": row["missing"],
    }


def _unavailable(backend: str, found: Mapping[str, str]) -> dict[str, Any]:
    """Describe what cannot be used, under the keys of what can."""
    about = {"id": found["device"], "name": "", "is_software": False, "facts": {}}
    why = {"code": found["code"], "reason": found["reason"], "fix": found["fix"]}
    lacks = {"hints": {}, "missing": {}, "is_best": False}
    return {"backend": backend, "state": "unavailable", **about, **lacks, **why}


def _print(rows: list[dict[str, Any]], is_measured: bool) -> None:
    console = Terminal()
    figures = FIGURES if is_measured else {}
    sheet = Sheet(
        "device",
        "backend",
        Column("name", "prose"),
        *(Column(shown, align="right") for shown in figures.values()),
        title="Devices",
    )
    lacking = [row for row in rows if row["state"] == "unavailable"]
    rows = [row for row in rows if row["state"] == "ready"]
    rows = sorted(rows, key=lambda row: (row["id"], row["backend"]))
    for row in rows:
        name = f"{row['name']} (software)" if row["is_software"] else row["name"]
        mark = " (best)" if row["is_best"] else ""
        numbers = [str(row["facts"].get(key, "-")) for key in figures]
        sheet.add(row["id"] + mark, row["backend"], name, *numbers)
    console.show(sheet)
    host = machine()
    console.print()
    console.print(f"[bold]This machine:[/] {escape(_said(host))}", highlight=False)
    for row in rows:
        facts = {k: v for k, v in row["facts"].items() if k not in figures and k not in host}
        hints = f" [bold]Hints:[/] {escape(_said(row['hints']))}" if row["hints"] else ""
        about = f"[bold]{row['backend']} on {row['id']}:[/] {escape(_said(facts))}{hints}"
        console.print(about, highlight=False)
    for row in lacking:
        name = " on ".join(filter(None, (row["backend"], row["id"])))
        said = escape(f"{row['reason']} {row['fix']}")
        console.print(f"[bold yellow]{name} cannot be used:[/] {said}", highlight=False)


def _said(facts: Mapping[str, Any]) -> str:
    """Join facts into one line."""
    many = {k: " ".join(map(str, v)) for k, v in facts.items() if isinstance(v, tuple | list)}
    return ", ".join(f"{key} {many.get(key, value)}" for key, value in facts.items())
