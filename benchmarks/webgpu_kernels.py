"""What do fused kernels save on a WebGPU device, and which tile of a matmul is best?

    python benchmarks/webgpu_kernels.py [--elements 10000000] [--side 512] [--rounds 7] [--report F]

Each pattern runs as one submission twice over: its fused kernels, and a kernel for every node. The
two alternate, and the fused ones run against themselves as well (A/A). A matmul runs with every
tile, against one sum an invocation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from fusewire import ops
from fusewire.backends.webgpu.engine import WebGpuBackend
from fusewire.backends.webgpu.executable import WebGpuExecutable
from fusewire.backends.webgpu.program import Program, size_of
from fusewire.backends.webgpu.space import TILES, WebGpuSpace
from fusewire.contract.backend import Config, Executable
from fusewire.contract.region import build, edge_slots, first_device
from fusewire.fusion.origins import expand_with_origins
from fusewire.ir.graph import Array, Graph
from fusewire.kernel.lower.region import lower
from fusewire.kernel.lower.table import refusal
from fusewire.kernel.program import ProgramWriter
from fusewire.process.guard import waited

BACKEND = WebGpuBackend()
DEVICE = first_device(BACKEND)


def chain(x: Any) -> Any:
    for _ in range(2):
        x = np.maximum((x + 1.0) * 0.5, 0.25) + x
    return x


def unfused(graph: Graph) -> Executable:
    """Build a region with a kernel for every node."""
    configured = WebGpuSpace(DEVICE, BACKEND.lowerings).configured(Config())
    region = lower(expand_with_origins(graph, refusal).graph)
    program = Program(*ProgramWriter(region, configured.print, size_of).write())
    context = BACKEND.context(DEVICE)
    return WebGpuExecutable(context, program, edge_slots(graph), {}, lambda lost: lost)


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def medians(ways: Sequence[Executable], inputs: Sequence[Array], rounds: int) -> list[float]:
    """Time ways in turns, on inputs that are on the device already."""
    context = BACKEND.context(DEVICE)
    types = [value.type for value in fw.trace(lambda *x: x, *inputs).inputs]
    held = [context.upload(x, t) for x, t in zip(inputs, types, strict=True)]  # type: ignore[arg-type] # tensors
    found: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, spans in zip(ways, found, strict=True):
            span = timed(lambda way=way: waited(way.run(held)))  # type: ignore[misc] # bound at once
            if number:
                spans.append(span)
    return [float(np.median(spans)) for spans in found]


def patterns(elements: int, rounds: int) -> list[str]:
    """Compare fused and unfused kernels."""
    rng = np.random.default_rng(0)
    flat = rng.standard_normal(elements).astype(np.float32)
    rows = rng.standard_normal((max(elements // 7680, 1), 768)).astype(np.float32)
    scale = rng.standard_normal(768).astype(np.float32)
    cases: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
        f"8 cheap ops, {elements:,}": (chain, (flat,)),
        f"softmax, {rows.shape}": (ops.softmax, (rows,)),
        f"layer norm, {rows.shape}": (
            lambda x, s: ops.layer_norm(x, s, s, axis=-1),
            (rows, scale),
        ),
    }
    lines = [
        "| pattern | kernels | fused ms | unfused ms | fused / unfused | A/A |",
        "|---|---|---|---|---|---|",
    ]
    for name, (function, inputs) in cases.items():
        graph = fw.trace(function, *inputs)
        artifact = BACKEND.compile(graph, DEVICE, Config())
        ways = [build(BACKEND, graph, DEVICE), build(BACKEND, graph, DEVICE), unfused(graph)]
        fused, again, plain = medians(ways, inputs, rounds)
        lines.append(
            f"| {name} | {artifact.launch['dispatches']} | {fused * 1e3:.1f} | {plain * 1e3:.1f} "
            f"| {fused / plain:.3f} | {again / fused:.3f} |"
        )
    return lines


def tiles(side: int, rounds: int) -> list[str]:
    """Compare the tiles of a matmul with one sum an invocation."""
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((side, side)).astype(np.float32) for _ in range(2)]
    graph = fw.trace(lambda x, y: x @ y, *inputs)
    sizes = [(1, 1), (1, 1), *((n, m) for n in TILES[2:4] for m in TILES[2:4]), (1, 16)]
    ways = [build(BACKEND, graph, DEVICE, Config(options={"tile": size})) for size in sizes]
    found = medians(ways, inputs, rounds)
    lines = [f"| matmul {side}, tile | ms | of one sum an invocation |", "|---|---|---|"]
    for size, span in zip(sizes, found, strict=True):
        lines.append(f"| {size[0]} x {size[1]} | {span * 1e3:.1f} | {span / found[0]:.3f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Time fused kernels on a WebGPU device.")
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    said = (
        f"`python benchmarks/webgpu_kernels.py --elements {options.elements} --side {options.side} "
        f"--rounds {options.rounds}`, {datetime.now(UTC):%Y-%m-%d}, {DEVICE.name}, "
        f"{DEVICE.facts['driver']}, wgpu {BACKEND.info.version}. Medians; inputs on the device."
    )
    lines = ["# Kernels of ours on WebGPU", "", said, ""]
    lines += [*patterns(options.elements, options.rounds), ""]
    text = "\n".join([*lines, *tiles(options.side, options.rounds)])
    print(text)
    if options.report is not None:
        options.report.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
