"""One engine, called by a program and called bare: what overhead.py runs, a process an engine.

    python -m benchmarks.bare onnxruntime tiny --rounds 400

Prints one line of JSON. Both sides call the same loaded model with the same threads, a fresh array
in and a fresh array out; XLA apart, which jax compiles from the same lowered function, run in the
calling thread as ours is. Bare is the fastest of all ways to call the engine that we know.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.ir.graph import Array
from fusewire.ops.interpret import Interpreter
from fusewire.program.program import Program

Call = Callable[[Array], Any]
# What a call takes, and the function; WebGPU has no matmul yet.
MLPS = {"tiny": (1, (16, 32, 4)), "large": (64, (512, 1024, 1024, 64))}
ELEMENTS = {"tiny": (1, 16), "large": (512, 512)}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# Microseconds of one batch: short, so that most run without the machine turning to others.
BATCH = 300


def model(engine: str, size: str) -> tuple[Callable[[Any], Any], tuple[int, ...]]:
    """Make the function that is compiled, and say the shape of what it takes."""
    if engine == "webgpu":
        two, one, none = map(np.float32, (2, 1, 0))
        return lambda x: np.maximum(x * two + one, none), ELEMENTS[size]
    batch, widths = MLPS[size]
    rng = np.random.default_rng(0)
    layers = [
        (
            rng.normal(0, i**-0.5, (i, o)).astype(np.float32),
            rng.normal(size=o).astype(np.float32),
        )
        for i, o in pairwise(widths)
    ]

    def mlp(x: Any) -> Any:
        for place, (weight, bias) in enumerate(layers):
            x = x @ weight + bias
            x = np.maximum(x, np.float32(0)) if place < len(layers) - 1 else x
        return x

    return mlp, (batch, widths[0])


def loaded(program: Program, x: Array) -> Any:
    """Dig out the one executable of a program that has run."""
    made: Any = program.entry((x,)).runner
    runner = made._runners[0]
    (loaded_,) = runner._made.values()
    return loaded_.parts[0].__self__


def reference(program: Program, x: Array) -> dict[str, Call]:
    (step,) = program.plan.steps
    interpreter = Interpreter(step.region.graph)
    return {"Interpreter()": lambda x: interpreter([x])[0]}


def xla(program: Program, x: Array) -> dict[str, Call]:
    import jax

    from fusewire.backends.xla.engine import WEIGHT_BYTES
    from fusewire.backends.xla.program import program as lowered
    from fusewire.contract.backend import Slot
    from fusewire.contract.region import weight_slots
    from fusewire.dtypes import float32
    from fusewire.ir.text import constants_of

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    (step,) = program.plan.steps
    graph = step.region.graph
    outside = list(weight_slots(graph, WEIGHT_BYTES))
    made = lowered(graph, [*outside, Slot("input", "x", float32, x.shape)])
    held = constants_of(graph)
    weights = [jax.device_put(held[slot.digest or ""].array) for slot in outside]
    call = jax.jit(made.function)
    compiled = call.lower(*weights, x).compile()
    return {
        "asarray(jit())": lambda x: np.asarray(call(*weights, x)[0]),
        "array(jit())": lambda x: np.array(call(*weights, x)[0]),
        "asarray(compiled())": lambda x: np.asarray(compiled(*weights, x)[0]),
        "array(compiled())": lambda x: np.array(compiled(*weights, x)[0]),
    }


def onnxruntime(program: Program, x: Array) -> dict[str, Call]:
    session = loaded(program, x)._held[0]
    binding, again = session.io_binding(), session.io_binding()
    (wanted,) = session.get_outputs()
    held, made = np.zeros_like(x), np.zeros(wanted.shape, np.float32)
    binding.bind_cpu_input("x0", held)
    binding.bind_output("y0", "cpu", 0, np.float32, made.shape, made.ctypes.data)

    def bound(x: Array) -> Array:
        held[...] = x
        session.run_with_iobinding(binding)
        return made.copy()

    def rebound(x: Array) -> Any:
        found = np.empty(made.shape, np.float32)
        again.bind_cpu_input("x0", x)
        again.bind_output("y0", "cpu", 0, np.float32, found.shape, found.ctypes.data)
        session.run_with_iobinding(again)
        return found

    return {
        "run()": lambda x: session.run(["y0"], {"x0": x})[0],
        "_sess.run()": lambda x: session._sess.run(["y0"], {"x0": x}, None)[0],
        "run_with_iobinding(), copied": bound,
        "run_with_iobinding(), bound anew": rebound,
    }


def openvino(program: Program, x: Array) -> dict[str, Call]:
    import openvino as ov

    compiled = loaded(program, x)._compiled
    request, shared = compiled.create_infer_request(), compiled.create_infer_request()
    held = np.zeros_like(x)
    request.set_input_tensor(0, ov.Tensor(held, shared_memory=True))
    made = request.get_output_tensor(0).data

    def bound(x: Array) -> Any:
        held[...] = x
        request.infer(share_outputs=True)
        return made.copy()

    def rebound(x: Array) -> Any:
        found = np.empty(made.shape, made.dtype)
        shared.set_input_tensor(0, ov.Tensor(x, shared_memory=True))
        shared.set_output_tensor(0, ov.Tensor(found, shared_memory=True))
        shared.infer(share_outputs=True)
        return found

    return {
        "compiled()": lambda x: compiled(x)[0],
        "infer(), copied": bound,
        "infer(), bound anew": rebound,
    }


def webgpu(program: Program, x: Array) -> dict[str, Call]:
    import wgpu

    ours = loaded(program, x)
    binding = ours._binding
    device, steps = binding.context.gpu, [step for step, _ in binding._turns]
    usage, size = wgpu.BufferUsage, x.nbytes
    given = device.create_buffer(size=size, usage=usage.STORAGE | usage.COPY_DST)
    made = device.create_buffer(size=size, usage=usage.STORAGE | usage.COPY_SRC)
    stage = device.create_buffer(size=size, usage=usage.MAP_READ | usage.COPY_DST)
    edges = {"input": given, "output": made}
    places = [edges.get(x.kind, binding._fixed[i]) for i, x in enumerate(binding._allocations)]
    groups = [binding._bind(number, step, places) for number, step in enumerate(steps)]

    def encoded(x: Array) -> Any:
        device.queue.write_buffer(given, 0, x)
        encoder = device.create_command_encoder()
        section = encoder.begin_compute_pass()
        for step, group in zip(steps, groups, strict=True):
            section.set_pipeline(binding._pipelines[step.kernel])
            section.set_bind_group(0, group)
            section.dispatch_workgroups(*step.grid)
        section.end()
        return encoder

    def read(x: Array) -> Array:
        device.queue.submit([encoded(x).finish()])
        return np.frombuffer(device.queue.read_buffer(made), x.dtype).reshape(x.shape)

    def mapped(x: Array) -> Array:
        encoder = encoded(x)
        encoder.copy_buffer_to_buffer(made, 0, stage, 0, size)
        device.queue.submit([encoder.finish()])
        stage.map_sync(wgpu.MapMode.READ)
        found = np.frombuffer(stage.read_mapped(), x.dtype).reshape(x.shape)
        stage.unmap()
        return found

    return {"read_buffer()": read, "map_sync()": mapped}


ENGINES: dict[str, Callable[[Program, Array], dict[str, Call]]] = {
    "reference": reference,
    "xla": xla,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "webgpu": webgpu,
}


def timed(
    ways: dict[str, Call], inputs: list[Array], rounds: int, clock: str = "wall"
) -> dict[str, Array]:
    """Time ways in turns; microseconds a call, by round."""
    now = CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    gc.disable()
    for turn in range(rounds):
        # Whoever comes after one that leaves threads awake gains or pays: all do, in turn.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = ways[name]
            start = now()
            for x in inputs:
                call(x)
            times[name].append((now() - start) / len(inputs) * 1e6)
    gc.enable()
    return {name: np.array(found) for name, found in times.items()}


def measure(
    engine: str, size: str, rounds: int, clock: str = "wall", threads: int | None = None
) -> dict[str, Any]:
    """Compile, check that all ways agree, find the fastest bare one, and time it against ours."""
    function, shape = model(engine, size)
    rng = np.random.default_rng(1)
    first = rng.normal(size=shape).astype(np.float32)
    program = fw.compile(
        function, first, backend=engine, fallback="error", isolate=False, threads=threads
    )
    program(first)
    ways = ENGINES[engine](program, first)
    for name, call in ways.items():
        assert np.allclose(call(first), function(first), atol=1e-3), name
    once = min(timed({"ours": program}, [first] * 5, 20, clock)["ours"])
    count = int(np.clip(BATCH / once, 1, 100))
    inputs = [rng.normal(size=shape).astype(np.float32) for _ in range(count)]
    trials = timed(ways, inputs, max(rounds // 4, 5), clock)
    tried = {name: float(np.median(found)) for name, found in trials.items()}
    best = min(tried, key=lambda name: tried[name])
    found = timed({"bare": ways[best], "ours": program, "again": ways[best]}, inputs, rounds, clock)
    bare = (found["bare"] + found["again"]) / 2
    return {
        "engine": engine,
        "size": size,
        "best": best,
        "ways_us": tried,
        "bare_us": spread(found["bare"]),
        "ours_us": spread(found["ours"]),
        "more_us": spread(found["ours"] - bare),
        "ratio": spread(found["ours"] / bare),
        "aa": spread(found["again"] / found["bare"]),
        "clock": clock,
        "threads": threads,
        "calls": count,
        "rounds": rounds,
    }


def spread(found: Array) -> dict[str, float]:
    """Give the median and what four of five rounds lie within."""
    low, middle, high = np.percentile(found, [10, 50, 90])
    return {"median": float(middle), "p10": float(low), "p90": float(high)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("size", choices=MLPS)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--threads", type=int)
    print(json.dumps(measure(**vars(parser.parse_args()))))
