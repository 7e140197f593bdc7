"""``fusewire show MODEL``: the inputs, outputs, ops, parameters and flops of a model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fusewire.cli.model import assume, model_options, read_graph
from fusewire.cli.terminal import Terminal
from fusewire.compiler import Session
from fusewire.errors import DimError
from fusewire.ir.dims import Dim, Symbol, evaluate, symbols
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.rewrite.fold import flops_of
from fusewire.session.model_source import ModelSource
from fusewire.tables import Column, Sheet

# Longer dim expressions are not worth printing.
_LONGEST = 120


@click.command()
@model_options
@click.option("--raw", is_flag=True, help="Show the graph as read, before rewriting.")
def command(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    seed: int,
    as_json: bool,
    raw: bool,
) -> None:
    """Show the inputs, outputs, ops, parameters, flops and dynamic dims of a model."""
    graph = read_graph(ModelSource(model), shapes, files)
    report = {"model": str(model), **describe(graph if raw else Session().rewrite(graph))}
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        _print(report)


def describe(graph: Graph) -> dict[str, Any]:
    """Describe a graph, bodies included, as plain data."""
    held = {v.constant.digest: v.constant for g in graph.walk() for v in g.constants if v.constant}
    known: dict[Symbol, int] = {}
    assumed = assume({v.name or "": v.type for v in graph.inputs}, known)
    work: Counter[str] = Counter()
    for node in graph.nodes:
        work[node.op] += _evaluated(flops_of(node, visit=0), known)
    counts = Counter(node.op for g in graph.walk() for node in g.nodes)
    types = [c.type for c in held.values()]
    sizes = [(t.size, t.dtype.bits) for t in types if isinstance(t.size, int)]
    return {
        "inputs": [_port(v.name or "", v) for v in graph.inputs],
        "outputs": [
            _port(name, v) for name, v in zip(graph.output_names, graph.outputs, strict=True)
        ],
        "nodes": sum(counts.values()),
        "ops": [{"op": op, "count": n, "flops": work[op]} for op, n in counts.most_common()],
        "constants": len(held),
        "parameters": sum(count for count, _ in sizes),
        "parameter_bytes": sum(count * bits // 8 for count, bits in sizes),
        "flops": work.total(),
        "flops_at": {dim: n for sizes in assumed.values() for dim, n in sizes.items()},
        "dynamic": _dynamic(graph),
    }


def _evaluated(flops: Dim, known: Mapping[Symbol, int]) -> int:
    """Evaluate at known sizes; what only a run determines counts as 0."""
    try:
        return evaluate(flops, known)
    except DimError:
        return 0


def _port(name: str, value: Value) -> dict[str, Any]:
    return {"name": name, "type": str(value.type)}


def _dynamic(graph: Graph) -> list[dict[str, Any]]:
    """List the dims that inputs determine, with their places, and those only a run determines."""
    told: dict[str, list[str]] = {}
    for value in graph.inputs:
        for axis, dim in enumerate(value.type.shape if isinstance(value.type, TensorType) else ()):
            for symbol in symbols(dim):
                told.setdefault(symbol.name, []).append(f"{value.name}[{axis}]")
    found: list[dict[str, Any]] = [{"dim": dim, "told_by": at} for dim, at in told.items()]
    types = [t for g in graph.walk() for n in g.nodes for t in n.types if isinstance(t, TensorType)]
    late = {s.key for t in types for dim in t.shape for s in symbols(dim) if s.unbacked}
    return found + [{"dim": dim, "told_by": []} for dim in sorted(late)]


def _print(report: dict[str, Any]) -> None:
    console = Terminal()
    ports = Sheet("", "name", Column("type", "prose"), title=Path(report["model"]).name)
    for side in ("inputs", "outputs"):
        for row in report[side]:
            # Backticks make a name parse again, which nobody does here.
            ports.add(side[:-1], row["name"], _short(row["type"].replace("`", "")))
        ports.section()
    ops = Sheet(
        "op",
        Column("count", align="right"),
        Column("flops", align="right"),
        title=f"{report['nodes']} nodes",
    )
    for row in report["ops"]:
        ops.add(row["op"], str(row["count"]), _engineering(row["flops"]))
    for sheet in (ports, ops):
        console.show(sheet)
        console.print()
    size = f"{report['parameters']:,} in {report['constants']} constants"
    at = ", ".join(f"{dim} = {n}" for dim, n in report["flops_at"].items())
    lines = {
        "parameters": f"{size}, {report['parameter_bytes'] / 1e6:,.2f} MB",
        "flops": _engineering(report["flops"]) + (f" at {at}" if at else ""),
        "dynamic dims": _told(report["dynamic"]),
    }
    for name, line in lines.items():
        console.print(f"{name:13} {line}", markup=False, highlight=False, soft_wrap=True)


def _told(rows: list[dict[str, Any]]) -> str:
    told = [f"{row['dim']} ({', '.join(row['told_by'])})" for row in rows if row["told_by"]]
    late = len(rows) - len(told)
    return ", ".join([*told, *([f"{late} known only after the run"] if late else [])]) or "none"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _engineering(flops: int) -> str:
    """Format a count with three digits and a prefix."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if flops >= factor:
            return f"{flops / factor:.3g} {unit}"
    return str(flops)
