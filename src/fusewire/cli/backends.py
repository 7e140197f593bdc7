"""``fusewire backends``: what can run graphs here, and what stops the rest."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fusewire.backend import Device, Unavailable
from fusewire.registry import REGISTRY


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """List backends, installed and not, with versions and reasons."""
    rows = [describe(name) for name in REGISTRY.backends.names()]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(title="Backends", header_style="bold")
    for column in ("backend", "state", "engine", "devices", "from", "what it is, or what to do"):
        table.add_column(column)
    for row in rows:
        colour = "green" if row["state"] == "ready" else "yellow"
        state = f"[{colour}]{row['state']}[/]"
        devices = ", ".join(device["id"] for device in row["devices"])
        said = row["reason"] or row["description"]
        origin = f"{row['distribution']} {row['distribution_version']}".strip()
        table.add_row(row["name"], state, row["version"], devices, origin, said)
    Console().print(table)


def describe(name: str) -> dict[str, Any]:
    """Tell all about one backend, as plain data."""
    plugin = REGISTRY.backends.describe(name)
    row: dict[str, Any] = {
        "name": name, "reference": plugin.reference, "distribution": plugin.distribution,
        "distribution_version": plugin.version, "version": "", "description": "", "vendor": "",
        "devices": [],
    }  # fmt: skip
    problem = REGISTRY.backends.problem(name)
    if problem is not None:
        return {**row, "state": "broken", "reason": problem}
    backend = REGISTRY.backends.get(name)
    info = backend.info
    row |= {"version": info.version, "description": info.description, "vendor": info.vendor}
    found = backend.probe()
    row["devices"] = [_device(x) for x in found if isinstance(x, Device)]
    reasons = [f"{x.reason} {x.fix}" for x in found if isinstance(x, Unavailable)]
    state = "ready" if row["devices"] else "unavailable"
    return {**row, "state": state, "reason": " ".join(reasons)}


def _device(device: Device) -> dict[str, Any]:
    return {"id": device.id, "name": device.name, "is_software": device.is_software,
            "facts": dict(device.facts)}  # fmt: skip
