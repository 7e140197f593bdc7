"""From a model file to the first answer, in a second process: ours against the engine's quickest.

    python benchmarks/warm.py [--engines onnxruntime,openvino,xla] [--models a,b] [--times 5]

Every run is a fresh process in which NumPy, the inputs and, for ours, Fusewire are there; the clock
starts before the engine is imported. Bare ways are the engine's own: the file; ONNX Runtime's
optimised model, in one file and with its initializers mapped from another; OpenVINO's CACHE_DIR and
its blob.
Cold is ``fw.compile`` with an empty cache, warm the same again; load is the artifact alone, read
from a file without store or plan. Ways take turns; the least of each counts, as other work on the
machine only adds to it. Every answer must have the bits of the same way's other answers, and load
those of cold.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__)
sys.path[:0] = [str(HERE.with_name("zoo")), str(HERE.parents[1])]

from benchmarks.timing import start_environment  # noqa: E402 - the path comes first

zoo: Any = import_module("zoo")
Given = dict[str, np.ndarray]
CPU = ["CPUExecutionProvider"]
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
OURS = ("cold", "warm", "load")
# NaN is lost where the engine's own nodes lose it, as on the bare side: what level 1 chooses.
CONFIGS: dict[str, dict[str, Any]] = {"openvino": {"nan": "engine"}}


# ONNX Runtime, bare.


def _options(saves: Path | None = None, apart: bool = False, is_done: bool = False) -> Any:
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.log_severity_level = 4
    if saves is not None:
        options.optimized_model_filepath = str(saves)
    if apart:
        key = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{key}_file_name", "weights")
        options.add_session_config_entry(f"{key}_min_size_in_bytes", "1024")
    if is_done:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def save_model(model: Path, folder: Path, apart: bool) -> None:
    import onnxruntime as runtime

    options = _options(folder / "model.onnx", apart)
    runtime.InferenceSession(str(model), options, providers=CPU)


def run_session(model: Path, folder: Path, given: Given, is_saved: bool = True) -> list[Any]:
    import onnxruntime as runtime

    path = folder / "model.onnx" if is_saved else model
    session = runtime.InferenceSession(str(path), _options(is_done=is_saved), providers=CPU)
    return list(session.run(None, {x.name: given[x.name] for x in session.get_inputs()}))


def _infer(compiled: Any, given: Given) -> list[Any]:
    feed = [next(given[name] for name in x.get_names() if name in given) for x in compiled.inputs]
    found = compiled.create_infer_request().infer(feed)
    return [found[output] for output in compiled.outputs]


def compile_file(model: Path, folder: Path, given: Given, is_cached: bool = False) -> list[Any]:
    import openvino

    core = openvino.Core()
    if is_cached:
        core.set_property({"CACHE_DIR": str(folder)})
    return _infer(core.compile_model(str(model), "CPU", SETTINGS), given)


def save_cache(model: Path, folder: Path) -> None:
    import openvino

    core = openvino.Core()
    core.set_property({"CACHE_DIR": str(folder)})
    core.compile_model(str(model), "CPU", SETTINGS)


def save_blob(model: Path, folder: Path) -> None:
    import openvino

    compiled = openvino.Core().compile_model(str(model), "CPU", SETTINGS)
    (folder / "blob").write_bytes(compiled.export_model().getvalue())


def run_blob(model: Path, folder: Path, given: Given) -> list[Any]:
    import openvino

    blob = np.memmap(folder / "blob", np.uint8, "c")
    tensor = openvino.Tensor(blob, shared_memory=True)
    return _infer(openvino.Core().import_model(tensor, "CPU", SETTINGS), given)


def _way(engine: str) -> dict[str, Any]:
    config = CONFIGS.get(engine, {})
    return {"backend": engine, "fallback": "error", "backend_config": config}


def run_ours(engine: str, model: Path, folder: Path, given: Given) -> list[Any]:
    os.environ["FUSEWIRE_CACHE"] = str(folder)
    import fusewire as fw

    found = fw.compile(model, **_way(engine))(*given.values())
    return list(found) if isinstance(found, tuple) else [found]


def save_artifact(engine: str, model: Path, folder: Path, given: Given) -> None:
    """Take the artifact out of what an engine is asked to load."""
    import fusewire as fw
    from fusewire.process.codec import write_record
    from fusewire.registry import REGISTRY

    backend = REGISTRY.backends.get(engine)
    kept: list[Any] = []

    def load(artifact: Any, *rest: Any) -> Any:
        kept.append((artifact, rest[-1]))
        return type(backend).load(backend, artifact, *rest)

    backend.load = load  # type: ignore[method-assign, assignment]  # to see what passes
    program = fw.compile(model, **_way(engine), cache=False)
    program(*given.values())
    ((artifact, weights),) = kept[-1:]
    if weights or not program.plan.is_whole:
        raise SystemExit("one artifact is not all of it")
    blobs: list[Any] = []
    (folder / "row").write_text(json.dumps(write_record(artifact, blobs)))
    for place, blob in enumerate(blobs):
        blob.tofile(folder / f"blob{place}")
    kind = type(backend)
    (folder / "reference").write_text(f"{kind.__module__}:{kind.__name__}")


def run_artifact(engine: str, model: Path, folder: Path, given: Given) -> list[Any]:
    from fusewire.contract.backend import Artifact, Device
    from fusewire.process.codec import read_record

    module, _, name = (folder / "reference").read_text().partition(":")
    blobs = (np.fromfile(path, np.uint8) for path in sorted(folder.glob("blob*")))
    artifact = read_record(json.loads((folder / "row").read_text()), blobs, Artifact)
    backend = getattr(import_module(module), name)()
    return list(backend.load(artifact, Device("cpu", ""), {}).run([*given.values()]))


Save = Callable[[Path, Path], None]
Run = Callable[[Path, Path, Given], list[Any]]
BARE: dict[str, dict[str, tuple[Save | None, Run]]] = {
    "onnxruntime": {
        "file": (None, partial(run_session, is_saved=False)),
        "optimised": (partial(save_model, apart=False), run_session),
        "mapped": (partial(save_model, apart=True), run_session),
    },
    "openvino": {
        "file": (None, compile_file),
        "CACHE_DIR": (save_cache, partial(compile_file, is_cached=True)),
        "blob": (save_blob, run_blob),
    },
}


def child(task: str, engine: str, way: str, name: str, folder: Path) -> dict[str, Any]:
    given = dict(np.load(folder.parent / "given.npz"))
    model, start = zoo.path(name), time.perf_counter()
    if way in OURS:
        if task == "save":
            save_artifact(engine, model, folder, given)
            return {}
        run: Run = partial(run_artifact if way == "load" else run_ours, engine)
    else:
        save, run = BARE[engine][way]
        if task == "save":
            if save is not None:
                save(model, folder)
            return {}
    if way in OURS and way != "load":
        import fusewire as fw

        # Importing Fusewire is not part of a warm start; importing the engine is, on both sides.
        _ = fw.compile
        start = time.perf_counter()
    found = run(model, folder, given)
    seconds = time.perf_counter() - start
    bits = b"".join(np.asarray(x).tobytes() for x in found if x is not None)
    return {"ms": seconds * 1000, "bits": hashlib.sha256(bits).hexdigest()[:8]}


def fresh(task: str, engine: str, way: str, name: str, folder: Path) -> dict[str, Any]:
    words = [sys.executable, "-W", "ignore", __file__, "--child", task, engine, way, name, folder]
    done = subprocess.run(
        [*map(str, words)], env=start_environment(), capture_output=True, text=True
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        return {"problem": f"{way}: {said[0][:160]}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(engine: str, name: str, times: int) -> dict[str, Any]:
    """Prepare every way once, then run all in turns."""
    row: dict[str, Any] = {"engine": engine, "model": name}
    ways = [*BARE.get(engine, {}), "load", "warm"]
    with tempfile.TemporaryDirectory() as top:
        np.savez(Path(top, "given.npz"), **_ordered(name))  # type: ignore[arg-type]  # all arrays
        folders = {way: Path(top, way) for way in ways}
        for way, folder in folders.items():
            folder.mkdir(mode=0o700)
            found = fresh("run" if way == "warm" else "save", engine, way, name, folder)
            if "problem" in found:
                row.setdefault("problems", []).append(found["problem"])
            if way == "warm":
                row |= {"cold": found.get("ms"), "bits": found.get("bits")}
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(times):
            for way, folder in folders.items():
                runs[way].append(fresh("run", engine, way, name, folder))
    for way, found_all in runs.items():
        good = [x for x in found_all if "ms" in x]
        row[way] = min((x["ms"] for x in good), default=None)
        bits = {x["bits"] for x in good}
        if way in OURS:
            bits.add(row["bits"])
        if len(bits) > 1:
            row.setdefault("problems", []).append(f"{way}: other bits from run to run")
    bare = [row[way] for way in BARE.get(engine, {}) if row[way]]
    against = min(bare, default=None) if engine in BARE else row["cold"]
    if against:
        row |= {f"{way} ratio": row[way] and row[way] / against for way in ("load", "warm")}
    return row


def _ordered(name: str) -> Given:
    """Make inputs in the order of the file."""
    import onnxruntime as runtime

    made = zoo.inputs(name)
    session = runtime.InferenceSession(str(zoo.path(name)), _options(), providers=CPU)
    return {x.name: made[x.name] for x in session.get_inputs()}


def show(rows: Sequence[dict[str, Any]]) -> None:
    print(f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}; milliseconds\n")
    for engine in dict.fromkeys(row["engine"] for row in rows):
        mine = [row for row in rows if row["engine"] == engine]
        ways = [*BARE.get(engine, {}), "cold", "load", "warm"]
        ratios = ["load ratio", "warm ratio"]
        print(f"| {engine} | {' | '.join([*ways, *ratios])} |\n|{'---|' * (len(ways) + 3)}")
        for row in mine:
            cells = [f"{row[way]:.0f}" if row.get(way) else "-" for way in ways]
            cells += [f"{row[x]:.2f}" if row.get(x) else "-" for x in ratios]
            print(f"| {row['model']} | {' | '.join(cells)} |")
        for ratio in ratios:
            known = [row[ratio] for row in mine if row.get(ratio)]
            if known:
                mean = np.exp(np.mean(np.log(known)))
                print(f"\n{ratio}: geometric mean {mean:.3f} over {len(known)} models.")
        for row in mine:
            for problem in row.get("problems", ()):
                print(f"\n{row['model']}: {problem}")
        print()


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        task, engine, way, name, folder = sys.argv[2:]
        print(json.dumps(child(task, engine, way, name, Path(folder))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default="onnxruntime,openvino")
    parser.add_argument("--models", default=",".join(zoo.MODELS))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [
        measure(engine, name, given.times)
        for engine in given.engines.split(",")
        for name in given.models.split(",")
    ]
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
