"""``fusewire fuse MODEL``: which nodes become one kernel, and why others do not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from fusewire.cli.model import model_options, read_sized
from fusewire.cli.terminal import Terminal
from fusewire.compiler import ModelSource, Session
from fusewire.fusing import fuse
from fusewire.fusion.grouping import Fusion, Group

# Longer lists of ops are truncated in tables; --json has all of them.
_MOST_OPS = 6


@click.command()
@model_options
@click.option("--backend", help="Fuse what this backend runs (default: what our kernels can).")
@click.option("--groups", "all_groups", is_flag=True, help="List every group.")
def command(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    seed: int,
    as_json: bool,
    backend: str | None,
    all_groups: bool,
) -> None:
    """Show which nodes of a model become one kernel, and why others do not."""
    graph = read_sized(ModelSource(model), shapes, files, seed)
    fusion = fuse(Session().rewrite(graph), backend)
    report = {"model": str(model), **describe(fusion)}
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        _print(report, all_groups)


def describe(fusion: Fusion) -> dict[str, Any]:
    """Describe a fusion as plain data."""
    return {
        "nodes": {"given": len(fusion.given.nodes), "primitive": len(fusion.graph.nodes)},
        "kernels": {"before": fusion.before.launches, "after": fusion.after.launches},
        "bytes": {
            "before": fusion.before.bytes,
            "after": fusion.after.bytes,
            "least": fusion.least,
        },
        "patterns": dict(fusion.patterns),
        "groups": [_group(group) for group in fusion.groups],
        "refused": [
            {"node": found.node.op, "user": found.user.op, "reason": found.reason}
            for found in fusion.refused
        ],
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "pattern": group.pattern,
        "ops": [node.op for node in group.origins],
        "nodes": len(group.nodes),
        "outputs": [str(value.type) for value in group.outputs],
        "bytes": group.work.bytes,
    }


def _print(report: dict[str, Any], all_groups: bool) -> None:
    console = Terminal()
    title = f"{report['model']}: {report['nodes']['given']} nodes"
    table = Table(title=title, header_style="bold")
    for column in ("", "before", "after", "least"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("kernels", *(str(report["kernels"][key]) for key in ("before", "after")), "1")
    table.add_row(
        "MB moved", *(f"{report['bytes'][key] / 1e6:,.2f}" for key in ("before", "after", "least"))
    )
    console.print(table, markup=False)
    console.print(_patterns(report), markup=False)
    if all_groups:
        console.print(_groups(report), markup=False)
    reasons = Counter(found["reason"] for found in report["refused"])
    refused = Table(title=f"{reasons.total()} fusions refused", header_style="bold")
    refused.add_column("", justify="right")
    refused.add_column("because")
    for reason, count in reasons.most_common():
        refused.add_row(str(count), reason)
    console.print(refused, markup=False)


def _patterns(report: dict[str, Any]) -> Table:
    table = Table(header_style="bold")
    for column in ("pattern", "kernels", "nodes", "MB moved"):
        table.add_column(column, justify="left" if column == "pattern" else "right")
    for name, count in report["patterns"].items():
        mine = [group for group in report["groups"] if group["pattern"] == name]
        moved = sum(group["bytes"] for group in mine) / 1e6
        table.add_row(name, str(count), str(sum(g["nodes"] for g in mine)), f"{moved:,.2f}")
    return table


def _groups(report: dict[str, Any]) -> Table:
    table = Table(header_style="bold")
    for column in ("pattern", "ops", "outputs"):
        table.add_column(column)
    for group in report["groups"]:
        ops = group["ops"][:_MOST_OPS] + ["..."] * (len(group["ops"]) > _MOST_OPS)
        table.add_row(group["pattern"], " ".join(ops), ", ".join(group["outputs"]))
    return table
