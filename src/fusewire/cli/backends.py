"""``fusewire backends``: which backends can run graphs here, and what stops the others."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import click

from fusewire.cli.terminal import Terminal, wide_option
from fusewire.contract.backend import Device, Unavailable
from fusewire.errors import ExtensionWarning, RegistryError
from fusewire.registry import REGISTRY
from fusewire.registry.capability import FLAGS
from fusewire.tables import Column, Sheet, styled

COLOURS = {"ready": "green", "unavailable": "yellow", "broken": "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@wide_option
def command(as_json: bool, is_wide: bool) -> None:
    """List every backend with its version and state, and what is missing."""
    rows = describe_all()
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    console = Terminal()
    console.show(table(rows, is_wide=is_wide))
    console.print()
    console.show(flags(rows))
    console.print()
    console.show(options(rows))


def table(rows: list[dict[str, Any]], *, is_wide: bool = False) -> Sheet:
    """Lay out backends as a table."""
    sheet = Sheet(
        "backend",
        "state",
        "engine",
        Column("devices, or what to do", "prose"),
        Column("description", "extra"),
        Column("from", "extra"),
        title="Backends",
        is_wide=is_wide,
    )
    for row in rows:
        devices = ", ".join(device["id"] for device in row["devices"])
        ready = f"{devices}." if devices and row["reason"] else devices
        said = " ".join(filter(None, [ready, row["reason"], *map(_said, row["extensions"])]))
        origin = f"{row['distribution']} {row['distribution_version']}".strip()
        state = styled(row["state"], COLOURS[row["state"]])
        sheet.add(row["name"], state, row["version"], said, row["description"], origin)
    return sheet


def flags(rows: list[dict[str, Any]]) -> Sheet:
    """Lay out the proven capabilities of each backend; `--json` has the reasons."""
    held = {row["name"]: _held(row) for row in rows if row["capabilities"]}
    sheet = Sheet(
        "capability",
        *(Column(name, align="center") for name in held),
        title="Proven by `fusewire conform BACKEND --record`",
    )
    for flag in FLAGS:
        sheet.add(flag, *(styled("✓", "green") if flag in own else "-" for own in held.values()))
    return sheet


def options(rows: list[dict[str, Any]]) -> Sheet:
    """Lay out the options of each backend, which `backend_config` sets."""
    sheet = Sheet(
        "backend",
        "option",
        "default",
        Column("meaning", "prose"),
        title="Options: fw.compile(..., backend_config={...})",
    )
    for row in rows:
        for option in row["options"]:
            sheet.add(row["name"], option["name"], str(option["default"]), option["meaning"])
    return sheet


def _held(row: dict[str, Any]) -> set[str]:
    return {found["flag"] for found in row["capabilities"] if found["is_held"]}


def _said(extension: dict[str, Any]) -> str:
    if extension["problem"] is not None:
        return f"{extension['name']} did not start: {extension['problem']}"
    return f"{extension['name']} adds {', '.join(extension['ops'])}."


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
        "credits": REGISTRY.backends.credits(name),
        "version": "",
        "description": "",
        "vendor": "",
        "devices": [_device(x) for x in met.devices],
        "reason": met.reasons,
        "state": "broken" if met.is_broken else "ready" if met.devices else "unavailable",
        "extensions": [asdict(x) for x in met.extensions],
        "unavailable": [asdict(x) for x in met.found if isinstance(x, Unavailable)],
        "capabilities": [],
        "options": [],
    }
    try:
        backend = REGISTRY.get(name)
    except RegistryError:
        return row
    info = backend.info
    row["options"] = [asdict(option) for option in backend.options]
    row["capabilities"] = [asdict(x) for x in REGISTRY.capabilities(name).values()]
    return row | {"version": info.version, "description": info.description, "vendor": info.vendor}


def _device(device: Device) -> dict[str, Any]:
    return {
        "id": device.id,
        "name": device.name,
        "is_software": device.is_software,
        "facts": dict(device.facts),
    }
