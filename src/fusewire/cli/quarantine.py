"""``fusewire quarantine``: which engines are not tried again for which models, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import click

from fusewire.cli.cache import open_store
from fusewire.cli.terminal import Terminal
from fusewire.errors import visible
from fusewire.records.quarantine import Confined, confined, lift
from fusewire.tables import Column, Sheet

# Stands for every model, or every engine.
_ANY = "any"
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.group(invoke_without_command=True)
@_json
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List engines that are not tried again for a model, and why.

    An engine is there because it crashed, hung or gave a wrong answer. `fusewire quarantine lift`
    takes it out, and `fusewire bench MODEL --retry` tries it again.
    """
    if ctx.invoked_subcommand is not None:
        return
    store = open_store()
    entries = confined(store)
    if as_json:
        rows = [_row(entry) for entry in entries]
        click.echo(json.dumps({"folder": str(store.path), "entries": rows}, indent=1))
    else:
        Terminal().show(_table(entries))


@command.command("lift")
@click.argument("model", default=_ANY)
@click.argument("engine", default=_ANY)
@_json
def lift_command(model: str, engine: str, as_json: bool) -> None:
    """Take engines out of quarantine; without arguments, all of them.

    MODEL is a name from the list, or a model file. ENGINE is an engine, or a candidate with its
    options, as listed. `any` stands for every model, or every engine. Choices that were made
    without the engine are forgotten, and made again. Exits with 1 if nothing matches.
    """
    store = open_store()
    entries = [x for x in confined(store) if _is_model(x, model) and _is_engine(x, engine)]
    count = lift(store, entries)
    if as_json:
        lifted = [_row(entry) for entry in entries]
        click.echo(json.dumps({"lifted": lifted, "forgotten_choices": count}, indent=1))
    elif not entries:
        about = f"no engine for {model}" if engine == _ANY else f"{engine} for {model}"
        click.echo(visible(f"Nothing to lift: {about} is in quarantine."))
    else:
        for name, candidate in dict.fromkeys((x.model, x.candidate) for x in entries):
            click.echo(visible(f"Lifted: {candidate} for {name}."))
        if count:
            click.echo(f"{count} choices are made again at the next use.")
    sys.exit(0 if entries else 1)


def _is_model(entry: Confined, wanted: str) -> bool:
    return wanted in (_ANY, entry.model) or PurePath(wanted).stem == entry.model


def _is_engine(entry: Confined, wanted: str) -> bool:
    return wanted in (_ANY, entry.engine, entry.candidate)


def _row(entry: Confined) -> dict[str, Any]:
    fact = entry.fact
    return {
        "model": entry.model,
        "engine": entry.engine,
        "candidate": entry.candidate,
        "device": entry.device,
        "when": fact.when,
        "code": fact.code,
        "reason": fact.reason,
        "node": fact.place,
        "op": fact.op,
        "is_imported": fact.is_imported,
        "digest": entry.key.digest,
    }


def _table(entries: Sequence[Confined]) -> Sheet:
    """Lay out entries; those of one fault, such as the regions of a plan, share a row."""
    caption = "fusewire quarantine lift MODEL ENGINE lifts an entry; times are UTC"
    caption = caption if entries else "Nothing is in quarantine."
    sheet = Sheet("model", "engine", "when", Column("why", "prose"), caption=caption)
    rows = [(x.model, x.candidate, x.fact.when, f"{x.fact.code}: {x.fact.reason}") for x in entries]
    for row in dict.fromkeys(rows):
        sheet.add(*row)
    return sheet
