"""``fusewire ops``: every op that a graph can hold."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table

from fusewire import dtypes
from fusewire.cli.terminal import Terminal
from fusewire.dtypes import DType
from fusewire.ops.declare import ONE_OPERAND, Op
from fusewire.ops.table import all_ops, families

# Sets of dtypes that have a name of their own, the widest first.
_SETS = {
    "stored": dtypes.STORED, "numeric": dtypes.NUMERIC, "real": dtypes.REAL,
    "floats": dtypes.FLOATS, "complex": dtypes.COMPLEX, "integers": dtypes.INTEGERS,
    "signed": dtypes.SIGNED, "unsigned": dtypes.UNSIGNED, "narrow": dtypes.NARROW,
}  # fmt: skip


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--family", help="List only this family.")
@click.option("--lacks", is_flag=True, help="List only the required cases that ops lack, and why.")
def command(as_json: bool, family: str | None, lacks: bool) -> None:
    """List every op by family, with its dtypes and cases."""
    if family is not None and family not in families():
        raise click.UsageError(f"Unknown family {family!r}. Families: {', '.join(families())}.")
    rows = [op for op in all_ops().values() if family in (None, op.family)]
    if as_json:
        click.echo(json.dumps([describe(op) for op in rows], indent=1))
        return
    console = Terminal()
    if lacks:
        console.print(_lacks(rows))
        return
    console.print(_table(rows))
    console.print(f"{len(rows)} ops in {len({op.family for op in rows})} families.")
    console.print(_lacks(rows))
    console.print(
        f"Names for sets of dtypes: {', '.join(_SETS)} (`fusewire ops --json` lists their members)."
    )


def describe(op: Op[Any]) -> dict[str, Any]:
    """Describe the declaration of an op as plain data."""
    samples = op.samples()
    operands, variadic, attrs = op.parameters
    return {
        "name": op.name,
        "family": op.family,
        "kind": "composite" if op.is_composite else "primitive",
        "doc": op.doc,
        "operands": [*operands, *([f"*{variadic}"] if variadic else [])],
        "attributes": sorted(attrs),
        "dtypes": [d.name for d in op.dtypes],
        "traits": sorted(trait.name.lower() for trait in op.traits),
        "tolerance": {"kind": op.tolerance.kind, "ulps": op.tolerance.ulps},
        "samples": len(samples),
        "cases": sorted({case for drawn in samples for case in drawn.covers()}),
        "lacks": dict(op.lacks),
    }


def dtype_names(found: tuple[DType, ...]) -> str:
    """Name a set of dtypes briefly."""
    left = list(found)
    words = []
    for name, members in _SETS.items():
        if all(d in left for d in members):
            words.append(name)
            left = [d for d in left if d not in members]
    return ", ".join(words + [d.name for d in left])


def _table(rows: list[Op[Any]]) -> Table:
    table = Table(title="Ops", header_style="bold")
    for column in ("family", "op", "kind", "samples", "dtypes", "description"):
        table.add_column(column, justify="right" if column == "samples" else "left")
    before = ""
    for op in rows:
        kind = "composite" if op.is_composite else "primitive"
        if before and op.family != before:
            table.add_section()
        shown = op.family if op.family != before else ""
        table.add_row(shown, op.name, kind, str(len(op.samples())), dtype_names(op.dtypes), op.doc)
        before = op.family
    return table


def _lacks(rows: list[Op[Any]]) -> Table:
    """Group missing required cases by reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for op in rows:
        for case, reason in op.lacks.items():
            grouped.setdefault((case, reason), []).append(op.name)
    table = Table(title="Required cases that do not apply to an op", header_style="bold")
    for column in ("case", "why", "ops"):
        table.add_column(column)
    for (case, reason), names in sorted(grouped.items()):
        shown = f"{len(names)} ops" if reason == ONE_OPERAND else ", ".join(names)
        table.add_row(case, reason, shown)
    return table
