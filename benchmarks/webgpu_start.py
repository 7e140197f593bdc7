"""How long does a process take to its first answer on WebGPU, with and without Mesa's shaders?

    python benchmarks/webgpu_start.py [--times 5] [--report FILE]

Each start is a process of its own, after its imports: compile, then run once. *Empty*: a new
MESA_SHADER_CACHE_DIR each time; *warm*: one that an earlier process filled. The cache is the
driver's: Fusewire's own is off.
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

CHILD = """
import json, time
import numpy as np
import fusewire as fw
from fusewire import ops

def block(x, w):
    return ops.softmax(ops.layer_norm(ops.gelu(x @ w)))

x, w = (np.ones(shape, np.float32) for shape in ((64, 128), (128, 128)))
fw.devices()
start = time.perf_counter()
program = fw.compile(block, x, w, backend="webgpu", fallback="error", isolate=False, cache=False)
made = time.perf_counter()
program(x, w)
print(json.dumps([made - start, time.perf_counter() - made]))
"""


def start(folder: str) -> tuple[float, float]:
    """Give the seconds of compiling and of the first call of a new process."""
    found = {**os.environ, "MESA_SHADER_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=found, capture_output=True, text=True, check=True
    )
    made, ran = json.loads(done.stdout)
    return made, ran


def main() -> int:
    parser = argparse.ArgumentParser(description="Time first answers on WebGPU.")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {"empty": [], "warm": []}
    with tempfile.TemporaryDirectory() as kept:
        start(kept)
        for _ in range(options.times):
            with tempfile.TemporaryDirectory() as fresh:
                rows["empty"].append(start(fresh))
            rows["warm"].append(start(kept))
    lines = [
        "# First answers on WebGPU", "",
        f"`python benchmarks/webgpu_start.py --times {options.times}`, "
        f"{datetime.now(UTC):%Y-%m-%d}; matmul, gelu, layer norm, softmax. Medians.", "",
        "| Mesa's shader cache | compile s | first call s | together |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, found in rows.items():
        made, ran = np.median(np.array(found), axis=0)
        lines.append(f"| {name} | {made:.2f} | {ran:.2f} | {made + ran:.2f} |")
    text = "\n".join(lines)
    print(text)
    if options.report is not None:
        options.report.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
