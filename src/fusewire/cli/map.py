"""``fusewire map MODEL INPUT OUTPUT``: the rows of Parquet files through a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusewire.cli.model import compile_options
from fusewire.cli.terminal import Terminal
from fusewire.errors import OptionsError
from fusewire.options import Options
from fusewire.ray.cluster import need
from fusewire.tables import Column, Sheet

if TYPE_CHECKING:
    from fusewire.ray.mapping import Mapped


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("source", metavar="INPUT", type=click.Path(exists=True, path_type=Path))
@click.argument("output", metavar="OUTPUT", type=click.Path(file_okay=False, path_type=Path))
@click.option("--ray", metavar="ADDRESS", help="Ray cluster to use: auto, local or an address.")
@click.option("--workers", type=click.IntRange(1), help="Number of Ray actors (default: all).")
@click.option("--input", "inputs", multiple=True, metavar="NAME=COLUMN", help="Column of an input.")
@click.option(
    "--output", "outputs", multiple=True, metavar="NAME=COLUMN", help="Column for an output."
)
@click.option(
    "--keep", multiple=True, metavar="COLUMN", help="Copy this column (default: all but inputs)."
)
@click.option("--cast", is_flag=True, help="Cast columns to the dtype of the same kind.")
@click.option("--batch-size", type=click.IntRange(1), help="Rows in a call (default: measured).")
@click.option(
    "--block-rows",
    type=click.IntRange(1),
    default=65_536,
    show_default=True,
    help="Least rows in an output file; blocks end where row groups do.",
)
@click.option("--seed", default=0, help="Seed for generated inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@compile_options()
def command(
    model: Path,
    source: Path,
    output: Path,
    ray: str | None,
    workers: int | None,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    keep: tuple[str, ...],
    cast: bool,
    batch_size: int | None,
    block_rows: int,
    as_json: bool,
    options: Options,
) -> None:
    """Run a model on every row of Parquet files, here or on a Ray cluster.

    INPUT is a Parquet file or a folder of them. OUTPUT is a folder: one file per block of rows, and
    _manifest.json once all are there. The same command goes on with a job that was interrupted.
    """
    need("pyarrow", "fusewire map")
    from fusewire.ray.mapping import map_parquet

    mapped = map_parquet(
        model,
        source,
        output,
        inputs=_pairs("--input", inputs),
        outputs=_pairs("--output", outputs),
        keep=keep or None,
        batch_size=batch_size,
        block_rows=block_rows,
        ray=ray,
        workers=workers,
        options=replace(options, cast="same_kind" if cast else None),
    )
    if as_json:
        click.echo(json.dumps(asdict(mapped), indent=1))
    else:
        Terminal().show(_sheet(model.name, mapped))


def _sheet(name: str, mapped: Mapped) -> Sheet:
    rate = f"{mapped.new_rows / mapped.seconds:,.0f}"
    sheet = Sheet(
        "",
        *(Column(name, align="right") for name in ("rows", "blocks", "rows/s")),
        title=f"{name}, {mapped.batch_size} rows per call, {mapped.seconds:.1f} s",
    )
    sheet.add("this run", f"{mapped.new_rows:,}", f"{mapped.new_blocks:,}", rate)
    sheet.add("output", f"{mapped.rows:,}", f"{mapped.blocks:,}", "")
    return sheet


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Split NAME=COLUMN; a column may have any character."""
    pairs = [text.partition("=") for text in given]
    for text, (name, _, column) in zip(given, pairs, strict=True):
        if not name or not column:
            raise OptionsError(f"{option} {text}: give NAME=COLUMN.")
    return {name: column for name, _, column in pairs}
