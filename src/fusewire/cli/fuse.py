"""``fusewire fuse MODEL``: which nodes become one kernel, and why others do not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fusewire.cli.model import model_options, read_sized
from fusewire.cli.terminal import Terminal
from fusewire.compiler import Session
from fusewire.fusing.fuse import fuse
from fusewire.fusion.grouping import Fusion, Group
from fusewire.session.model_source import ModelSource
from fusewire.tables import Column, Sheet

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
    for sheet in _sheets(report, all_groups):
        console.show(sheet)
        console.print()


def _sheets(report: dict[str, Any], all_groups: bool) -> Iterator[Sheet]:
    counts = [Column(name, align="right") for name in ("before", "after", "least")]
    title = f"{Path(report['model']).name}: {report['nodes']['given']} nodes"
    sheet = Sheet("", *counts, title=title)
    sheet.add("kernels", *(str(report["kernels"][key]) for key in ("before", "after")), "1")
    sheet.add(
        "MB moved", *(f"{report['bytes'][key] / 1e6:,.2f}" for key in ("before", "after", "least"))
    )
    yield sheet
    yield _patterns(report)
    if all_groups:
        yield _groups(report)
    reasons = Counter(found["reason"] for found in report["refused"])
    title = f"{reasons.total()} fusions refused"
    refused = Sheet(Column("", align="right"), Column("because", "prose"), title=title)
    for reason, count in reasons.most_common():
        refused.add(str(count), reason)
    yield refused


def _patterns(report: dict[str, Any]) -> Sheet:
    counts = [Column(name, align="right") for name in ("kernels", "nodes", "MB moved")]
    sheet = Sheet("pattern", *counts)
    for name, count in report["patterns"].items():
        mine = [group for group in report["groups"] if group["pattern"] == name]
        moved = sum(group["bytes"] for group in mine) / 1e6
        sheet.add(name, str(count), str(sum(g["nodes"] for g in mine)), f"{moved:,.2f}")
    return sheet


def _groups(report: dict[str, Any]) -> Sheet:
    sheet = Sheet("pattern", Column("ops", "prose"), Column("outputs", "prose"))
    for group in report["groups"]:
        ops = group["ops"][:_MOST_OPS] + ["..."] * (len(group["ops"]) > _MOST_OPS)
        sheet.add(group["pattern"], " ".join(ops), ", ".join(group["outputs"]))
    return sheet
