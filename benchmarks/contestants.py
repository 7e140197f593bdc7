"""One engine run bare, or Fusewire, in a process of its own: what engines.py asks for batches.

    python -m benchmarks.contestants '{"engine": "onnxruntime", "row": "tiny MLP", ...}'

Says how it is called best, then, for each line with a number, the median seconds of so many calls.
All contestants get the same arrays, and give arrays that the caller may keep: new ones, or copies
of what an engine will write over. Of the ways to call an engine that do so, the quickest is taken.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Way = Callable[[], Sequence[Any]]
# Seconds in which ways of one engine are compared.
TRIAL = 0.6
# Weights up to this size are also tried as constants of what XLA compiles.
FOLDED_BYTES = 1 << 20
# Seconds for which Inductor may compile for Fusewire beside other work.
PATIENCE = 1200.0


@dataclass(frozen=True)
class Task:
    """What to run: paths of the model, its inputs, and where outputs go; how, and on how much."""

    engine: str
    row: str
    model: str
    inputs: str
    outputs: str
    threads: int = 2
    align: int = 64
    budget: float = 20.0
    # Where Inductor's package of this row is, or goes.
    package: str = ""
    # The error that Fusewire may make; 0 is none.
    accuracy: float = 0.0
    # How hard Fusewire looks for a plan.
    level: int = 1
    # With an .npz file of samples: the metric that Fusewire is asked for, as module:function, and
    # the least score.
    samples: str = ""
    metric: str = ""
    least: float = 0.0
    # An engine that Fusewire is told to use, and a JSON file of ranges that were measured for it.
    backend: str = ""
    ranges: str = ""


@dataclass(frozen=True)
class Entrant:
    """Ways to call, and what else there is to say."""

    ways: Mapping[str, Way]
    about: Mapping[str, Any]


def aligned(array: Array, align: int) -> Array:
    """Copy an array to a place that is a multiple of so many bytes, and of no more."""
    room = np.empty(array.nbytes + 3 * align, np.uint8)
    start = -room.ctypes.data % (2 * align) + align
    made = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def onnxruntime(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(task.model, options, providers=["CPUExecutionProvider"])
    feeds = dict(inputs)
    first = session.run(None, feeds)
    ways: dict[str, Way] = {"run": lambda: session.run(None, feeds)}
    if not all(isinstance(x, np.ndarray) and x.dtype != object and x.size for x in first):
        return Entrant(ways, {})
    names = [x.name for x in session.get_outputs()]
    held, given = session.io_binding(), session.io_binding()
    for binding in (held, given):
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)

    def bind(binding: Any, arrays: Sequence[Array]) -> None:
        for name, x in zip(names, arrays, strict=True):
            binding.bind_output(name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)

    def bound() -> list[Array]:
        made = [np.empty_like(x) for x in first]
        bind(given, made)
        session.run_with_iobinding(given)
        return made

    def copied() -> list[Array]:
        session.run_with_iobinding(held)
        return [x.copy() for x in first]

    bind(held, first)
    return Entrant({**ways, "IO binding, new outputs": bound, "IO binding, copied": copied}, {})


def onnxruntime_int8(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    """Have the engine's own tool round the weights, per channel; it rounds the rest as it runs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = Path(task.outputs).with_suffix(".int8.onnx")
    quantize_dynamic(task.model, path, per_channel=True, weight_type=QuantType.QInt8)
    return onnxruntime(replace(task, model=str(path)), inputs)


def openvino_own(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    """Leave the precision to the engine: bf16 on processors that have it."""
    return openvino(task, inputs, {})


_F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def openvino(
    task: Task, inputs: Mapping[str, Array], precision: Mapping[str, str] = _F32
) -> Entrant:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        **precision,
        "INFERENCE_NUM_THREADS": task.threads,
    }
    core = openvino.Core()
    ways = openvino_ways(core.compile_model(task.model, "CPU", settings), inputs)
    fixed = core.read_model(task.model)
    if any(x.get_partial_shape().is_dynamic for x in fixed.inputs):
        # What somebody does who knows the sizes; some files do not allow it.
        with suppress(RuntimeError):
            fixed.reshape({name: list(array.shape) for name, array in inputs.items()})
            known = openvino_ways(core.compile_model(fixed, "CPU", settings), inputs)
            ways |= {f"{name}, fixed sizes": way for name, way in known.items()}
    return Entrant(ways, {})


def openvino_ways(compiled: Any, inputs: Mapping[str, Array]) -> dict[str, Way]:
    """List the ways to call a compiled model."""
    import openvino

    request, given = compiled.create_infer_request(), compiled.create_infer_request()
    for name, array in inputs.items():
        for one in (request, given):
            one.set_tensor(name, openvino.Tensor(array, shared_memory=True))

    def copied() -> list[Any]:
        return [x.copy() for x in request.infer(share_outputs=True).values()]

    def bound() -> list[Any]:
        made = [np.empty_like(x) for x in first]
        for place, array in enumerate(made):
            given.set_output_tensor(place, openvino.Tensor(array, shared_memory=True))
        given.infer(share_outputs=True)
        return made

    ways: dict[str, Way] = {
        "infer, copied": copied,
        "call": lambda: list(compiled(dict(inputs)).values()),
    }
    first = copied()
    is_fixed = all(x.get_partial_shape().is_static for x in compiled.outputs)
    if is_fixed and all(x.size for x in first):
        ways["infer, new outputs"] = bound
    return ways


def xla(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    import jax

    from benchmarks.kits import JaxKit
    from benchmarks.workloads import WORKLOADS

    # Otherwise a call is handed to another thread, and waited for.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    function, kit = WORKLOADS[task.row].function, JaxKit()
    weights = WORKLOADS[task.row].made()[0]
    with warnings.catch_warnings(action="ignore"):
        # Without 64 bits, which nobody turns on for this, jax has int32 indices.
        arrays = [jax.device_put(x) for x in inputs.values()]
        placed = jax.device_put(weights)
    call = jax.jit(lambda w, *xs: function(kit, w, *xs))
    compiled = call.lower(placed, *arrays).compile()
    ways: dict[str, Way] = {
        "jit": lambda: [np.asarray(call(placed, *arrays))],
        "compiled": lambda: [np.asarray(compiled(placed, *arrays))],
    }
    if sum(x.nbytes for x in jax.tree.leaves(weights)) <= FOLDED_BYTES:
        folded = jax.jit(lambda *xs: function(kit, weights, *xs))
        ways["jit, constant weights"] = lambda: [np.asarray(folded(*arrays))]
    return Entrant(ways, {})


def numpy(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    from benchmarks.kits import NumpyKit
    from benchmarks.workloads import WORKLOADS

    function, weights = WORKLOADS[task.row].function, WORKLOADS[task.row].made()[0]
    arrays = list(inputs.values())
    return Entrant({"call": lambda: [np.asarray(function(NumpyKit, weights, *arrays))]}, {})


def steps(task: Task, inputs: Mapping[str, Array]) -> tuple[Any, Any]:
    """Make the model a list of functions of PyTorch; PyTorch reads no ONNX files itself."""
    import torch

    from fusewire.backends.torch.program import Program
    from fusewire.backends.torch.refusal import refuses
    from fusewire.backends.torch.storage import quiet_about_read_only
    from fusewire.rewrite.expand import expand
    from fusewire.rewrite.pipeline import run_pipeline
    from fusewire.session.model_source import ModelSource

    torch.set_num_threads(task.threads)
    quiet_about_read_only()
    reading = ModelSource(task.model).read(tuple(inputs.values()))
    graph = run_pipeline(reading.graph).graph
    # Not in inference mode: an export cannot hold constants that were made there.
    with torch.no_grad():
        return Program(expand(graph, refuses).graph), torch


def torch(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    program, library = steps(task, inputs)
    tensors = [library.from_numpy(x) for x in inputs.values()]

    def run() -> Sequence[Any]:
        with library.inference_mode():
            return [x.numpy() for x in program(tensors)]

    return Entrant({"eager": run}, {})


def inductor(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    """Compile the steps as PyTorch documents it, with its own settings and weights inside.

    A package that was compiled before is only loaded.
    """
    program, library = steps(task, inputs)
    tensors = tuple(library.from_numpy(x) for x in inputs.values())

    class Module(library.nn.Module):  # type: ignore[name-defined, misc] # torch is untyped
        def forward(self, *xs: Any) -> tuple[Any, ...]:
            return tuple(program(xs))

    package = Path(task.package)
    if (refused := package.with_suffix(".refused")).exists():
        raise RuntimeError(refused.read_text())
    if not package.exists():
        with library.no_grad():
            exported = library.export.export(Module(), tensors, strict=False)
            made = library._inductor.aoti_compile_and_package(
                exported, package_path=str(package.with_suffix(".new.pt2"))
            )
        Path(made).rename(package)
    loader = library._inductor.aoti_load_package(str(package)).loader
    ways: dict[str, Way] = {"loader": lambda: [x.numpy() for x in loader.run(list(tensors))]}
    return Entrant(ways, {})


def compiled(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    """Have Fusewire compile the row on Inductor, all of it, so that its store has the library."""
    import fusewire as fw

    program = fw.compile(
        task.model, backend="inductor", threads=task.threads, fallback="error", deadline=PATIENCE
    )
    arrays = list(inputs.values())

    def run() -> Sequence[Any]:
        found = program(*arrays)
        return found if isinstance(found, tuple) else [found]

    return Entrant({"program": run}, {})


def fusewire_options(task: Task) -> dict[str, Any]:
    """Give the options of what a task asks of Fusewire."""
    if task.ranges:
        config = {"calibrated": tuple(json.loads(Path(task.ranges).read_text()))}
        chosen = {"backend": task.backend, "level": 0, "backend_config": config}
        return {**chosen, "threads": task.threads}
    given: dict[str, Any] = {"accuracy": task.accuracy or "exact"}
    if task.samples:
        module, _, name = task.metric.partition(":")
        metric = getattr(import_module(module), name)
        given = {"accuracy": (metric, task.least), "calibrate": task.samples}
    return {
        "backend": "auto",
        "start": "measured",
        "threads": task.threads,
        "budget_seconds": task.budget,
        "level": task.level,
        **given,
    }


def fusewire(task: Task, inputs: Mapping[str, Array]) -> Entrant:
    import fusewire as fw
    from fusewire.contract.timing import take_times

    take_times()
    warnings.simplefilter("ignore", fw.FallbackWarning)
    start = time.perf_counter()
    program = fw.compile(task.model, **fusewire_options(task))
    arrays = list(inputs.values())
    program(*arrays)
    seconds = time.perf_counter() - start
    why = program.why()
    tried = [
        {
            k: getattr(row, k)
            for k in (
                "name",
                "backend",
                "form",
                "options",
                "status",
                "reason",
                "seconds",
                "error",
                "regions",
                "elsewhere",
                "is_chosen",
                "is_reduced",
                "expected_error",
                "cache",
            )
        }
        for row in why.tried
    ]
    about = {"backend": why.backend, "tried": tried, "notes": why.notes, "ready": seconds}

    def run() -> Sequence[Any]:
        found = program(*arrays)
        return found if isinstance(found, tuple) else [found]

    return Entrant({"program": run}, about)


ENGINES: dict[str, Callable[[Task, Mapping[str, Array]], Entrant]] = {
    "onnxruntime": onnxruntime,
    "onnxruntime-int8": onnxruntime_int8,
    "openvino": openvino,
    "openvino-own": openvino_own,
    "xla": xla,
    "torch": torch,
    "inductor": inductor,
    "compiled": compiled,
    "numpy": numpy,
    "fusewire": fusewire,
}


def seconds(way: Way, count: int) -> float:
    """Call so many times; the median."""
    now, found = time.perf_counter, []
    for _ in range(count):
        start = now()
        way()
        found.append(now() - start)
    return statistics.median(found)


def quickest(ways: Mapping[str, Way]) -> tuple[str, float]:
    """Compare ways in turns, for a moment; name the best and what a call takes."""
    for way in ways.values():
        way()
    once = {name: seconds(way, 1) for name, way in ways.items()}
    count = math.ceil(0.01 / max(once.values()))
    found: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + TRIAL
    while time.perf_counter() < end:
        for name, way in ways.items():
            found[name].append(seconds(way, count))
    medians = {name: statistics.median(times) for name, times in found.items()}
    best = min(medians, key=lambda name: medians[name])
    return best, medians[best]


def plain(outputs: Sequence[Any]) -> list[Array]:
    """Give the arrays among outputs, those in sequences too."""
    found: list[Array] = []
    for x in outputs:
        found += plain(x) if isinstance(x, list | tuple) else [np.asarray(x)]
    return [x for x in found if x.dtype.kind in "biuf"]


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.threads])
    # Engines print what they like: not into what is said to the other side.
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**what: Any) -> None:
        said.write(json.dumps(what) + "\n")

    with np.load(task.inputs) as held:
        inputs = {name: aligned(held[name], task.align) for name in held.files}
    try:
        entrant = ENGINES[task.engine](task, inputs)
        best, once = quickest(entrant.ways)
    except Exception as error:  # noqa: BLE001 - an engine throws anything; the row says it
        return say(refused=f"{type(error).__name__}: {error}"[:400])
    way = entrant.ways[best]
    np.savez(Path(task.outputs), *plain(way()))
    gc.collect()
    gc.freeze()
    gc.disable()
    say(way=best, once=once, **entrant.about)
    for line in sys.stdin:
        say(seconds=seconds(way, int(line)))
    return None


if __name__ == "__main__":
    main()
