"""``fusewire devices``: every place a graph can run on."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from fusewire.cli.backends import describe_all


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """List the devices of every backend, with what is known of them."""
    rows = [
        {"backend": row["name"], **device} for row in describe_all() for device in row["devices"]
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(title="Devices", header_style="bold")
    for column in ("device", "backend", "name", "facts"):
        table.add_column(column)
    for row in sorted(rows, key=lambda row: (row["id"], row["backend"])):
        name = f"{row['name']} (software)" if row["is_software"] else row["name"]
        facts = ", ".join(f"{key} {value}" for key, value in row["facts"].items())
        table.add_row(row["id"], row["backend"], name, facts)
    Console().print(table)
