"""``fusewire eval MODEL``: score every engine, in every precision, on the user's own samples."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click

from fusewire.calibration import load_arrays, split_samples
from fusewire.choosing.evaluate import Evaluated, Evaluation
from fusewire.cli.advice import for_commands
from fusewire.cli.model import Inputs, compile_options, imported_function, read_open
from fusewire.cli.progress import progress
from fusewire.cli.terminal import Terminal, wide_option
from fusewire.compiler import Session
from fusewire.errors import OptionsError
from fusewire.numerics.metrics import METRICS, Metric
from fusewire.options import Options
from fusewire.session.model_source import ModelSource
from fusewire.show.report import digits, reasons, unit_of
from fusewire.tables import Column, Sheet

# Any bound has candidates in reduced precision take part; nothing is judged by it.
_ANY = 0.5
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("model", type=_FILE)
@click.option(
    "--data",
    required=True,
    type=_FILE,
    metavar="SAMPLES.npz",
    help="An array for each input, with samples along its first axis.",
)
@click.option(
    "--metric",
    "name",
    default="relative",
    show_default=True,
    metavar="top1|cosine|relative|MODULE:FUNCTION",
    help="What to score: a function takes the right outputs and those of an engine.",
)
@click.option("--seed", default=0, hidden=True)
@compile_options(fallback="allow")
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    model: Path, data: Path, name: str, options: Options, is_wide: bool, as_json: bool
) -> None:
    """Score a model on every installed engine, exact and in reduced precision, on your samples.

    The right outputs are those of the reference in float64. Nothing is recorded. Exits with 1 if no
    engine runs the model.
    """
    if not options.is_exact:
        raise click.UsageError("--accuracy: eval scores every precision, and accepts none.")
    metric = _metric(name)
    with progress() as show:
        rows, count = evaluate(model, data, metric, replace(options, progress=show))
    if as_json:
        report = {"model": str(model), "data": str(data), "metric": name, "samples": count}
        click.echo(json.dumps({**report, "rows": list(map(asdict, rows))}, indent=1))
    else:
        terminal = Terminal()
        terminal.show(sheet(rows, f"{name} of {model.name} on {count} samples", is_wide=is_wide))
        for line in reasons([asdict(row) for row in rows]):
            terminal.print(for_commands(line), markup=False, highlight=False, soft_wrap=True)
    sys.exit(0 if any(row.mean is not None for row in rows) else 1)


def _metric(name: str) -> Metric:
    if name in METRICS:
        return METRICS[name]
    if ":" not in name:
        known = ", ".join(METRICS)
        raise click.UsageError(f"--metric {name}: give {known}, or module:function.")
    return imported_function("--metric", name)


def evaluate(
    path: Path, data: Path, metric: Metric, options: Options
) -> tuple[list[Evaluated], int]:
    """Score every candidate; returns the rows, the best precision first, and how many samples."""
    model = ModelSource(path)
    try:
        samples = split_samples(load_arrays(data, "--data"), model.inputs(), f"--data {data}")
    except OptionsError as error:
        raise click.UsageError(str(error)) from error
    session = Session(replace(options, accuracy=_ANY))
    inputs = Inputs(samples[0], frozenset(samples[0]), {})
    reading, _ = read_open(model, inputs)
    model.release()
    names, graph = reading.arguments.names, session.rewrite(reading.graph)
    values = [[sample[name] for name in names] for sample in samples]
    question = replace(session.decider.question(graph, values[0], reading.file), fields=None)
    finder = session.context.finder
    evaluation = Evaluation.of(question, values, metric, finder)
    return list(evaluation.rows(finder)), len(values)


def sheet(rows: list[Evaluated], title: str, *, is_wide: bool = False) -> Sheet:
    """Lay out scores, errors and times."""
    unit, factor = unit_of([asdict(row) for row in rows])
    table = Sheet(
        Column("engine"),
        Column("mean", align="right"),
        Column("least", align="right"),
        Column("largest", align="right"),
        Column("error", align="right"),
        Column(f"median, {unit}", align="right"),
        Column("element", "extra", "right"),
        title=title,
        is_wide=is_wide,
        caption="error: the largest relative error of an output against float64",
    )
    for row in rows:
        seconds = None if row.seconds is None else row.seconds * factor
        scores = [_number(x) for x in (row.mean, row.least, row.largest)]
        errors = [_error(row, x) for x in (row.error, row.element)]
        time = row.status if seconds is None else digits(seconds)
        table.add(row.name, *scores, errors[0], time, errors[1])
    return table


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.4g}"


def _error(row: Evaluated, error: float | None) -> str:
    if row.mean is None:
        return "-"
    return "infinite" if error is None else f"{error:.1e}"
