"""Where does our graph lose to the engine's own reading of the file? Both forms over the zoo.

    python benchmarks/file_form.py [NAME ...] [--engines openvino] [--seconds 3] [--fixed] [--json]

For each model and engine, in a process of its own: our form, the file form, our form once more
(A/A: built again, so that it shows what memory and chance are worth), and the engine bare on the
path. Calls are interleaved; a ratio is the median of the rounds' ratios to our form, so that below
1 our graph loses. Both forms run as a program runs them: guards included. With --fixed, open sizes
of a file are those of its inputs: OpenVINO reads no file of open sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

from benchmarks.timing import interleaved, ratio  # noqa: E402 - found by the path above
from fusewire.compiler import Session  # noqa: E402
from fusewire.errors import SizesNeededError  # noqa: E402
from fusewire.planning.candidates import Candidate  # noqa: E402
from fusewire.planning.file_form import plan_file  # noqa: E402
from fusewire.planning.planner import make_plan  # noqa: E402
from fusewire.session.context import reference_target  # noqa: E402
from fusewire.session.model_source import ModelSource  # noqa: E402

zoo: Any = import_module("zoo")
ENGINES = ("onnxruntime", "openvino")
Call = Callable[[], Any]
# A model and an engine that take longer are left out, and said to be.
_MOST_SECONDS = 300


def measured(name: str, engine: str, seconds: float, is_fixed: bool) -> dict[str, Any]:
    """Time the forms of one model on one engine."""
    warnings.simplefilter("ignore")
    source, path = ModelSource(zoo.path(name)), str(zoo.path(name))
    given = zoo.inputs(name)
    example = [given[key] for key in source.inputs()]
    try:
        reading = source.read(example if is_fixed else ())
    except SizesNeededError:
        reading = source.read(example, is_open=True)
    session = Session()
    (target,) = session.context.finder.targets(engine)
    graph, fallback = session.rewrite(reading.graph), reference_target()
    planned = make_plan(graph, [target, fallback], fallback)
    row: dict[str, Any] = {"name": name, "engine": engine, "is_whole": planned.plan.is_whole}
    if reading.file is None:
        return {**row, "refused": "the reader found a hazard"}
    own = plan_file(reading.file, target, planned)
    if isinstance(own, str):
        return {**row, "refused": own}

    def program(candidate: Candidate) -> Call:
        runner = session.decider.entries.ready_entry(reading, candidate, None).runner
        return lambda: runner.call(example)

    ways = {
        "ours": program(Candidate(target, planned)),
        "file": program(Candidate(target, own, "file")),
        "again": program(Candidate(target, planned)),
        "bare": bare(engine, path, given),
    }
    answers = {way: call() for way, call in ways.items()}
    times = interleaved(ways, seconds=seconds)
    row |= {way: times[way].median for way in ways}
    row |= {f"{way}_ratio": ratio(times[way], times["ours"]) for way in ways if way != "ours"}
    pairs = zip(answers["file"], answers["ours"], strict=True)
    return {**row, "difference": max(map(difference, *zip(*pairs, strict=True)), default=0.0)}


def bare(engine: str, path: str, given: dict[str, Any]) -> Call:
    """Run the file on the engine's own Python interface, under the settings that we use."""
    if engine == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, given)
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda: list(request.infer(given).values())


def difference(left: Any, right: Any) -> float:
    """Return the largest difference, over the largest element."""
    one, other = np.asarray(left, np.float64), np.asarray(right, np.float64)
    if not one.size:
        return 0.0
    scale = float(np.max(np.abs(other))) or 1.0
    return float(np.max(np.abs(one - other))) / scale


def apart(name: str, engine: str, seconds: float, is_fixed: bool) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, name, "--one", engine, "--seconds", str(seconds)]
    command += ["--fixed"] if is_fixed else []
    row = {"name": name, "engine": engine}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return {**row, "refused": f"it took more than {_MOST_SECONDS} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {**row, "refused": f"failed: {last[:160]}"}
    measured_row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured_row


def mean(rows: list[dict[str, Any]], field: str) -> float:
    return math.exp(sum(math.log(row[field]) for row in rows) / len(rows)) if rows else math.nan


def noise(row: dict[str, Any]) -> float:
    """Return what a ratio must exceed, as a logarithm: twice what A/A shows, and at least 5%."""
    return max(2 * abs(math.log(row["again_ratio"])), 0.05)


def show(row: dict[str, Any]) -> None:
    start = f"| {row['name']} | {row['engine']} |"
    if "refused" in row:
        print(f"{start} {row['refused']} | | | | |", flush=True)
        return
    ours = f"{row['ours'] * 1e3:.3f}" + ("" if row["is_whole"] else " (several regions)")
    ratios = " | ".join(f"{row[f'{way}_ratio']:.2f}" for way in ("file", "again", "bare"))
    print(f"{start} {ours} | {ratios} | {row['difference']:.1e} |", flush=True)


def summary(rows: list[dict[str, Any]]) -> None:
    for engine in ENGINES:
        found = [row for row in rows if row["engine"] == engine and "refused" not in row]
        if not found:
            continue
        wins = [row for row in found if -math.log(row["file_ratio"]) > noise(row)]
        losses = [row for row in found if math.log(row["file_ratio"]) > noise(row)]
        print(
            f"\n{engine}: {len(found)} models; file over ours {mean(found, 'file_ratio'):.3f}, "
            f"A/A {mean(found, 'again_ratio'):.3f}, bare over ours "
            f"{mean(found, 'bare_ratio'):.3f} (geometric means). Beyond the noise the file "
            f"wins {len(wins)} ({', '.join(row['name'] for row in wins) or 'none'}) and loses "
            f"{len(losses)} ({', '.join(row['name'] for row in losses) or 'none'})."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--one", help="measure one model on this engine, here")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    if told.one:
        print(json.dumps(measured(told.names[0], told.one, told.seconds, told.fixed)))
        return
    names = told.names or list(zoo.MODELS)
    zoo.fetch(names)
    versions = {name: metadata.version(name) for name in told.engines.split(",")}
    if not told.json:
        print(f"{platform.processor() or platform.machine()}, {versions}\n")
        print("| model | engine | ours ms | file/ours | A/A | bare/ours | difference |")
        print("|---|---|---|---|---|---|---|")
    rows = []
    for name in names:
        for engine in told.engines.split(","):
            rows.append(apart(name, engine, told.seconds, told.fixed))
            if not told.json:
                show(rows[-1])
    if told.json:
        print(json.dumps({"versions": versions, "rows": rows}))
    else:
        summary(rows)


if __name__ == "__main__":
    main()
