"""How much memory a large module takes as a program: no copy of its weights may be ours.

Each row is a process of its own, and its peak of resident memory: the module called as it is; an
engine by itself, with the module as an ONNX file and without PyTorch; the program on that engine.
The last must be at most 1.05 times the sum of the first two.

    python benchmarks/module_memory.py --megabytes 512 --engines onnxruntime,openvino
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, ROWS, CALLS = 4096, 8, 5
MOST = 1.05


def peak() -> int:
    """Return the peak of this process's resident memory, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "Linux has it"
    return int(found[1]) * 1024


def make_module(megabytes: int) -> tuple[Any, Any]:
    """Make a module whose weights take so much, and an argument."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    count = max(megabytes * 2**20 // (WIDTH * WIDTH * 4), 1)
    layers = [layer for _ in range(count) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers).eval(), torch.randn(ROWS, WIDTH)


def run_module(megabytes: int, folder: str) -> None:
    """Call the module itself."""
    import torch

    module, x = make_module(megabytes)
    with torch.no_grad():
        for _ in range(CALLS):
            module(x)


def save(megabytes: int, folder: str) -> None:
    """Write the module to an ONNX file."""
    import onnx.inliner

    import fusewire as fw

    module, x = make_module(megabytes)
    path = Path(folder) / "model.onnx"
    fw.save_onnx(module, path, x, inside_bytes=0)
    # OpenVINO knows no local functions.
    model = onnx.inliner.inline_local_functions(onnx.load(path, load_external_data=False))
    path.write_bytes(model.SerializeToString())


def run_bare(engine: str, folder: str) -> None:
    """Run the ONNX file on an engine as its own documentation does."""
    path, x = str(Path(folder) / "model.onnx"), np.ones((ROWS, WIDTH), np.float32)
    if engine == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        name = session.get_inputs()[0].name
        for _ in range(CALLS):
            session.run(None, {name: x})
    else:
        import openvino

        model = openvino.Core().compile_model(path, "CPU")
        for _ in range(CALLS):
            model([x])


def run_program(megabytes: int, engine: str) -> None:
    """Call the program until the engine answers in this process."""
    import fusewire as fw

    module, x = make_module(megabytes)
    options: Any = {"start": "measured"} if engine == "auto" else {"backend": engine}
    program = fw.compile(module, cache=False, **options)
    program(x)
    # A child may give the first answers, while the engine is loaded here.
    time.sleep(5)
    gc.collect()
    for _ in range(CALLS):
        program(x)
    print(program.run(x).metadata["backend"], file=sys.stderr)


def measured(*words: str) -> int:
    """Run one mode of this file in a process of its own; returns its peak."""
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-2000:]}")
    return int(done.stdout.split()[-1])


def compare(megabytes: int, engines: Sequence[str]) -> list[dict[str, Any]]:
    """Measure all rows."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        measured("save", str(megabytes), folder)
        module = measured("module", str(megabytes), folder)
        for engine in engines:
            bare = measured("bare", engine, folder)
            program = measured("program", str(megabytes), engine)
            rows.append(
                {
                    "engine": engine,
                    "module": module,
                    "bare": bare,
                    "program": program,
                    "ratio": program / (module + bare),
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--engines", default="onnxruntime,openvino")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = compare(arguments.megabytes, arguments.engines.split(","))
    print(
        f"{'engine':14}{'module':>10}{'bare':>10}{'program':>10}{'ratio':>8}   MB, at most {MOST}"
    )
    for row in rows:
        sizes = "".join(f"{row[name] / 2**20:10.0f}" for name in ("module", "bare", "program"))
        print(f"{row['engine']:14}{sizes}{row['ratio']:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(row["ratio"] <= MOST for row in rows) else 1


if __name__ == "__main__":
    modes = {"save": save, "module": run_module, "bare": run_bare, "program": run_program}
    if len(sys.argv) > 1 and sys.argv[1] in modes:
        mode, first, second = sys.argv[1:]
        arguments: tuple[Any, ...] = (first, second) if mode == "bare" else (int(first), second)
        modes[mode](*arguments)  # type: ignore[operator]  # each takes what its mode is given
        print(peak())
    else:
        sys.exit(main())
