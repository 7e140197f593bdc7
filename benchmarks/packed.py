"""What do packed weights save? Time and memory of one product, per engine and width of the codes.

    python benchmarks/packed.py [--size 4096] [--rows 1 16] [--json FILE]

Weights [size, size] in float32, int8 and int4 (blocks of 32), multiplied with a few rows. Each case
runs in a process of its own; memory is what the process gained from before the program was made to
after its calls, over what the graph's own constants take.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("onnxruntime", "openvino")
WIDTHS = ("float32", "int8", "int4")


def measure(engine: str, width: str, size: int, rows: int) -> dict[str, Any]:
    """Time one product, and report what it gained in memory and how far it is off."""
    import fusewire as fw
    from fusewire import dtypes
    from fusewire.contract.frontend import Spec
    from fusewire.ir.builder import constant
    from fusewire.ir.graph import Graph, Value
    from fusewire.ops.contraction import matmul
    from fusewire.ops.quantized import matmul_nbits
    from fusewire.system.processes import resident

    rng = np.random.default_rng(0)
    x = Value(Spec((rows, size)).type, "x")
    low, high = (-8, 8) if width == "int4" else (-128, 128)
    codes = rng.integers(low, high, (size, size)).astype(np.int8)
    scale = rng.uniform(0.01, 0.1, (size, size // 32)).astype(np.float32)
    weights = codes.astype(np.float32) * np.repeat(scale, 32, axis=1)
    if width == "float32":
        y = matmul(x, constant(np.ascontiguousarray(weights.T)))
    else:
        held = constant(codes.astype(dtypes.dtype(width).numpy)), constant(scale)
        y = matmul_nbits(x, *held, None, block=32)
    graph = Graph([x], [y], name="product", output_names=["y"])
    given = rng.standard_normal((rows, size)).astype(np.float32)
    exact = given @ weights.T
    before = resident(os.getpid())
    program = fw.compile(graph, backend=engine, fallback="error", isolate="never", cache=False)
    error = float(np.abs(program(given) - exact).max() / np.abs(exact).max())
    times = []
    for _ in range(40):
        start = time.perf_counter()
        program(given)
        times.append(time.perf_counter() - start)
    return {
        "milliseconds": statistics.median(times) * 1e3,
        "megabytes": (resident(os.getpid()) - before) / 1e6,
        "error": error,
    }


def main() -> None:
    """Run every case, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--json")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        engine, width, rows = args.case
        print(json.dumps(measure(engine, width, args.size, int(rows))))
        return
    found: dict[str, Any] = {}
    print("| engine | weights | rows | ms | MB gained | error |\n|---|---|---|---|---|---|")
    for rows in args.rows:
        for engine in ENGINES:
            for width in WIDTHS:
                command = [sys.executable, __file__, "--size", str(args.size)]
                case = [engine, width, str(rows)]
                out = subprocess.check_output([*command, "--case", *case], text=True)
                row = found[" ".join(case)] = json.loads(out.splitlines()[-1])
                cells = f"{row['milliseconds']:.2f} | {row['megabytes']:.0f} | {row['error']:.1e}"
                print(f"| {engine} | {width} | {rows} | {cells} |", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
