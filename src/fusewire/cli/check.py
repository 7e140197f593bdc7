"""``fusewire check``: compare a lock file with the bundles, models and engines that are here."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from fusewire.bundling.locking import LOCK, Drift, drifts, read_lock
from fusewire.cli.terminal import Terminal
from fusewire.store.key import apart
from fusewire.tables import Column, Sheet


@click.command()
@click.argument("lock", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=LOCK)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(lock: Path, as_json: bool) -> None:
    """Fail if anything differs from a lock file, and name the field.

    Nothing is compiled or measured: the bundles say what was chosen, and model files and installed
    engines are compared with that. Exits with 1 if a field differs.
    """
    count, found = len(read_lock(lock)), list(drifts(lock))
    if as_json:
        rows = [asdict(drift) for drift in found]
        click.echo(json.dumps({"lock": str(lock), "programs": count, "drifts": rows}, indent=1))
    else:
        console = Terminal()
        console.show(drift_sheet(found, "locked", "found"))
        same = "all as locked" if not found else f"{len(found)} fields differ"
        console.print(f"{count} programs: {same}.", markup=False, highlight=False)
    sys.exit(1 if found else 0)


def drift_sheet(rows: list[Drift], first: str, second: str) -> Sheet:
    """Lay out fields that differ, cut to where they do."""
    sheet = Sheet("program", "field", Column(first, "prose"), Column(second, "prose"))
    for row in rows:
        sheet.add(row.program, row.field, *apart(row.locked, row.found))
    return sheet
