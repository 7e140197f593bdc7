"""The first call of a module, in fresh processes with empty caches, imports apart.

The clock runs from before the program is made to the first answer. Sides take turns, and the
least counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.timing import start_environment

Row = dict[str, Any]
SIDES = {
    "eager": "program = module",
    "fw.compile": "program = fw.compile(module)",
    "dynamo eager": 'program = torch.compile(module, backend="eager")',
    "torch.compile": 'program = torch.compile(module, backend="fusewire")',
}
SCRIPT = """
import sys, time
import torch
import torch._dynamo
import fusewire as fw
fw.compile, fw.Options
from benchmarks.module_case import case_of
case = case_of(sys.argv[1])
module = case.build()
args, kwargs = case.example()
torch.randn(64, 64) @ torch.randn(64, 64)
with torch.no_grad():
    start = time.perf_counter()
    {make}
    program(*args, **kwargs)
    first = time.perf_counter() - start
    start = time.perf_counter()
    program(*args, **kwargs)
    second = time.perf_counter() - start
print("FIRST", first, second, flush=True)
import os
os._exit(0)
"""


def first_calls(name: str, args: argparse.Namespace) -> Row:
    """Take the first call of each side, several times in turns."""
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(args.times):
        for side, make in SIDES.items():
            seconds, said = _first(name, make)
            if said:
                return {"ok": False, "said": f"{side}: {said}"}
            samples[side].append(seconds)
    least = {side: min(values) for side, values in samples.items()}
    ours, theirs = least["fw.compile"], least["eager"]
    is_soon = ours <= max(1.5 * theirs, theirs + 0.05)
    dynamo = least["torch.compile"] / least["dynamo eager"]
    said = ", ".join(f"{side} {seconds * 1e3:.0f} ms" for side, seconds in least.items())
    return {"ok": is_soon and dynamo <= 1.5, "said": said, "least": least, "samples": samples}


def _first(name: str, make: str) -> tuple[float, str]:
    root = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory(prefix="first-") as folder:
        env = {**start_environment(), "FUSEWIRE_CACHE": folder, "PYTHONPATH": root}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT.replace("{make}", make), name],
            env=env,
            capture_output=True,
            text=True,
        )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("FIRST ")]
    if not lines:
        return 0.0, (done.stderr.strip().splitlines() or ["nothing was said"])[-1][:300]
    return float(lines[0][1]), ""
