"""``fusewire explain MODEL``: the plan and its reasons, for the whole model or for one node."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from fusewire.cli.comparison import configuration, seconds, table
from fusewire.cli.model import Inputs, compile_options, model_options, progress
from fusewire.cli.terminal import Terminal
from fusewire.compiler import ModelSource, Session
from fusewire.errors import FallbackWarning
from fusewire.options import Options
from fusewire.runtime.why import Contacted, NodeVerdict, NodeWhy, Tried, Why

# More regions, and longer sources, are not worth printing; --all and --json have all of them.
_MOST, _LONGEST = 20, 160


@click.command()
@model_options
@compile_options()
@click.option(
    "--node", metavar="N", help="Explain one node, by its place: 4, or 4.then.0 in a body."
)
@click.option(
    "--all", "is_all", is_flag=True, help="List every node instead of grouping them by op."
)
def command(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    as_json: bool,
    options: Options,
    node: str | None,
    is_all: bool,
) -> None:
    """Show how a model runs and why: what each engine says about each node."""
    source = ModelSource(str(model))
    inputs = Inputs.of(source, shapes, files, options.seed)
    with warnings.catch_warnings(), progress() as show:
        # The report shows everything that is warned about.
        warnings.simplefilter("ignore", FallbackWarning)
        program = Session(replace(options, progress=show)).program(source)
        program.run(*inputs.values.values())
    why = program.why()
    explained = None if node is None else why.node(node)
    if as_json:
        click.echo(json.dumps(why.to_data() if explained is None else asdict(explained), indent=1))
    elif explained is not None:
        _print_node(explained)
    else:
        _print(model, why, is_all)


def _print(model: Path, why: Why, is_all: bool) -> None:
    console = Terminal()
    title = f"{model.name} on {why.backend} ({why.device}): {len(why.nodes)} nodes"
    if why.tried:
        console.print(table(_candidates(why), f"Candidates for {model.name}"))
    for candidate in why.tried:
        if candidate.tuned:
            console.print(_kernels(candidate))
    console.print(_regions(why, title, len(why.regions) if is_all else _MOST))
    console.print(_listed(why) if is_all else _grouped(why))
    for line in _remarks(why, is_all):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _kernels(candidate: Tried) -> Table:
    shown = Table(title=f"Kernels of {candidate.name}", header_style="bold")
    for column in ("kernel", "runs", "configuration", "speedup", "cache"):
        shown.add_column(column, justify="right" if column in ("runs", "speedup") else "left")
    for kernel in candidate.tuned:
        chosen = configuration(kernel) if kernel["is_other"] else "default"
        speedup = f"{kernel['gain']:.2f}"
        texts = kernel["name"], str(kernel["count"]), chosen, speedup, kernel["cache"]
        shown.add_row(*map(escape, texts))
    return shown


def _candidates(why: Why) -> list[dict[str, Any]]:
    """List the candidates, each with the ratio of its time to the fastest."""
    rows = [asdict(candidate) for candidate in why.tried]
    least = min((row["seconds"] for row in rows if row["seconds"]), default=1.0)
    return [{**row, "ratio": row["seconds"] and row["seconds"] / least} for row in rows]


def _regions(why: Why, title: str, most: int) -> Table:
    left = len(why.regions) - most
    caption = f"and {left} more; --all lists them" if left > 0 else None
    shown = Table(title=title, header_style="bold", caption=caption)
    for column in (
        "region",
        "backend",
        "device",
        "nodes",
        "shapes",
        "outcome",
        "compile",
        "first run",
        "memory",
        "cache",
    ):
        shown.add_column(column, justify="right" if column == "nodes" else "left")
    contacts = {contact.region: contact for contact in why.contacts}
    for region in why.regions[:most]:
        about = region.name, region.backend, region.device, str(region.nodes), region.shapes
        shown.add_row(*map(escape, (*about, *_contact(contacts.get(region.name)))))
    return shown


def _contact(contact: Contacted | None) -> Iterator[str]:
    if contact is None:
        yield from ["not run", "", "", "", ""]
        return
    metrics, outcome = contact.metrics, contact.outcome
    yield outcome if outcome == "ready" else f"{outcome}: on {contact.runs_on}"
    for name in ("compile_seconds", "run_seconds"):
        yield seconds(metrics[name]) if name in metrics else ""
    yield f"{metrics['peak_bytes'] / 1e6:,.0f} MB" if "peak_bytes" in metrics else ""
    yield contact.cache if contact.cache in ("", "hit", "off") else "miss"


def _backends(why: Why) -> list[str]:
    return list(dict.fromkeys(x.backend for node in why.nodes for x in node.verdicts))


def _marks(node: NodeWhy, backends: list[str]) -> tuple[str, ...]:
    """Say in one word what each backend answers about a node."""
    verdicts = {verdict.backend: verdict for verdict in node.verdicts}
    return tuple(_word(verdicts[name]) if name in verdicts else "" for name in backends)


def _word(verdict: NodeVerdict) -> str:
    if not verdict.is_offered:
        return f"[yellow]{verdict.code}[/]"
    return "[red]wrong[/]" if verdict.status == "wrong" else "[green]takes[/]"


def _grouped(why: Why) -> Table:
    backends = _backends(why)
    shown = Table(title="Nodes, by op", header_style="bold")
    for column in ("op", "count", "work", "runs on", *backends):
        shown.add_column(column, justify="right" if column == "count" else "left")
    groups = Counter((n.op, n.work, n.backend, _marks(n, backends)) for n in why.nodes)
    for (op, work, backend, marks), count in groups.most_common():
        shown.add_row(op, str(count), work, backend, *marks)
    return shown


def _listed(why: Why) -> Table:
    backends = _backends(why)
    shown = Table(title="Nodes", header_style="bold")
    for column in ("node", "op", "types", "region", "runs on", *backends):
        shown.add_column(column)
    for node in why.nodes:
        about = node.place, node.op, ", ".join(node.types), node.region, node.backend
        shown.add_row(*map(escape, about), *_marks(node, backends))
    return shown


def _remarks(why: Why, is_all: bool) -> Iterator[str]:
    """Write what does not fit a table: refusals by reason, expansions, contacts, notes."""
    refusals = Counter(
        (verdict.backend, verdict.reason)
        for node in why.nodes
        for verdict in node.verdicts
        if not verdict.is_offered
    )
    for (backend, reason), count in refusals.most_common():
        yield f"{backend} refuses {count} of {len(why.nodes)} nodes: {reason}"
    for part in why.expanded:
        yield f"{part.backend} gets {part.op} expanded: {part.reason}"
    for contact in why.contacts:
        if contact.reason:
            yield f"{contact.region}: {contact.reason} {contact.suggestion}".rstrip()
    missed = [c for c in why.contacts if c.cache not in ("", "hit", "off")]
    for contact in missed if is_all else missed[:1]:
        yield f"{contact.region} is not in the cache. {contact.cache}"
    for candidate in why.tried:
        if candidate.reason:
            yield f"{candidate.name}: {candidate.status}. {candidate.reason}"
    yield from why.notes
    for work, counts in why.counts().items():
        if counts:
            each = ", ".join(f"{count} on {name}" for name, count in counts.items())
            yield f"nodes on {work}: {each}"


def _print_node(node: NodeWhy) -> None:
    console = Terminal()
    shown = Table(title=f"node {node.place}: {node.op}", header_style="bold")
    for column in ("backend", "claim", "verdict", "whole model", "error", "cache", "reason"):
        shown.add_column(column)
    for verdict in node.verdicts:
        took = "" if verdict.seconds is None else seconds(verdict.seconds)
        error = "" if verdict.error is None else f"{verdict.error:.2g}"
        reason = f"{verdict.reason} {verdict.suggestion}".strip()
        texts = map(escape, (verdict.status, took, error, verdict.cache, reason))
        shown.add_row(verdict.backend, _word(verdict), *texts)
    console.print(shown)
    lines = {
        "types": ", ".join(node.types),
        "from": node.source[:_LONGEST],
        "works on": node.work,
        "runs on": node.backend,
        "in": node.region,
    }
    for name, line in lines.items():
        console.print(f"{name:9} {line}", markup=False, highlight=False, soft_wrap=True)
