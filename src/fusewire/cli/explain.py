"""``fusewire explain MODEL``: the plan and its reasons, for the whole model or for one node."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import click

from fusewire.cli.advice import for_commands
from fusewire.cli.comparison import configuration
from fusewire.cli.model import Inputs, compile_options, model_options
from fusewire.cli.progress import progress
from fusewire.cli.sizes import with_usual_sizes
from fusewire.cli.terminal import Terminal, wide_option
from fusewire.compiler import Session
from fusewire.errors import FallbackWarning
from fusewire.options import Options
from fusewire.session.model_source import ModelSource
from fusewire.show.plan_view import PlanView
from fusewire.show.report import candidates, reasons, regions, seconds, summary, with_ratios
from fusewire.show.why import NodeVerdict, NodeWhy, Tried, Why
from fusewire.tables import Column, Sheet

# More regions, and longer sources, are not worth printing; --all and --json have all of them.
_MOST, _LONGEST = 20, 160
# What stands for a backend that takes a node.
_TAKES = "✓"


@dataclass(frozen=True)
class _File:
    """A file that the command writes in place of printing; it takes the model's path, too."""

    help: str
    write: Callable[[PlanView, Path, Path], None]


_FILES = {
    "html": _File(
        "Write a page that shows the plan; it works offline.",
        lambda view, model, path: view.save_html(path),
    ),
    "dot": _File(
        "Write the graph in Graphviz's DOT language.",
        lambda view, model, path: view.save_dot(path),
    ),
    "model_explorer": _File(
        "Write the graph as JSON for Model Explorer.",
        lambda view, model, path: view.save_model_explorer(path),
    ),
    "node_data": _File(
        "Write node data for Model Explorer: the engine of each node.",
        lambda view, model, path: view.save_node_data(path),
    ),
    "onnx": _File(
        "Copy the model with engines and reasons in its nodes, as Netron shows them.",
        lambda view, model, path: view.save_onnx(model, path),
    ),
}


def _files(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that write files."""
    for name, file in reversed(_FILES.items()):
        option = f"--{name.replace('_', '-')}"
        path = click.Path(dir_okay=False, path_type=Path)
        command = click.option(option, name, type=path, metavar="FILE", help=file.help)(command)
    return command


@click.command()
@model_options
@compile_options()
@click.option(
    "--node", metavar="N", help="Explain one node, by its place: 4, or 4.then.0 in a body."
)
@click.option(
    "--all", "is_all", is_flag=True, help="List every node instead of grouping them by op."
)
@_files
@wide_option
def command(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    as_json: bool,
    options: Options,
    node: str | None,
    is_all: bool,
    is_wide: bool,
    **paths: Path | None,
) -> None:
    """Show how a model runs and why: what each engine says about each node."""
    source = ModelSource(str(model))
    use = partial(_view, source, options)
    view = with_usual_sizes(source, shapes, files, options, use)
    why = view.why
    explained = None if node is None else why.node(node)
    written = {name: path for name, path in paths.items() if path is not None}
    for name, path in written.items():
        _FILES[name].write(view, model, path)
    if as_json:
        data = view.to_data() if explained is None else asdict(explained)
        click.echo(json.dumps(data, indent=1))
    elif explained is not None:
        _print_node(explained, is_wide)
    elif not written:
        _print(model, view, is_all, is_wide)


def _view(source: ModelSource, options: Options, inputs: Inputs) -> PlanView:
    """Run a model some times, and return how it runs and why."""
    with warnings.catch_warnings(), progress() as show:
        # The report shows everything that is warned about.
        warnings.simplefilter("ignore", FallbackWarning)
        program = Session(replace(options, progress=show)).program(source)
        arguments = tuple(inputs.values.values())
        program.run(*arguments)
        return program.explain(*arguments)


def _print(model: Path, view: PlanView, is_all: bool, is_wide: bool) -> None:
    console, why = Terminal(), view.why
    console.print(f"{model.name} on {summary(why)}", style="bold", markup=False, highlight=False)
    for sheet in _sheets(why, is_all, is_wide):
        console.print()
        console.show(sheet)
    console.print()
    for line in (*_remarks(why, is_all), *(change.sentence() for change in view.changes)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _sheets(why: Why, is_all: bool, is_wide: bool) -> Iterator[Sheet]:
    if why.tried:
        rows = with_ratios([asdict(candidate) for candidate in why.tried])
        yield candidates(rows, "Candidates", is_wide=is_wide)
    for candidate in why.tried:
        if candidate.tuned:
            yield _kernels(candidate)
    yield regions(why, "Regions", most=len(why.regions) if is_all else _MOST, is_wide=is_wide)
    yield _listed(why, is_wide) if is_all else _grouped(why, is_wide)


def _kernels(candidate: Tried) -> Sheet:
    sheet = Sheet(
        "kernel",
        Column("runs", align="right"),
        Column("configuration", "prose"),
        Column("speedup", align="right"),
        "cache",
        title=f"Kernels of {candidate.name}",
    )
    for kernel in candidate.tuned:
        chosen = configuration(kernel) if kernel["is_other"] else "default"
        speedup = f"{kernel['gain']:.2f}"
        sheet.add(kernel["name"], str(kernel["count"]), chosen, speedup, kernel["cache"])
    return sheet


def _refusals(node: NodeWhy) -> str:
    """Say which backends do not run a node, and why in a word."""
    words = ((verdict.backend, _word(verdict)) for verdict in node.verdicts)
    return ", ".join(f"{backend} ({word})" for backend, word in words if word != _TAKES)


def _word(verdict: NodeVerdict) -> str:
    if not verdict.is_offered:
        return verdict.code
    return "wrong" if verdict.status == "wrong" else _TAKES


def _grouped(why: Why, is_wide: bool) -> Sheet:
    sheet = Sheet(
        "op",
        Column("count", align="right"),
        "runs on",
        Column("not on", "prose"),
        Column("works on", "extra"),
        title="Nodes, by op",
        is_wide=is_wide,
    )
    groups = Counter((n.op, n.work, n.backend, _refusals(n)) for n in why.nodes)
    for (op, work, backend, refusals), count in groups.most_common():
        sheet.add(op, str(count), backend, refusals, work)
    return sheet


def _listed(why: Why, is_wide: bool) -> Sheet:
    sheet = Sheet(
        "node",
        "op",
        "runs on",
        Column("types", "prose"),
        Column("not on", "prose"),
        Column("region", "extra"),
        title="Nodes",
        is_wide=is_wide,
    )
    for node in why.nodes:
        types = ", ".join(node.types)
        sheet.add(node.place, node.op, node.backend, types, _refusals(node), node.region)
    return sheet


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
    yield from map(for_commands, reasons([asdict(candidate) for candidate in why.tried]))
    yield from why.notes
    if why.crossings:
        many = "tensor is" if why.crossings == 1 else "tensors are"
        yield f"{why.crossings} {many} handed over between backends"
    for work, counts in why.counts().items():
        if counts:
            each = ", ".join(f"{count} on {name}" for name, count in counts.items())
            yield f"nodes on {work}: {each}"


def _print_node(node: NodeWhy, is_wide: bool) -> None:
    console = Terminal()
    sheet = Sheet(
        "backend",
        "claim",
        "verdict",
        Column("whole model", align="right"),
        Column("error", align="right"),
        Column("reason", "prose"),
        Column("cache", "extra"),
        title=f"node {node.place}: {node.op}",
        is_wide=is_wide,
    )
    for verdict in node.verdicts:
        took = "" if verdict.seconds is None else seconds(verdict.seconds)
        error = "" if verdict.error is None else f"{verdict.error:.2g}"
        reason = f"{verdict.reason} {verdict.suggestion}".strip()
        claim, cache = _word(verdict), verdict.cache
        sheet.add(verdict.backend, claim, verdict.status, took, error, reason, cache)
    console.show(sheet)
    lines = {
        "types": ", ".join(node.types),
        "from": node.source[:_LONGEST],
        "works on": node.work,
        "runs on": node.backend,
        "in": node.region,
    }
    for name, line in lines.items():
        console.print(f"{name:9} {line}", markup=False, highlight=False, soft_wrap=True)
