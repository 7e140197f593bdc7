"""``fusewire bench MODEL``: time every installed engine, judge its answers, and choose one."""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from fusewire.choosing.decide import Decision, Question
from fusewire.choosing.race import RaceInterrupted
from fusewire.cli.comparison import markdown, sheet
from fusewire.cli.load import Load
from fusewire.cli.model import (
    Inputs,
    compile_options,
    model_or_example,
    read_open,
)
from fusewire.cli.plot import plot
from fusewire.cli.progress import progress
from fusewire.cli.sizes import with_usual_sizes
from fusewire.cli.terminal import Terminal, wide_option
from fusewire.compiler import Session
from fusewire.contract.backend import Unavailable
from fusewire.contract.devices import on_device
from fusewire.errors import (
    NoneRightError,
    OptionsError,
    RegistryError,
    UnavailableError,
    visible,
)
from fusewire.ir.graph import Graph
from fusewire.options import Options
from fusewire.planning.policy import TargetFinder, interprets, unlike
from fusewire.planning.target import Target
from fusewire.process.machine import machine
from fusewire.records.entries import Records
from fusewire.registry import REGISTRY
from fusewire.session.decider import Decider
from fusewire.session.model_source import ModelSource
from fusewire.show.report import with_ratios
from fusewire.show.why import Tried

# Devices to compare on: every one, those too that only their numbers tell apart.
ALL = ("all",)


@click.command()
@model_or_example
@compile_options(fallback="allow", has_backend=False)
@click.option(
    "--backends",
    "--backend",
    "backends",
    metavar="A,B",
    help="Engines to compare (default: all).",
)
@click.option(
    "--devices",
    "places",
    metavar="A,B",
    help="Devices to compare, such as cpu,cuda:0 (default: all, and one of those that are alike; "
    "all for every one).",
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a plot of the times to this SVG file.",
)
@click.option("--retry", is_flag=True, help="Try engines in quarantine too; lift those that pass.")
@wide_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown instead of a table.")
def command(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    as_json: bool,
    options: Options,
    backends: str | None,
    places: str | None,
    picture: Path | None,
    retry: bool,
    is_wide: bool,
    as_markdown: bool,
) -> None:
    """Time a model on every installed engine, check the answers, and pick the best.

    Ignores earlier measurements, and skips engines in quarantine unless --retry is given.
    Exits with 1 if no engine gives a right answer.
    """
    with progress() as show:
        devices = _devices(options, places)
        source = ModelSource(model)
        options = replace(options, progress=show)
        # Guessing sizes is part of the time that the user gives.
        start = time.monotonic()
        use = partial(measure, source, options, _names(backends), devices, retry=retry, start=start)
        end = start + options.budget_seconds
        report = with_usual_sizes(source, shapes, files, options, use, end)
    if picture is not None:
        picture.write_text(plot(report), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(report, indent=1))
    elif as_markdown:
        click.echo(visible(markdown(report)))
    else:
        Terminal().show(sheet(report, is_wide=is_wide))
    sys.exit(130 if report["is_interrupted"] else 0 if report["chosen"] is not None else 1)


def _names(text: str | None) -> list[str]:
    """Split a list of names; RegistryError for an unknown one."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        REGISTRY.backends.describe(name)
    return names or REGISTRY.backends.names()


def _devices(options: Options, text: str | None) -> tuple[str, ...]:
    """Return the devices to compare on, none for all that differ; OptionsError for a misfit."""
    if options.level not in (None, 1, 2, 3):
        sentence = (
            "bench compares engines: level 1, 2 with slow compilers, or 3 with tuned kernels."
        )
        raise OptionsError(f"--level {options.level}: {sentence}")
    if options.device is not None:
        if text is not None:
            raise OptionsError("--device names one device and --devices several: give one of them.")
        return (options.device,)
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def measure(
    model: ModelSource,
    options: Options,
    names: list[str],
    devices: Sequence[str],
    inputs: Inputs,
    *,
    retry: bool = False,
    start: float | None = None,
) -> dict[str, Any]:
    """Compare engines, with ``retry`` also those in quarantine; report the result as plain data.

    ``devices`` are none for all that differ; ``start`` is when the budget began, now if it is None.
    """
    start, load = time.monotonic() if start is None else start, Load()
    session = Session(replace(options, progress=load.watched(options.report)))
    reading, values = read_open(model, inputs)
    model.release()
    graph, finder = session.rewrite(reading.graph), session.context.finder
    decider = session.decider
    missing, late, left_out = dict[str, str](), list[Tried](), _left_out(names, finder)
    names = [name for name in names if name not in left_out]
    question = replace(
        decider.question(graph, values, reading.file),
        fields=None,
        targets=partial(_targets, names, devices, options, finder, missing, late),
        is_thorough=True,
        start=start,
        backends=partial(_with_devices, names, finder, options),
        left_out=lambda: left_out,
    )
    records = _records(decider.records, model.name, retry=retry)
    decision = _compared(decider, question, records, inputs)
    return {
        **_request(model, graph, inputs, options),
        **_outcome(decision, missing, late, model.name),
        "seconds": round(time.monotonic() - start, 1),
        "load": load.to_data(),
        "is_interrupted": isinstance(decision, RaceInterrupted),
    }


def _left_out(names: list[str], finder: TargetFinder) -> dict[str, str]:
    """List engines that compile for too long; whoever names some wants them however long it is."""
    return finder.left_out() if set(names) == set(REGISTRY.backends.names()) else {}


def _compared(
    decider: Decider, question: Question, records: Records, inputs: Inputs
) -> Decision | NoneRightError | RaceInterrupted:
    """Compare; raises if every engine refuses sizes that were only guessed."""
    try:
        return decider.decide(question, records)
    except (NoneRightError, RaceInterrupted) as error:
        is_guess = inputs.assumed and not inputs.is_proven
        is_none = isinstance(error, NoneRightError)
        if is_none and is_guess and all(row.status == "refused" for row in error.tried):
            raise
        return error


def _records(recorded: Records, model: str, *, retry: bool) -> Records:
    """Return records of which only the quarantine is read, or nothing; all are written."""
    records = Records(recorded.store, () if retry else ("quarantine",))
    records.model = model
    return records


def _targets(
    names: list[str],
    devices: Sequence[str],
    options: Options,
    finder: TargetFinder,
    missing: dict[str, str],
    late: list[Tried],
) -> Iterator[Target]:
    """Yield targets, the most preferred first, and note backends that have none, or no process."""
    _probe(names, options)
    ranked = REGISTRY.ranked(isolate=options.has_children, limits=options.limits)
    found: list[Target] = []
    for name in sorted(names, key=lambda name: ranked.index(name) if name in ranked else -1):
        try:
            targets = finder.targets(name)
        except RegistryError as error:
            if isinstance(error, UnavailableError) and error.is_momentary:
                late.append(Tried(name, name, "", "native", "not started", str(error)))
            else:
                missing[name] = str(error)
            continue
        missing |= _unavailable(name)
        for target in targets:
            if interprets(target) and len(names) > 1 and devices in ((), ALL):
                missing[name] = f"{target.device.name}. Use `--backends {name}` to run it anyway."
            else:
                found.append(target)
    yield from _on_any(found, devices)


def _probe(names: list[str], options: Options) -> None:
    """Probe engines side by side, each in its child: importing an engine takes seconds."""
    if not options.has_children or all(REGISTRY.known(name) for name in names):
        return
    options.report("probing the engines", 0.0)
    with ThreadPoolExecutor() as threads:
        list(threads.map(partial(REGISTRY.meet, limits=options.limits), names))


def _unavailable(name: str) -> dict[str, str]:
    """Say which devices of a backend cannot be used, beside those that can."""
    met = REGISTRY.known(name)
    found = (x for x in (met.found if met else ()) if isinstance(x, Unavailable))
    return {f"{name} ({x.device or x.code})": f"{x.reason} {x.fix}" for x in found}


def _on_any(targets: Sequence[Target], devices: Sequence[str]) -> list[Target]:
    """Keep the targets on any of these devices; RegistryError for a device that nobody has."""
    if not devices:
        return list(unlike(targets))
    if devices == ALL:
        return list(targets)
    meant: list[Target] = []
    for device in devices:
        found = list(on_device(targets, device, lambda target: target.device))
        if not found:
            have = ", ".join(dict.fromkeys(target.device.id for target in targets))
            raise RegistryError(
                f"No backend here runs on {device!r}. Devices: {have or 'none'}. "
                "`fusewire devices` says what the others lack."
            )
        meant += found
    return [target for target in targets if target in meant]


def _with_devices(names: list[str], finder: TargetFinder, options: Options) -> list[str]:
    """List the backends that have a device to compare on."""
    _probe(names, options)
    found = []
    for name in names:
        with contextlib.suppress(RegistryError):
            found += [name] if not all(map(interprets, finder.targets(name))) else []
    return found


def _request(model: ModelSource, graph: Graph, inputs: Inputs, options: Options) -> dict[str, Any]:
    host = machine()
    return {
        "model": str(model.source),
        "model_bytes": Path(model.source).stat().st_size,
        "nodes": len(graph.nodes),
        "inputs": inputs.described(),
        "assumed": dict(inputs.assumed),
        "seed": options.seed,
        "threads": options.threads,
        "budget_seconds": options.budget_seconds,
        "fallback": options.fallback,
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            "processor": host["processor"],
            "cores": host["compute_units"],
            "memory_bytes": host.get("memory_bytes"),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {"fusewire": version("fusewire"), "python": platform.python_version()},
    }


def _outcome(
    decision: Decision | NoneRightError | RaceInterrupted,
    missing: dict[str, str],
    late: list[Tried],
    model: str,
) -> dict[str, Any]:
    noise, notes, coverage = None, list[str](), None
    if isinstance(decision, Decision):
        noise, coverage = decision.noise, decision.coverage
        # The summary says what the budget covered.
        covered = coverage and coverage.sentence()
        notes = [note for note in decision.notes if note != covered]
    rows = with_ratios([_row(candidate, model) for candidate in (*decision.tried, *late)])
    return {
        "chosen": next((row["name"] for row in rows if row["is_chosen"]), None),
        "noise": noise,
        "notes": notes,
        "coverage": coverage and asdict(coverage),
        "rows": rows,
        "missing": missing,
    }


def _row(candidate: Tried, model: str) -> dict[str, Any]:
    words = ("fusewire", "quarantine", "lift", model, candidate.backend)
    return {
        **asdict(candidate),
        "version": REGISTRY.get(candidate.backend).info.version,
        "lift": shlex.join(words) if candidate.status == "quarantined" else "",
    }
