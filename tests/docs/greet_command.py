"""A command as it would stand in the tree: a test copies this file to cli/greet.py."""

from __future__ import annotations

import json

import click

from fusewire.cli.terminal import Terminal
from fusewire.tables import Sheet


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """Say hello."""
    if as_json:
        click.echo(json.dumps({"hello": "world"}))
        return
    sheet = Sheet("hello")
    sheet.add("world")
    Terminal().print(sheet)
