"""``fusewire ops``: every op that a graph can hold."""

from __future__ import annotations

import json
from typing import Any

import click

from fusewire import dtypes
from fusewire.cli.terminal import Terminal, wide_option
from fusewire.dtypes import DType
from fusewire.ops.declare import ONE_OPERAND, Op
from fusewire.ops.table import known_ops
from fusewire.tables import Column, Sheet

# Sets of dtypes that have a name of their own, the widest first.
_SETS = {
    "stored": dtypes.STORED, "numeric": dtypes.NUMERIC, "real": dtypes.REAL,
    "floats": dtypes.FLOATS, "complex": dtypes.COMPLEX, "integers": dtypes.INTEGERS,
    "signed": dtypes.SIGNED, "unsigned": dtypes.UNSIGNED, "narrow": dtypes.NARROW,
}  # fmt: skip


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--family", help="List only this family.")
@click.option("--lacks", is_flag=True, help="List required test cases that are missing, and why.")
@wide_option
def command(as_json: bool, family: str | None, lacks: bool, is_wide: bool) -> None:
    """List every op by family, with its dtypes and cases."""
    ops = known_ops()
    known = list(dict.fromkeys(op.family for op in ops.values()))
    if family is not None and family not in known:
        raise click.UsageError(f"Unknown family {family!r}. Families: {', '.join(known)}.")
    rows = [op for op in ops.values() if family in (None, op.family)]
    if as_json:
        click.echo(json.dumps([describe(op) for op in rows], indent=1))
        return
    console = Terminal()
    if lacks:
        console.show(_lacks(rows))
        return
    console.show(_table(rows, is_wide))
    console.print(f"\n{len(rows)} ops in {len({op.family for op in rows})} families.\n")
    console.show(_lacks(rows))
    console.print()
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


def _table(rows: list[Op[Any]], is_wide: bool) -> Sheet:
    sheet = Sheet(
        "op",
        "kind",
        Column("description", "prose"),
        Column("dtypes", "extra"),
        Column("samples", "extra", "right"),
        "family",
        title="Ops",
        is_wide=is_wide,
    )
    before = ""
    for op in rows:
        kind = "composite" if op.is_composite else "primitive"
        if before and op.family != before:
            sheet.section()
        shown = op.family if op.family != before else ""
        sheet.add(op.name, kind, op.doc, dtype_names(op.dtypes), str(len(op.samples())), shown)
        before = op.family
    return sheet


def _lacks(rows: list[Op[Any]]) -> Sheet:
    """Group missing required cases by reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for op in rows:
        for case, reason in op.lacks.items():
            grouped.setdefault((case, reason), []).append(op.name)
    columns = "case", Column("why", "prose"), Column("ops", "prose")
    sheet = Sheet(*columns, title="Required cases that do not apply to an op")
    for (case, reason), names in sorted(grouped.items()):
        shown = f"{len(names)} ops" if reason == ONE_OPERAND else ", ".join(names)
        sheet.add(case, reason, shown)
    return sheet
