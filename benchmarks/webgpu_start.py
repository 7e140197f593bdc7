"""How long does a process take to its first answer on WebGPU, with and without Mesa's shaders?

    python benchmarks/webgpu_start.py [--times 5] [--report FILE]

Each start is a process of its own, after its imports: open the device and try it, compile, run
twice. *Empty*: a new MESA_SHADER_CACHE_DIR each time; *warm*: one that an earlier process filled.
The cache is the driver's: Fusewire's own is off.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fusewire.contract.region import first_device
from fusewire.registry import REGISTRY

CHILD = """
import json, time
import numpy as np
import fusewire as fw
from fusewire import ops
from fusewire.registry import REGISTRY

def block(x, w):
    return ops.softmax(ops.layer_norm(ops.gelu(x @ w)))

x, w = (np.ones(shape, np.float32) for shape in ((64, 128), (128, 128)))
took, start = [], time.perf_counter()
def lap():
    global start
    took.append(time.perf_counter() - start)
    start = time.perf_counter()
REGISTRY.meet("webgpu", isolate=False)
lap()
program = fw.compile(block, x, w, backend="webgpu", fallback="error", isolate=False, cache=False)
lap()
for _ in range(2):
    program(x, w)
    lap()
print(json.dumps(took))
"""


def start(folder: str) -> list[float]:
    """Give the seconds of opening, compiling and two calls of a new process."""
    found = {**os.environ, "MESA_SHADER_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=found, capture_output=True, text=True, check=True
    )
    took: list[float] = json.loads(done.stdout)
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description="Time first answers on WebGPU.")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    engine = REGISTRY.get("webgpu")
    device = first_device(engine)
    rows: dict[str, list[list[float]]] = {"empty": [], "warm": []}
    with tempfile.TemporaryDirectory() as kept:
        start(kept)
        for _ in range(options.times):
            with tempfile.TemporaryDirectory() as fresh:
                rows["empty"].append(start(fresh))
            rows["warm"].append(start(kept))
    lines = [
        "# First answers on WebGPU",
        "",
        f"`python benchmarks/webgpu_start.py --times {options.times}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, {engine.info.name} {engine.info.version}, {device.name}, "
        f"{device.facts['driver']}; matmul, gelu, layer norm, softmax. Medians, in seconds.",
        "",
        "| Mesa's shader cache | open the device | compile | first call | second call |",
        "|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        medians = np.median(np.array(found), axis=0)
        lines.append(f"| {name} | {' | '.join(f'{seconds:.3f}' for seconds in medians)} |")
    text = "\n".join(lines)
    print(text)
    if options.report is not None:
        options.report.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
