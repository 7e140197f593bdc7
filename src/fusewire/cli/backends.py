"""``fusewire backends``: which backends can run graphs here, and what stops the others."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from fusewire.cli.terminal import Terminal
from fusewire.contract.backend import Device
from fusewire.errors import ExtensionWarning, RegistryError
from fusewire.registry import REGISTRY
from fusewire.registry.capability import FLAGS

COLOURS = {"ready": "green", "unavailable": "yellow", "broken": "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """List every backend with its version and state, and what is missing."""
    rows = describe_all()
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        Terminal().print(table(rows), flags(rows))


def table(rows: list[dict[str, Any]]) -> Table:
    """Lay out backends as a table."""
    shown = Table(title="Backends", header_style="bold")
    for column in ("backend", "state", "engine", "devices", "from", "description, or what to do"):
        shown.add_column(column)
    for row in rows:
        state = f"[{COLOURS[row['state']]}]{row['state']}[/]"
        devices = ", ".join(device["id"] for device in row["devices"])
        about = escape(row["reason"] or row["description"])
        said = " ".join([about, *map(_said, row["extensions"])])
        origin = f"{row['distribution']} {row['distribution_version']}".strip()
        shown.add_row(row["name"], state, row["version"], devices, origin, said)
    return shown


def flags(rows: list[dict[str, Any]]) -> Table:
    """Lay out the proven capabilities of each backend; `--json` has the reasons."""
    shown = Table(title="Proven by `fusewire conform BACKEND --record`", header_style="bold")
    shown.add_column("capability")
    held = {row["name"]: _held(row) for row in rows if row["capabilities"]}
    for name in held:
        shown.add_column(name, justify="center")
    for flag in FLAGS:
        shown.add_row(flag, *("[green]yes[/]" if flag in own else "-" for own in held.values()))
    return shown


def _held(row: dict[str, Any]) -> set[str]:
    return {found["flag"] for found in row["capabilities"] if found["is_held"]}


def _said(extension: dict[str, Any]) -> str:
    if extension["problem"] is not None:
        return f"[red]{escape(extension['name'] + ' did not start: ' + extension['problem'])}[/]"
    return escape(f"{extension['name']} adds {', '.join(extension['ops'])}.")


def describe_all() -> list[dict[str, Any]]:
    """Describe every backend; engines are imported in parallel, each in its own child process."""
    with warnings.catch_warnings(), ThreadPoolExecutor() as threads:
        # The rows say what the warning would.
        warnings.simplefilter("ignore", ExtensionWarning)
        return list(threads.map(describe, REGISTRY.backends.names()))


def describe(name: str) -> dict[str, Any]:
    """Describe one backend as plain data."""
    plugin = REGISTRY.backends.describe(name)
    met = REGISTRY.meet(name)
    row: dict[str, Any] = {
        "name": name,
        "reference": plugin.reference,
        "distribution": plugin.distribution,
        "distribution_version": plugin.version,
        "version": "",
        "description": "",
        "vendor": "",
        "devices": [_device(x) for x in met.devices],
        "reason": met.reasons,
        "state": "broken" if met.is_broken else "ready" if met.devices else "unavailable",
        "extensions": [asdict(x) for x in met.extensions],
        "capabilities": [],
    }
    try:
        info = REGISTRY.get(name).info
    except RegistryError:
        return row
    row["capabilities"] = [asdict(x) for x in REGISTRY.capabilities(name).values()]
    return row | {"version": info.version, "description": info.description, "vendor": info.vendor}


def _device(device: Device) -> dict[str, Any]:
    return {
        "id": device.id,
        "name": device.name,
        "is_software": device.is_software,
        "facts": dict(device.facts),
    }
