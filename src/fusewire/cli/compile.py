"""``fusewire compile MODEL -o FILE.fw``: a bundle; with ``--target``, kernels for other devices."""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from fusewire.bundling.locking import lock_bundle
from fusewire.cli.model import Inputs, compile_options, loudly, model_options, read_sized
from fusewire.cli.progress import progress
from fusewire.cli.sizes import with_usual_sizes
from fusewire.cli.terminal import Terminal
from fusewire.compiler import Session
from fusewire.compiler import compile as fusewire_compile
from fusewire.contract.backend import Backend, Config, Device
from fusewire.contract.region import CrossCompiler, weights_of
from fusewire.contract.tuning import TUNED, Estimator, written
from fusewire.errors import FallbackWarning, OptionsError, install_advice
from fusewire.ir.graph import Graph
from fusewire.ir.text import constants_of, print_graph
from fusewire.options import Options
from fusewire.plan.plan import Region
from fusewire.planning.planner import Planned
from fusewire.planning.target import Target
from fusewire.records.bundles import ENDING
from fusewire.registry import REGISTRY
from fusewire.session.model_source import ModelSource
from fusewire.store.signing import Signer
from fusewire.tables import Column, Sheet

# More kernels are not worth printing; kernels.json has all of them.
_MOST = 12


@click.command()
@model_options
@compile_options()
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE.fw",
    type=click.Path(path_type=Path),
    help="The bundle to write; with --target, a folder.",
)
@click.option(
    "--target", metavar="cuda:sm_90", help="Compile kernels for this kind of device instead."
)
@click.option("--weights", is_flag=True, help="Put the weights into the bundle.")
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The private key to sign the bundle with; `fusewire store keygen` makes one.",
)
@click.option(
    "--lock",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A lock file to write what was chosen to, such as fusewire.lock.",
)
@click.option("--generation", default=0, help="Readers who saw a higher one refuse the bundle.")
@click.option("--release", help="Name that generations count under, for readers who ask for it.")
def command(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    as_json: bool,
    options: Options,
    output: Path,
    target: str | None,
    weights: bool,
    key: Path | None,
    lock: Path | None,
    generation: int,
    release: str | None,
) -> None:
    """Choose an engine for a model, and write plan and artifacts to one file; or compile kernels.

    Without --target, the file is a bundle, for fw.open here or on other machines. With --target,
    writes one folder per region, with its kernels as source and as machine code, their launch
    parameters, the resources they use, and the weights; and plan.json, which says what runs
    where. The device need not be present. Exits with 1 if a node has no kernel.
    """
    if target is None:
        _check_ending(output)
        how = {"weights": weights, "key": key, "generation": generation, "release": release}
        report = _bundle(model, shapes, files, options, output, how)
        if lock is not None:
            lock_bundle(lock, output)
        _print_bundle(report, as_json)
        return
    if weights or key is not None or lock is not None or generation or release:
        raise click.UsageError(
            "--weights, --key, --lock, --generation and --release are for bundles, not --target."
        )
    if options.level not in (None, 0, 3):
        raise click.UsageError("With --target, --level is 0 or 3.")
    is_whole = _kernels(model, shapes, files, options, target, output, as_json)
    sys.exit(0 if is_whole else 1)


def _check_ending(output: Path) -> None:
    if output.suffix != ENDING:
        raise click.UsageError(
            f"-o {output}: a bundle ends in {ENDING}. Give --target to write a folder of kernels."
        )


def _bundle(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    options: Options,
    output: Path,
    how: Mapping[str, Any],
) -> dict[str, Any]:
    """Compile a model, run it once, and save it."""
    use = partial(_saved, model, options, output, how)
    return with_usual_sizes(ModelSource(str(model)), shapes, files, options, use)


def _print_bundle(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    console = Terminal()
    sheet = Sheet("", Column("bundle", "prose"))
    for name in ("model", "bundle", "backend", "bytes", "weights", "signer"):
        sheet.add(name, str(report[name]))
    console.show(sheet)
    for note in report["notes"]:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _saved(
    model: Path, options: Options, output: Path, how: Mapping[str, Any], inputs: Inputs
) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught, progress() as show:
        warnings.simplefilter("always", FallbackWarning)
        program = fusewire_compile(str(model), options=replace(options, progress=show))
        values = tuple(inputs.values.values())
        program(*values)
        notes = program.save(output, **how)
    for warning in caught:
        loudly(str(warning.message))
    return {
        "model": str(model),
        "bundle": str(output),
        "backend": program.why().backend,
        "bytes": output.stat().st_size,
        "weights": "inside" if how["weights"] else f"in {model.name}",
        "signer": "nobody" if how["key"] is None else Signer.read(how["key"]).id,
        "notes": list(notes),
    }


def _kernels(
    model: Path,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    options: Options,
    target: str,
    folder: Path,
    as_json: bool,
) -> bool:
    """Compile for a device; returns whether every node has a kernel."""
    with progress() as show:
        backend, maker, device = maker_of(target)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        graph = read_sized(ModelSource(model), shapes, files, options.seed)
        compiler = KernelCompiler(backend, maker, device, folder, tunes=options.level == 3)
        report = {"model": str(model), **compile_graph(graph, compiler, show)}
        backend.close()
        text = json.dumps(report, indent=1) + "\n"
        with _writing(folder):
            (folder / "plan.json").write_text(text, encoding="utf-8")
    if as_json:
        click.echo(text, nl=False)
    else:
        _print(report, folder)
    return bool(report["is_whole"])


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OptionsError(
            f"-o {folder} cannot be written: {error.strerror or error}. Choose another folder."
        ) from error


def maker_of(target: str) -> tuple[Backend, CrossCompiler, Device]:
    """Find the backend that compiles for a target; OptionsError when there is none."""
    for name in REGISTRY.backends.names():
        backend = REGISTRY.backends.get(name)
        device = backend.device_for(target) if isinstance(backend, CrossCompiler) else None
        if device is not None and isinstance(backend, CrossCompiler):
            if not backend.info.is_installed:
                advice = install_advice(backend.info.extra or name)
                raise OptionsError(f"{name} compiles for {target}, and is not installed. {advice}")
            return backend, backend, device
    raise OptionsError(
        f"No installed backend compiles for {target!r}. Targets look like cuda:sm_90 or hip:gfx942."
    )


@dataclass(frozen=True)
class KernelCompiler:
    """A compiler, its device and the output folder; ``tunes``: choose configurations too."""

    backend: Backend
    maker: CrossCompiler
    device: Device
    folder: Path
    tunes: bool = False

    def __post_init__(self) -> None:
        if self.tunes and not isinstance(self.backend, Estimator):
            name = self.backend.info.name
            raise OptionsError(f"--level 3: {name} cannot tune without a device. Use --level 0.")

    def config(self, graph: Graph) -> tuple[Config, dict[str, Any]]:
        """Choose the configuration of each kernel of a region, and report the reasons."""
        if not self.tunes or not isinstance(self.backend, Estimator):
            return Config(), {}
        rule, kernels = self.backend.estimates(graph, self.device)
        tuning = {"is_timed": False, "rule": rule, "kernels": [asdict(x) for x in kernels]}
        lines = written({kernel.key: kernel.chosen for kernel in kernels})
        return Config(options={TUNED: lines}), {"tuning": tuning}


def compile_graph(
    graph: Graph, compiler: KernelCompiler, progress: Callable[[str, float], None]
) -> dict[str, Any]:
    """Plan a graph, compile what the target takes, write the files, and report as plain data."""
    backend, device = compiler.backend, compiler.device
    session = Session()
    planned = session.decider.entries.plan(session.rewrite(graph), [Target(backend, device)])
    regions = []
    for number, region in enumerate(planned.plan.regions()):
        progress(f"compiling {region.graph.name}", number / len(planned.plan.steps))
        regions.append(_region(number, region, compiler))
    return {
        "backend": backend.info.name,
        "version": backend.info.version,
        "target": device.id,
        "is_whole": all(region["backend"] == backend.info.name for region in regions),
        "regions": regions,
        "refused": _refused(planned),
    }


def _region(number: int, region: Region, compiler: KernelCompiler) -> dict[str, Any]:
    about: dict[str, Any] = {
        "region": number,
        "backend": region.backend,
        "nodes": len(region.graph.nodes),
        "inputs": [str(value.type) for value in region.graph.inputs],
        "outputs": [str(value.type) for value in region.graph.outputs],
    }
    if region.backend != compiler.backend.info.name:
        return about
    config, tuning = compiler.config(region.graph)
    artifact = compiler.backend.compile(region.graph, region.device, config)
    target = compiler.folder / f"region{number}"
    files = {"graph.txt": print_graph(region.graph).encode(), **compiler.maker.files(artifact)}
    weights: dict[str, Any] = weights_of(artifact, constants_of(region.graph))
    with _writing(target):
        target.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (target / name).write_bytes(data)
        np.savez(target / "weights.npz", **weights)
    return {
        **about,
        **tuning,
        "folder": target.name,
        "files": sorted(files),
        "launch": dict(artifact.launch),
        "workspace": artifact.workspace,
        "metrics": dict(artifact.metrics),
    }


def _tuning(report: Mapping[str, Any]) -> Iterator[str]:
    """Describe the chosen kernel configurations, and the rule that chose them."""
    if not report:
        return
    yield report["rule"]
    for kernel in report["kernels"][:_MOST]:
        configuration = " ".join(f"{name}={value}" for name, value in kernel["chosen"].items())
        left = ", ".join(f"{n} {why}" for why, n in kernel["left_out"].items()) or "none rejected"
        takes = ", ".join(f"{n} {name}" for name, n in kernel["takes"].items()) or "unknown"
        yield (f"{kernel['name']}: {configuration} ({takes}; of {kernel['tried']} tried, {left})")


def _refused(planned: Planned) -> list[dict[str, Any]]:
    first = next(iter(planned.claims.values()))
    counts = Counter((node.op, why.reason) for node, why in first.refusals.items())
    return [{"op": op, "count": n, "reason": why} for (op, why), n in counts.most_common()]


def _print(report: dict[str, Any], folder: Path) -> None:
    console = Terminal()
    sheet = Sheet(
        Column("region", align="right"),
        "runs on",
        *(Column(name, align="right") for name in ("nodes", "kernels", "launches", "compile s")),
        Column("files", "prose"),
        title=f"{Path(report['model']).name} for {report['target']}",
    )
    for row in report["regions"]:
        launch, metrics = row.get("launch", {}), row.get("metrics", {})
        took = f"{metrics['compile_seconds']:.1f}" if metrics else ""
        sheet.add(
            str(row["region"]),
            row["backend"],
            str(row["nodes"]),
            str(launch.get("kernels", "")),
            str(launch.get("launches", "")),
            took,
            str(folder / row["folder"]) if "folder" in row else "",
        )
    console.show(sheet)
    for row in report["regions"]:
        for line in _tuning(row.get("tuning", {})):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for row in report["refused"][:_MOST]:
        line = f"{row['count']} x {row['op']} has no kernel: {row['reason']}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not report["refused"]:
        console.print("Every node has a kernel.", markup=False)
