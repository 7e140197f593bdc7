"""Do our Triton kernels compile for GPUs that are not here, and are they right where they can run?

    python benchmarks/triton_targets.py suite [--slice 1/8] [--targets cuda:sm_80,hip:gfx942]
    python benchmarks/triton_targets.py zoo [mnist magika ...] [--targets ...]
    python benchmarks/triton_targets.py run mnist magika ...

`suite` compiles every kernel of the claimed samples of the conformance suite, each text once;
`zoo` compiles models whole; `run` interprets models and has the oracle judge them; random fused
regions are for `fused_regions.py --engine triton`. `--report FILE` adds the figures to a file.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
sys.path.insert(0, str(Path(__file__).parent.parent))

import fusewire as fw
from fusewire.backends.triton.engine import TritonBackend
from fusewire.backends.triton.program import Program
from fusewire.backends.triton.targets import Target
from fusewire.contract.backend import Config, Device
from fusewire.contract.frontend import Limits
from fusewire.contract.region import build
from fusewire.errors import FusewireError
from fusewire.ir.graph import Graph
from fusewire.numerics.oracle import Oracle
from fusewire.ops.table import all_ops
from fusewire.planning.claims import ask
from fusewire.planning.target import Target as BackendTarget
from fusewire.registry import REGISTRY
from fusewire.rewrite.pipeline import run_pipeline
from fusewire.testing.conformance import cases, sliced
from fusewire.testing.suite import is_tensor_op, merge

zoo: Any = import_module("zoo")
TARGETS = "cuda:sm_80,cuda:sm_90,hip:gfx942"
# Cases that are lowered together: one import of a module for all of them.
BATCH = 24
# The interpreter takes as long for a small tile as for a large one.
LARGE = Config(options={"block": 8192, "tile": 32768, "rows": 128, "columns": 128, "depth": 128})
Rows = list[list[str]]


class Bench:
    """A backend, its interpreter, and what was found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.backend = TritonBackend()
        device = self.backend.probe()[-1]
        assert isinstance(device, Device)
        self.home = BackendTarget(self.backend, device)
        self.targets = [Target.of(name) for name in options.targets.split(",")]
        self.options = options
        self.failed: list[str] = []

    def compile(self, name: str, program: Program, target: Target) -> list[dict[str, Any]]:
        """Compile all kernels of a program; what fails is noted, kernel by kernel."""
        try:
            return self.backend.compiler.compile(program, target.triton, self.options.measured)
        except FusewireError as error:
            self.failed.append(f"{name} for {target}: {error}")
            return []


def suite(bench: Bench) -> Rows:
    """Compile the kernels of all claimed samples; those of one text count once."""
    texts: dict[str, Counter[str]] = {str(target): Counter() for target in bench.targets}
    for part in _batches(bench):
        program = bench.backend.lower(merge(part), Config())
        for target in bench.targets:
            start = time.perf_counter()
            made = bench.compile("suite", program, target)
            texts[str(target)].update(kernels=len(program.functions), compiled=len(made))
            texts[str(target)].update(bytes=sum(about["bytes"] for about in made))
            texts[str(target)].update(milliseconds=int(1e3 * (time.perf_counter() - start)))
        print({name: dict(counts) for name, counts in texts.items()}, flush=True)
    head = ["target", "kernels", "compiled", "MB", "seconds"]
    return [head] + [
        [
            name,
            f"{c['kernels']:,}",
            f"{c['compiled']:,}",
            f"{c['bytes'] / 1e6:.1f}",
            f"{c['milliseconds'] / 1e3:,.0f}",
        ]
        for name, c in texts.items()
    ]


def _batches(bench: Bench) -> Iterator[list[Graph]]:
    held: list[Graph] = []
    part = Fraction(bench.options.part)
    for op in all_ops().values():
        if not is_tensor_op(op):
            continue
        for case in sliced([c for c in cases([op]) if c.is_numeric], part):
            said = ask(bench.home, case.make()[0])
            if said.refusals or not said.graph.nodes:
                continue
            held.append(said.graph)
            if len(held) == BATCH:
                yield held
                held = []
    if held:
        yield held


def compile_zoo(bench: Bench) -> Rows:
    """Compile models for every target, if Triton takes all of them."""
    rows = [
        [
            "model",
            "nodes",
            "kernels",
            "launches",
            *(f"{t}: compiled, s, most registers, spilled B" for t in bench.targets),
        ]
    ]
    for name in bench.options.names or zoo.MODELS:
        graph, _ = _model(name)
        said = ask(bench.home, graph)
        if said.refusals:
            reasons = Counter(why.reason for why in said.refusals.values())
            rows.append([name, str(len(graph.nodes)), "", "", *reasons])
        else:
            program = bench.backend.lower(said.graph, Config())
            counts = [len(graph.nodes), len(program.functions), len(program.turns())]
            found = [_compiled(bench, name, program, target) for target in bench.targets]
            rows.append([name, *map(str, counts), *found])
        print(" | ".join(rows[-1])[:300], flush=True)
    return rows


def _compiled(bench: Bench, name: str, program: Program, target: Target) -> str:
    start = time.perf_counter()
    made = bench.compile(name, program, target)
    seconds = time.perf_counter() - start
    most = max((about.get("registers", 0) for about in made), default=0)
    spilled = sum(about.get("spill_bytes", 0) for about in made)
    whole = "wholly" if len(made) == len(program.functions) else "not"
    return f"{whole}, {seconds:.0f}, {most}, {spilled}"


def _model(name: str) -> tuple[Graph, list[Any]]:
    """Read a model of the zoo at its own sizes."""
    path = zoo.path(name)
    made = zoo.inputs(name)
    ports = REGISTRY.frontend_for(path).open(path, Limits()).inputs
    given = [made[port] for port in ports]
    return run_pipeline(fw.trace(str(path), *given)).graph, given


def run_zoo(bench: Bench) -> Rows:
    """Interpret models and judge them."""
    rows = [["model", "kernels", "programs", "seconds", "verdict"]]
    for name in bench.options.names:
        graph, given = _model(name)
        said = ask(bench.home, graph)
        if said.refusals:
            rows.append([name, "", "", "", f"refused: {next(iter(said.refusals.values())).reason}"])
            continue
        program = bench.backend.lower(said.graph, LARGE)
        start = time.perf_counter()
        got = build(bench.backend, said.graph, bench.home.device, LARGE).run(given)
        seconds = time.perf_counter() - start
        verdict = Oracle(graph, given).judge(list(got))
        if verdict.status != "right":
            bench.failed.append(f"{name}: {verdict.reason}")
        programs = sum(launch.grid[0] for launch, _ in program.turns())
        rows.append(
            [
                name,
                str(len(program.functions)),
                f"{programs:,}",
                f"{seconds:.0f}",
                f"{verdict.status}, {verdict.error:.2f} of the tolerance",
            ]
        )
        print(rows[-1], flush=True)
    return rows


WORKS: dict[str, Callable[[Bench], Rows]] = {
    "suite": suite,
    "zoo": compile_zoo,
    "run": run_zoo,
}


def report(options: argparse.Namespace, rows: Rows, failed: Sequence[str], seconds: float) -> str:
    """Say what was found as Markdown."""
    said = " ".join(sys.argv[1:])
    host = f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} cores"
    lines = [
        f"## {options.work}",
        "",
        f"`python benchmarks/triton_targets.py {said}`, {datetime.now(UTC):%Y-%m-%d}, "
        f"{seconds:.0f} s, Triton {TritonBackend().info.version}, {host}.",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"**{len(failed)} failures.**",
        *(f"- {line}" for line in failed),
        "",
    ]
    lines.insert(5, f"|{'---|' * len(rows[0])}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile and interpret Triton kernels.")
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("names", nargs="*", help="models of the zoo")
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--slice", dest="part", default="1/1", help="of the suite, such as 1/8")
    parser.add_argument("--measured", action="store_true", help="also ask for registers and spills")
    parser.add_argument("--report", type=Path, help="add the figures to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    started, bench = time.monotonic(), Bench(options)
    rows = WORKS[options.work](bench)
    text = report(options, rows, bench.failed, time.monotonic() - started)
    print(text)
    if options.report is not None:
        with options.report.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    bench.backend.close()
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
