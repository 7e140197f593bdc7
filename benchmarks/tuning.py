"""What does level 3 gain on a WebGPU device, and is it ever slower?

    python benchmarks/tuning.py [mnist magika ...] [--budget 120] [--rounds 25] [--side 512]
                                [--report FILE]

Each model is tuned with an empty store, `fw.compile(model, backend="webgpu", level=3)`. Then its
kernels run tuned, untuned, and untuned once more (A/A) in one process and in turns: calls with
inputs on the host, and what the device's own clock says of the kernels alone. A matmul of `--side`
is tuned in the same way, beside one sum an invocation, which is the naive kernel.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.backends.webgpu.engine import WebGpuBackend
from fusewire.backends.webgpu.executable import WebGpuExecutable
from fusewire.choosing.measure import interval
from fusewire.contract.backend import Config, Fact
from fusewire.contract.region import build, first_device
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Array, Graph
from fusewire.numerics.scale import bindings_of
from fusewire.process.guard import waited
from fusewire.show.why import Tried

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
zoo: Any = import_module("zoo")
BACKEND = WebGpuBackend()
DEVICE = first_device(BACKEND)
MODELS = ("mnist", "mel-frontend", "magika")
NAIVE: Mapping[str, Fact] = {"tile": (1, 1)}
# Rounds before the first that counts; of calls, a round has so many seconds, or one that is longer.
WARMS, BATCH = 2, 0.02


class Contender:
    """Kernels that are cut in one way; seconds of calls, and of kernels, by round."""

    def __init__(self, graph: Graph, options: Mapping[str, Fact]) -> None:
        plain = build(BACKEND, graph, DEVICE, Config(options=options))
        clocked = build(BACKEND, graph, DEVICE, Config(options={**options, "timestamps": True}))
        assert isinstance(clocked, WebGpuExecutable)
        self._plain, self._clocked = plain, clocked
        self._count = 1
        self.calls: list[float] = []
        self.kernels: list[float] = []

    def round(self, inputs: Sequence[Array], counts: bool) -> None:
        """Run with a clock of ours around it, and with the device's; medians are kept."""
        spans, kernels = [], []
        for _ in range(self._count):
            start = time.perf_counter()
            waited(self._plain.run(inputs))
            spans.append(time.perf_counter() - start)
            waited(self._clocked.run(inputs))
            kernels.append(sum(self._clocked.kernel_seconds))
        if counts:
            self.calls.append(median(spans))
            self.kernels.append(median(kernels))
        else:
            self._count = max(1, min(50, round(BATCH / min(spans))))


def compared(ways: Mapping[str, Contender], inputs: Sequence[Array], rounds: int) -> None:
    """Run ways in turns, each round beginning with another."""
    names = list(ways)
    for number in range(WARMS + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            ways[name].round(inputs, counts=number >= WARMS)


def ratio(these: Sequence[float], those: Sequence[float]) -> str:
    """Say what one takes of another, round by round, with the 95% interval of the median."""
    found = [a / b for a, b in zip(these, those, strict=True)]
    low, high = interval(found)
    return f"{median(found):.3f} ({low:.3f} - {high:.3f})"


def tuned(source: Any, inputs: Sequence[Array], budget: float) -> tuple[Any, Tried | None, float]:
    """Have level 3 tune something; give the program, the row of the tuned way, and the seconds."""
    start = time.monotonic()
    program = fw.compile(
        source, backend="webgpu", level=3, start="measured", fallback="error", budget_seconds=budget
    )
    program(*inputs)
    rows = [row for row in program.why().tried if row.tuned]
    return program, rows[0] if rows else None, time.monotonic() - start


def model_row(name: str, budget: float, rounds: int) -> tuple[str, list[str]]:
    """Tune a model and compare; the kernels that gained most are told beside it."""
    zoo.fetch([name])
    inputs = list(zoo.inputs(name).values())
    program, row, seconds = tuned(str(zoo.path(name)), inputs, budget)
    if row is None:
        return f"| {name} | nothing was found | | | | | {seconds:.0f} |", list(program.why().notes)
    graph = bind_symbols(program.graph, dict(bindings_of(program.graph, inputs)))
    options: dict[str, Fact] = {key: tuple(x) for key, x in row.options.items()}
    ways = {
        "untuned": Contender(graph, {}),
        "again": Contender(graph, {}),
        "tuned": Contender(graph, options),
    }
    compared(ways, inputs, rounds)
    one, again, best = ways.values()
    others = [cut for cut in row.tuned if cut["is_other"]]
    kept = "tuned" if row.is_chosen else "untuned"
    told = (
        f"| {name} | {len(others)} of {len(row.tuned)} | {kept} | {median(one.calls) * 1e3:.2f} "
        f"| {ratio(best.calls, one.calls)} | {ratio(again.calls, one.calls)} "
        f"| {ratio(best.kernels, one.kernels)} | {ratio(again.kernels, one.kernels)} "
        f"| {seconds:.0f} |"
    )
    gains = sorted(others, key=lambda cut: -cut["gain"])[:3]
    notes = [f"{x['name']}: {x['gain']:.2f} times as fast with {dict(x['chosen'])}" for x in gains]
    return told, [*notes, *program.why().notes]


def matmul(side: int, budget: float, rounds: int) -> list[str]:
    """Tune a matmul, and compare what was found with the naive kernel."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((side, side)).astype(np.float32) for _ in range(2)]
    program, row, seconds = tuned(lambda x, y: x @ y, inputs, budget)
    found: dict[str, Fact] = dict(row.tuned[0]["chosen"]) if row is not None else {}
    cuts = {"naive": NAIVE, "naive again": NAIVE, "untuned": {}, "tuned": found}
    ways = {name: Contender(program.graph, options) for name, options in cuts.items()}
    compared(ways, inputs, rounds)
    said = {"untuned": "tile (4, 4), workgroup 256", "tuned": f"{found}, found in {seconds:.0f} s"}
    naive = ways["naive"].kernels
    return [f"| matmul {side} | ms on the device | of the naive kernel |", "|---|---|---|"] + [
        f"| {name}{f': {said[name]}' if name in said else ''} | {median(way.kernels) * 1e3:.1f} "
        f"| {ratio(way.kernels, naive)} |"
        for name, way in ways.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Tune kernels on a WebGPU device.")
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    # Nothing is known from before.
    folder = tempfile.TemporaryDirectory(prefix="fusewire-tuning-")
    os.environ["FUSEWIRE_CACHE"] = folder.name
    asked = f"--budget {options.budget:g} --rounds {options.rounds} --side {options.side}"
    lines = [
        "# Kernels tuned: level 3",
        "",
        f"`python benchmarks/tuning.py {' '.join(options.models)} {asked}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, {DEVICE.name}, {DEVICE.facts['driver']}, "
        f"wgpu {BACKEND.info.version}, {os.cpu_count()} cores. "
        + ("The device is a software one. " if DEVICE.is_software else "")
        + "Ratios are medians of rounds, with the 95% interval of the median.",
        "",
        "| model | kernels cut otherwise | kept | untuned ms | tuned / untuned | A/A "
        "| on the device: tuned / untuned | A/A | seconds of tuning |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for name in options.models:
        row, said = model_row(name, options.budget, options.rounds)
        print(row, *said, sep="\n", flush=True)
        lines.append(row)
        notes += [f"- {name}: {x}" for x in said]
    lines += ["", *notes, "", *matmul(options.side, options.budget, options.rounds)]
    text = "\n".join(lines)
    print(text)
    if options.report is not None:
        options.report.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
