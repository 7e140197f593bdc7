"""``fusewire tune MODELS``: trials of models on engines, here or on the machines of a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fusewire.cli.model import Inputs, compile_options, loudly
from fusewire.cli.terminal import Terminal
from fusewire.options import Options
from fusewire.ray.tuning import TunedModel, tune
from fusewire.session.model_source import ModelSource
from fusewire.show.report import seconds
from fusewire.tables import Column, Sheet


@click.command()
@click.argument(
    "models",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--shapes",
    multiple=True,
    metavar="'NAME=1,3,48,320 ...'",
    help="Shapes of the inputs; again for other sizes.",
)
@click.option("--engines", metavar="A,B", help="Engines to try (default: all, and auto).")
@click.option("--kind", "kinds", multiple=True, help="Kind of machine (default: all).")
@click.option("--ray", metavar="ADDRESS", help="Ray cluster to use: auto, local or an address.")
@click.option(
    "--remote", metavar="URL", help="Store that machines share, such as s3://bucket/path."
)
@click.option("--seed", default=0, help="Seed for generated inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@compile_options(has_backend=False)
def command(
    models: tuple[Path, ...],
    shapes: tuple[str, ...],
    engines: str | None,
    kinds: tuple[str, ...],
    ray: str | None,
    remote: str | None,
    as_json: bool,
    options: Options,
) -> None:
    """Time models on engines, one trial at a time on each machine, and record the results.

    There is one trial per model, shapes, engine and kind of machine. Each writes its own record,
    and one that is recorded is not run again. Exits with 1 if no trial gave a right answer.
    """
    records = tune(
        [_sized(model, one, options.seed) for model in models for one in shapes or ("",)],
        engines=[name.strip() for name in engines.split(",")] if engines else None,
        kinds=list(kinds) or None,
        ray=ray,
        options=replace(options, remote=remote),
        report=_say,
    )
    if unpublished := [record["unpublished"] for record in records if record["unpublished"]]:
        loudly(f"{len(unpublished)} trials are not in the shared store: {unpublished[0]}")
    if as_json:
        click.echo(json.dumps({"trials": records}, indent=1))
    else:
        Terminal().show(_sheet(records))
    sys.exit(0 if any(record["status"] == "right" for record in records) else 1)


def _sized(model: Path, shapes: str, seed: int) -> TunedModel:
    """Generate the inputs of a model; shapes of other models are left out."""
    source = ModelSource(model)
    names = source.inputs()
    given = tuple(text for text in shapes.split() if text.rpartition("=")[0] in names)
    inputs = Inputs.of(source, given, (), seed)
    source.release()
    return TunedModel(model, inputs.values)


def _say(record: Mapping[str, Any]) -> None:
    known = " (recorded)" if record["is_recalled"] else ""
    time = record.get("seconds")
    shown = f" {seconds(time)}" if time is not None else ""
    click.echo(f"{record['trial']}: {record['status']}{shown}{known}", err=True)


def _sheet(records: list[dict[str, Any]]) -> Sheet:
    sheet = Sheet(
        "model",
        Column("shapes", "prose"),
        "engine",
        "kind",
        Column("time", align="right"),
        "state",
        title=f"{len(records)} trials",
    )
    for record in sorted(records, key=lambda row: (row["model"], row["shapes"], row["engine"])):
        time = record.get("seconds")
        sheet.add(
            record["model"],
            record["shapes"],
            record["engine"],
            record["kind"],
            "" if time is None else seconds(time),
            record["status"],
        )
    return sheet
