"""One model of the zoo: is every engine right about it, and what does Fusewire cost?"""

from __future__ import annotations

import os
import time
import warnings
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import fusewire as fw
from benchmarks.timing import interleaved, ratio
from fusewire.errors import FusewireError, SizesNeededError
from fusewire.ir.graph import Graph
from fusewire.numerics.oracle import Oracle

# Put on the path by zoo.py.
zoo: Any = import_module("zoo")
# Threads of one session spin on after a call, and would take a core from the next one's.
_PAUSE = 0.05
THREADS = len(os.sched_getaffinity(0))


def right(name: str, engines: tuple[str, ...], first: bool, runs: int) -> dict[str, Any]:
    """Judge every engine at every input set of a model."""
    warnings.simplefilter("ignore")
    path = str(zoo.path(name))
    count = 1 if first else 1 + len(zoo.MODELS[name]["variants"])
    start = time.perf_counter()
    try:
        graph: Graph | None = fw.load(path)
    except SizesNeededError:
        graph = None
    found: dict[str, Any] = {"load": time.perf_counter() - start, "sets": []}
    found["symbolic"] = graph is not None
    programs: dict[tuple[str, str], Any] = {}
    for variant in range(count):
        given = _inputs(name, variant)
        model = graph if graph is not None else fw.trace(path, *given)
        start = time.perf_counter()
        oracle = Oracle(model, given, runs=runs)
        _ = oracle.outputs
        row: dict[str, Any] = {"oracle": time.perf_counter() - start, "engines": {}}
        row["nodes"] = len(model.nodes)
        row["engines"]["bare onnxruntime"] = _judged(oracle, lambda g: _bare(path, g), given)
        for engine in engines:
            ask = partial(_engine, path, engine, given=given, oracle=oracle, programs=programs)
            row["engines"][engine] = alone = ask("error")
            # What runs there without fallback runs just so with it.
            if alone["status"] == "refused":
                row["engines"][f"{engine} + fallback"] = ask("allow")
        found["sets"].append(row)
    return found


def _inputs(name: str, variant: int) -> list[Any]:
    """Make inputs in the order of the file."""
    made = zoo.inputs(name, variant=variant)
    return [made[x.name] for x in _session(str(zoo.path(name))).get_inputs()]


def _engine(
    path: str,
    engine: str,
    fallback: str,
    given: list[Any],
    oracle: Oracle,
    programs: dict[tuple[str, str], Any],
) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        program = programs.get((engine, fallback))
        if program is None:
            options = fw.Options.of(None, {"fallback": fallback})
            program = fw.compile(path, options=options, backend=engine, deadline=600.0)
            programs[(engine, fallback)] = program
    except FusewireError as error:
        return {"status": "refused", "reason": str(error), "compile": time.perf_counter() - start}
    made = time.perf_counter() - start
    row = _judged(oracle, lambda g: program(*g), given)
    row["compile"] = made
    if row["status"] != "refused":
        regions = program.plan.regions()
        row["regions"] = len(regions)
        others = [r for r in regions if r.backend != engine]
        row["host"] = sum(len(r.graph.nodes) for r in others)
    return row


def _judged(oracle: Oracle, run: Any, given: list[Any]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        outputs = run(given)
    except FusewireError as error:
        return {"status": "refused", "reason": str(error)}
    first = time.perf_counter() - start
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    verdict = oracle.judge(outputs)
    return {
        "status": verdict.status,
        "error": verdict.error,
        "unjudged": verdict.unjudged,
        "reason": verdict.reason,
        "codes": verdict.codes_differ,
        "first call": first,
    }


_SESSIONS: dict[str, Any] = {}


def _session(path: str) -> Any:
    import onnxruntime

    if path not in _SESSIONS:
        _SESSIONS[path] = onnxruntime.InferenceSession(path, _options())
    return _SESSIONS[path]


def _bare(path: str, given: list[Any]) -> list[Any]:
    session = _session(path)
    names = [x.name for x in session.get_inputs()]
    return list(session.run(None, dict(zip(names, given, strict=True))))


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    return options


def speed(name: str, engines: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Time Fusewire on each engine against the engine run bare on the file."""
    warnings.simplefilter("ignore")
    path = str(zoo.path(name))
    given = _inputs(name, 0)
    return {"engines": {engine: _compared(path, engine, given, seconds) for engine in engines}}


def _compared(path: str, engine: str, given: list[Any], seconds: float) -> dict[str, Any]:
    bare = {"onnxruntime": _bare_onnxruntime, "openvino": _bare_openvino}[engine]
    start = time.perf_counter()
    try:
        run, again = bare(path, given), bare(path, given)
    except Exception as error:  # noqa: BLE001 - a bare engine throws anything; the row says it
        return {"refused": f"bare: {error}"[:300]}
    loaded = (time.perf_counter() - start) / 2
    start = time.perf_counter()
    try:
        program = fw.compile(path, backend=engine, fallback="error", threads=THREADS)
        program(*given)
    except FusewireError as error:
        return {"refused": str(error)[:300]}
    made = time.perf_counter() - start
    ways = {"bare": run, "ours": lambda: program(*given), "again": again}
    found = interleaved(ways, seconds=seconds, pause=_PAUSE)
    return {
        "bare": found["bare"].median,
        "ours": found["ours"].median,
        "ratio": ratio(found["ours"], found["bare"]),
        "noise": ratio(found["again"], found["bare"]),
        "spread": found["ours"].spread,
        "rounds": len(found["bare"].samples),
        "load": loaded,
        "compile": made,
    }


def _bare_onnxruntime(path: str, given: list[Any]) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, _options())
    feeds = {x.name: a for x, a in zip(session.get_inputs(), given, strict=True)}
    session.run(None, feeds)
    return lambda: session.run(None, feeds)


def _bare_openvino(path: str, given: list[Any]) -> Any:
    import openvino

    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": THREADS,
    }
    request = core.compile_model(path, "CPU", settings).create_infer_request()
    fixed = [np.ascontiguousarray(x) for x in given]

    def run() -> list[Any]:
        # Fresh arrays out: what `infer` gives are views of the request's own buffers.
        request.infer(fixed)
        return [np.array(request.get_output_tensor(i).data) for i in range(len(request.results))]

    run()
    return run
