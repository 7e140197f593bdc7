"""``fusewire devices``: every device that a graph can run on, with its properties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape

from fusewire.cli.backends import describe_all
from fusewire.cli.terminal import Terminal
from fusewire.device_facts import Measured, best, known, measure
from fusewire.planning.policy import TargetFinder
from fusewire.planning.target import Target
from fusewire.process.child import CAN_ISOLATE
from fusewire.process.machine import machine
from fusewire.registry import REGISTRY
from fusewire.tables import Column, Sheet

# These get columns of their own once they are measured.
FIGURES = {"bandwidth_gb_s": "GB/s", "gflops": "GFLOP/s", "call_us": "us/call"}


@click.command()
@click.option(
    "--measure", "is_measured", is_flag=True, help="Measure each device (a few seconds each)."
)
@click.option("--backend", "names", multiple=True, help="Backend to list (default: all).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(is_measured: bool, names: tuple[str, ...], as_json: bool) -> None:
    """List the devices of every backend, with their properties."""
    found = [_found(target, is_measured) for target in _targets(names)]
    first = best(found) if is_measured and found else None
    rows = [{**_row(item), "is_best": item is first} for item in found]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    _print(rows, is_measured)


def _targets(names: tuple[str, ...]) -> list[Target]:
    ready = [row["name"] for row in describe_all() if row["devices"]]
    finder = TargetFinder(REGISTRY, isolate=CAN_ISOLATE)
    wanted = [name for name in ready if not names or name in names]
    return [target for name in wanted for target in finder.targets(name)]


def _found(target: Target, is_measured: bool) -> Measured:
    return measure(target) if is_measured else Measured(target.name, known(target))


def _row(item: Measured) -> dict[str, Any]:
    row = asdict(item)
    return {
        "backend": item.backend,
        **row["device"],
        "hints": row["hints"],
        "missing": row["missing"],
    }


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


def _said(facts: Mapping[str, Any]) -> str:
    """Join facts into one line."""
    many = {k: " ".join(map(str, v)) for k, v in facts.items() if isinstance(v, tuple | list)}
    return ", ".join(f"{key} {many.get(key, value)}" for key, value in facts.items())
