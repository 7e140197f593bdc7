"""What do buffers save, and what do they hold?

    python -m benchmarks.buffers chain state calls

*chain*: three WebGPU programs on tensors of 64 MB, handed over as buffers and as NumPy arrays.
*state*: a step of a decoder with a key-value cache of 64 MB as state, and as argument and result.
*calls*: memory over 100,000 calls of a program with inputs of mixed sizes.
Prints Markdown.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.system.processes import resident

MB = 1 << 20
ROUNDS = 7
CALLS = 100_000


def _median(run: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, float, float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), min(times), max(times)


def _ms(times: tuple[float, float, float]) -> str:
    return f"{times[0]:.1f} ({times[1]:.1f} to {times[2]:.1f})"


def chain() -> None:
    """Time three programs in a row."""
    x = np.random.default_rng(0).standard_normal((4096, 4096), np.float32)
    options: dict[str, Any] = {"backend": "webgpu", "level": 0, "isolate": "never"}
    functions: list[Callable[[Any], Any]] = [
        lambda x: x * 2 + 1,
        lambda x: np.maximum(x, 0) * 0.5,
        lambda x: x - 3,
    ]
    programs = [fw.compile(function, x, **options) for function in functions]
    held = fw.asarray(x, device="webgpu:0")

    def through_host() -> None:
        value: Any = x
        for program in programs:
            value = program(value)

    def on_device() -> None:
        value: Any = held
        for program in programs:
            value = program(value)
        # Waits for all of it.
        value[:1, :1].numpy()

    through_host()
    on_device()
    crossed = 0
    value: Any = held
    for program in programs:
        result = program.run(value)
        value, crossed = result.outputs, crossed + result.host_bytes
    arrays = sum(program.run(x).host_bytes for program in programs)
    rows = [(through_host, arrays), (on_device, crossed)]
    print("| chain of three on 64 MB | ms, median (least to most) | bytes through the host |")
    print("|---|---|---|")
    for run, count in rows:
        print(f"| {run.__name__} | {_ms(_median(run))} | {count:,} |")


def _step(cache: Any, row: Any, position: Any) -> Any:
    cache[position] = row
    scores = cache @ row
    return {"scores": scores, "cache": cache}


def state() -> None:
    """Time one step of a decoder."""
    cache = np.zeros((16384, 1024), np.float32)
    row, position = np.ones(1024, np.float32), np.array([5])
    print("| step with a cache of 64 MB | ms, median (least to most) | cache copied, bytes |")
    print("|---|---|---|")
    for backend, device in (("onnxruntime", "cpu"), ("webgpu", "webgpu:0"), ("xla", "cpu")):
        options: dict[str, Any] = {"backend": backend, "level": 0, "isolate": "never"}
        program = fw.compile(_step, cache, row, position, **options)
        held: Any = fw.state(cache, device=device)

        def stateful() -> None:
            program(held, row, position)["scores"].numpy()  # noqa: B023 - called in this round

        def stateless() -> None:
            program(cache, row, position)  # noqa: B023 - called in this round

        stateful()
        stateless()
        before = held.held
        pointer = before.numpy().ctypes.data if device == "cpu" else id(before)
        answered = program.run(held, row, position)
        # What is in place stays the same memory; otherwise all of it was made anew.
        entry = program.entry((held, row, position))
        is_same = held.held is before
        is_placed = is_same and bool(entry.in_place) and backend != "xla"
        copied = 0 if is_placed else cache.nbytes
        assert answered.host_bytes <= row.nbytes + position.nbytes
        assert device != "cpu" or held.numpy().ctypes.data == pointer
        print(f"| {backend}, state | {_ms(_median(stateful))} | {copied:,} |")
        print(f"| {backend}, argument and result | {_ms(_median(stateless))} | |")


def calls() -> None:
    """Measure memory over many calls."""
    for backend in ("onnxruntime", "webgpu"):
        options: dict[str, Any] = {"backend": backend, "level": 0, "isolate": "never"}
        sizes = [64 * n for n in range(1, 9)]
        program = fw.compile(lambda x: np.exp(-x) + 1, fw.Spec(("n",)), **options)
        arrays = [np.zeros(size, np.float32) for size in sizes]
        count = CALLS if backend != "webgpu" else CALLS // 10
        for turn in range(count // 10):
            program(arrays[turn % len(arrays)])
        gc.collect()
        before = resident(os.getpid())
        start = time.perf_counter()
        for turn in range(count):
            program(arrays[turn % len(arrays)])
        seconds = time.perf_counter() - start
        gc.collect()
        grown = (resident(os.getpid()) - before) / MB
        print(f"- {backend}: {count:,} calls of 8 sizes in {seconds:.0f} s, growth {grown:.2f} MB")


if __name__ == "__main__":
    for name in sys.argv[1:] or ("chain", "state", "calls"):
        {"chain": chain, "state": state, "calls": calls}[name]()
