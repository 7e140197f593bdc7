"""``fusewire run MODEL``: run a model twice, and show its outputs and the time of a call."""

from __future__ import annotations

import json
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from fusewire.cli.model import (
    Inputs,
    compile_options,
    loudly,
    model_options,
    plain,
)
from fusewire.cli.progress import progress
from fusewire.cli.sizes import with_usual_sizes
from fusewire.cli.terminal import Terminal
from fusewire.compiler import Session
from fusewire.errors import FallbackWarning
from fusewire.options import Options
from fusewire.profiling.profiling import Profile
from fusewire.session.model_source import ModelSource
from fusewire.show.report import seconds
from fusewire.tables import Column, Sheet

_FIGURES = ("min", "mean", "max")
_OPENED_BY = {
    ".json": "Open it at https://ui.perfetto.dev, or in chrome://tracing.",
    ".html": "Open it in a browser.",
}


@click.command()
@model_options
@compile_options()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the outputs to this .npz file.",
)
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write where the time went: a Chrome trace to a .json file, a page to an .html file.",
)
def command(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    as_json: bool,
    options: Options,
    output: Path | None,
    profile_path: Path | None,
) -> None:
    """Run a model on given or generated inputs."""
    source = ModelSource(str(model))
    use = partial(_run, model, source, options)
    profile = None if profile_path is None else _profile_to(profile_path)
    with profile or nullcontext():
        report, outputs = with_usual_sizes(source, shapes, files, options, use)
    if profile is not None and profile_path is not None:
        profile.save(profile_path)
    if output is not None:
        _save(output, outputs)
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    _print(report)
    if profile is not None and profile_path is not None:
        click.echo(f"\n{profile.table(Terminal().width)}")
        click.echo(f"Written to {profile_path}. {_OPENED_BY[profile_path.suffix]}")


def _profile_to(path: Path) -> Profile:
    """Begin a profile; an ending that it cannot be written to is said before anything runs."""
    if path.suffix not in _OPENED_BY:
        raise click.BadParameter(f"{path.name} must end in {' or '.join(_OPENED_BY)}.")
    return Profile(kernels=True)


def _run(
    model: Path, source: ModelSource, options: Options, inputs: Inputs
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run; returns a report of the first and the third call, and the outputs by name."""
    with warnings.catch_warnings(record=True) as caught, progress() as show:
        warnings.simplefilter("always", FallbackWarning)
        program = Session(replace(options, progress=show)).program(source)
        values = tuple(inputs.values.values())
        start = time.perf_counter()
        program.run(*values)
        first = time.perf_counter() - start
        # A child may answer the first call, and the second then loads the engine.
        program.run(*values)
        result = program.run(*values)
    for warning in caught:
        loudly(str(warning.message))
    names = program.entry(values).results.names
    arrays = result.outputs if isinstance(result.outputs, tuple) else (result.outputs,)
    outputs = dict(zip(names, arrays, strict=True))
    report = {
        "model": str(model),
        "backend": result.metadata["backend"],
        "seconds": result.seconds,
        "first_seconds": first,
        "assumed": dict(inputs.assumed),
        "inputs": [_described(name, x) for name, x in inputs.values.items()],
        "outputs": [_described(name, x) for name, x in outputs.items()],
    }
    return report, outputs


def _described(name: str, value: Any) -> dict[str, Any]:
    """Describe a tensor by its type and the range of its elements, a sequence by its length."""
    if value is None or isinstance(value, list):
        kind = "none" if value is None else "sequence"
        return {"name": name, "dtype": kind, "shape": [len(value or [])], **_ranged(None)}
    array = np.asarray(value)
    dtype = "string" if array.dtype == object else str(array.dtype)
    return {"name": name, "dtype": dtype, "shape": list(array.shape), **_ranged(array)}


def _ranged(array: Any) -> dict[str, float | str | None]:
    if array is None or array.size == 0 or array.dtype == object or array.dtype.kind == "c":
        return dict.fromkeys(_FIGURES)
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        figures = wide.min(), wide.mean(), wide.max()
    return {name: plain(float(x)) for name, x in zip(_FIGURES, figures, strict=True)}


def _save(path: Path, outputs: dict[str, Any]) -> None:
    arrays: dict[str, Any] = {}
    for name, value in outputs.items():
        parts = value if isinstance(value, list) else [value]
        for place, part in enumerate(parts):
            if part is not None:
                arrays[f"{name}.{place}" if isinstance(value, list) else name] = _storable(part)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _storable(array: Any) -> Any:
    """Convert to what NumPy itself can store: text, and float32 in place of narrow floats."""
    array = np.asarray(array)
    if array.dtype == object:
        return array.astype(str)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _print(report: dict[str, Any]) -> None:
    first, later = seconds(report["first_seconds"]), seconds(report["seconds"])
    console = Terminal()
    sheet = Sheet(
        "",
        "name",
        "dtype",
        "shape",
        *(Column(name, align="right") for name in _FIGURES),
        title=f"{Path(report['model']).name} on {report['backend']}: "
        f"first call {first}, then {later} per call",
    )
    for side in ("inputs", "outputs"):
        for row in report[side]:
            figures = [_shown(row[name]) for name in _FIGURES]
            shape = ", ".join(map(str, row["shape"]))
            sheet.add(side[:-1], row["name"], row["dtype"], f"[{shape}]", *figures)
        sheet.section()
    console.show(sheet)


def _shown(figure: float | str | None) -> str:
    return "" if figure is None else figure if isinstance(figure, str) else f"{figure:.5g}"
