"""Start warm: from a model's file to its first answer, in a process that follows another.

Fusewire has compiled the file before, and remembers it; the engine run bare has its own quickest
form of the same model: for ONNX Runtime the faster of the file and its optimised model, for
OpenVINO the faster of the file and its exported blob, for XLA there is none, and the measure is its
own cold compile. Every start is a process of its own; importing the engine counts on both sides,
importing NumPy, Fusewire and the inputs on none. Starts take turns; medians.

    python benchmarks/warm.py --times 5 --engines onnxruntime openvino xla
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent
OURS = """
import sys, time
import numpy as np
import fusewire as fw
fw.compile
path, backend, given = sys.argv[1:4]
with np.load(given) as found:
    inputs = [found[name] for name in found.files]
start = time.perf_counter()
program = fw.compile(path, backend=backend, fallback="error", threads=2, level=0)
program(*inputs)
print(time.perf_counter() - start)
"""
ONNXRUNTIME = """
import sys, time
import numpy as np
path, optimise, given = sys.argv[1:4]
with np.load(given) as found:
    inputs = [found[name] for name in found.files]
start = time.perf_counter()
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
options.log_severity_level = 4
if optimise == "none":
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
names = [x.name for x in session.get_inputs()]
session.run(None, dict(zip(names, inputs, strict=True)))
print(time.perf_counter() - start)
"""
OPENVINO = """
import sys, time
import numpy as np
path, form, given = sys.argv[1:4]
with np.load(given) as found:
    inputs = [found[name] for name in found.files]
start = time.perf_counter()
import openvino
core = openvino.Core()
settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": 2}
if form == "blob":
    with open(path, "rb") as file:
        compiled = core.import_model(file.read(), "CPU", settings)
else:
    compiled = core.compile_model(path, "CPU", settings)
compiled(inputs)
print(time.perf_counter() - start)
"""
PREPARE = {
    "onnxruntime": """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
options.log_severity_level = 4
options.optimized_model_filepath = sys.argv[2]
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
""",
    "openvino": """
import sys, openvino
settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": 2}
compiled = openvino.Core().compile_model(sys.argv[1], "CPU", settings)
open(sys.argv[2], "wb").write(compiled.export_model().getvalue())
""",
}


def started(script: str, *words: str, cache: Path | None = None) -> float | None:
    """Run a process and give the seconds that it prints; None when it fails."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    env["FUSEWIRE_CACHE"] = "off" if cache is None else str(cache)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *words],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return float(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout else None


def bare_ways(engine: str, model: Path, given: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """List how an engine can get from a file to an answer; its own quick form is made here."""
    own = folder / f"{model.stem}.{engine}"
    own = own.with_suffix(".onnx") if engine == "onnxruntime" else own
    ready = [sys.executable, "-W", "ignore", "-c", PREPARE[engine], str(model), str(own)]
    is_made = subprocess.run(ready, capture_output=True, check=False).returncode == 0
    script, plain, quick = {
        "onnxruntime": (ONNXRUNTIME, "all", "none"), "openvino": (OPENVINO, "file", "blob"),
    }[engine]  # fmt: skip
    ways = {"file": (script, str(model), plain, given)}
    if is_made and own.exists():
        ways["own"] = (script, str(own), quick, given)
    return ways


def measured(name: str, engine: str, times: int, folder: Path) -> dict[str, Any]:
    """Start ours and theirs in turns."""
    zoo: Any = import_module("zoo")
    model, given = zoo.path(name), folder / f"{name}.npz"
    if not given.exists():
        np.savez(given, **zoo.inputs(name))
    cache = folder / f"cache-{engine}"
    ours = (OURS, str(model), engine, str(given))
    cold = started(*ours, cache=cache)
    if cold is None:
        return {"refused": True}
    ways: Mapping[str, tuple[str, ...]] = (
        {} if engine == "xla" else bare_ways(engine, model, str(given), folder)
    )
    found: dict[str, list[float]] = {"ours": [], **{way: [] for way in ways}}
    for _ in range(times):
        for way in found:
            took = started(*ours, cache=cache) if way == "ours" else started(*ways[way])
            if took is not None:
                found[way].append(took)
    medians = {way: statistics.median(x) for way, x in found.items() if x}
    best = min((m for way, m in medians.items() if way != "ours"), default=cold)
    return {"cold": cold, "medians": medians, "ratio": medians["ours"] / best}


def main() -> None:
    """Measure the zoo, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=["onnxruntime", "openvino", "xla"])
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT / "zoo"))
    zoo: Any = import_module("zoo")
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in asked.engines:
            for name in asked.models or zoo.MODELS:
                row = rows[f"{engine} {name}"] = measured(name, engine, asked.times, Path(folder))
                print(f"{engine} {name}: {json.dumps(row)}", flush=True)
    for engine in asked.engines:
        ratios = [
            r["ratio"] for key, r in rows.items() if key.split()[0] == engine and "ratio" in r
        ]
        mean = math.exp(statistics.mean(map(math.log, ratios)))
        print(
            f"{engine}: geometric mean {mean:.3f}, largest {max(ratios):.2f}, {len(ratios)} models"
        )
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
