"""``fusewire diff A.lock B.lock``: what was chosen otherwise."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from fusewire.bundling.locking import differences, read_lock
from fusewire.cli.check import drift_sheet
from fusewire.cli.terminal import Terminal

_LOCK = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("first", type=_LOCK)
@click.argument("second", type=_LOCK)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(first: Path, second: Path, as_json: bool) -> None:
    """Show the fields in which two lock files differ; exits with 1 if there are any."""
    one, other = read_lock(first), read_lock(second)
    names = sorted(one.keys() | other.keys())
    found = [row for name in names for row in differences(one.get(name), other.get(name))]
    if as_json:
        rows = [{**asdict(row), "first": row.locked, "second": row.found} for row in found]
        for row in rows:
            del row["locked"], row["found"]
        click.echo(json.dumps({"differences": rows}, indent=1))
    else:
        console = Terminal()
        console.show(drift_sheet(found, first.name, second.name))
        console.print(f"{len(found)} fields differ.", markup=False, highlight=False)
    sys.exit(1 if found else 0)
