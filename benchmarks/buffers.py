"""What do buffers save, and what do they hold?

    python -m benchmarks.buffers chain state calls

*chain*: three WebGPU programs on tensors of 64 MB, handed over as buffers and as NumPy arrays.
*state*: a step of a decoder with a key-value cache of 64 MB as state, and as argument and result.
*calls*: memory over 100,000 calls of a program with inputs of mixed sizes.
*plan*: what WebGPU programs of models of the zoo take, over what is live at once; runs nothing.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.contract.backend import Config
from fusewire.errors import FusewireError
from fusewire.kernel.program import Launch, Schedule
from fusewire.registry import REGISTRY
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


def waits() -> None:
    """Time ten calls in a row on a device, with and without waiting for each."""
    options: dict[str, Any] = {"backend": "webgpu", "level": 0, "isolate": "never"}
    print("| ten calls in a row on | each waited for, ms | waited for at the end | until then |")
    print("|---|---|---|---|")
    for rows in (16, 256, 1024):
        x = np.full((rows, 1024), 0.5, np.float32)
        program = fw.compile(lambda x: np.maximum(x * 0.5 + 1, 0), x, **options)
        held = fw.asarray(x, device="webgpu:0")
        for is_waiting in (True, False):
            _ten(program, held, is_waiting)
        # In turns, so that both have the machine as it is.
        times = [(_ten(program, held, True), _ten(program, held, False)) for _ in range(ROUNDS)]
        waited, free = (sorted(whole for _, whole in column) for column in zip(*times, strict=True))
        called = statistics.median(calls for _, (calls, _) in times)
        shown = [_ms((statistics.median(x), x[0], x[-1])) for x in (waited, free)]
        print(f"| {rows} x 1024 | {shown[0]} | {shown[1]} | {called:.1f} |", flush=True)


def _ten(program: fw.Program, value: Any, is_waiting: bool) -> tuple[float, float]:
    """Return the milliseconds until ten calls have returned, and until the last is done."""
    start = time.perf_counter()
    for _ in range(10):
        value = program(value)
        if is_waiting:
            value.wait()
    called = time.perf_counter() - start
    value.wait()
    return 1e3 * called, 1e3 * (time.perf_counter() - start)


def _step(cache: Any, row: Any, position: Any) -> Any:
    cache[position] = row
    scores = cache @ row
    return {"scores": scores, "cache": cache}


def state() -> None:
    """Time one step of a decoder."""
    cache = np.zeros((16384, 1024), np.float32)
    row, position = np.ones(1024, np.float32), np.array([5])
    print("| step, cache of 64 MB | ms (least to most) | bytes made anew | through the host |")
    print("|---|---|---|---|")
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
        before = held.remade_bytes
        crossed = program.run(held, row, position).host_bytes
        made = held.remade_bytes - before
        print(f"| {backend}, state | {_ms(_median(stateful))} | {made:,} | {crossed:,} |")
        crossed = program.run(cache, row, position).host_bytes
        times = _ms(_median(stateless))
        print(f"| {backend}, argument and result | {times} | {cache.nbytes:,} | {crossed:,} |")


def calls() -> None:
    """Measure memory over many calls."""
    for backend in ("onnxruntime", "webgpu"):
        options: dict[str, Any] = {"backend": backend, "level": 0, "isolate": "never"}
        sizes = [64 * n for n in range(1, 9)]
        program = fw.compile(lambda x: np.exp(-x) + 1, fw.Spec(("n",)), **options)
        arrays = [np.zeros(size, np.float32) for size in sizes]
        for turn in range(CALLS // 10):
            program(arrays[turn % len(arrays)])
        gc.collect()
        before = resident(os.getpid())
        start = time.perf_counter()
        for turn in range(CALLS):
            program(arrays[turn % len(arrays)])
        seconds = time.perf_counter() - start
        gc.collect()
        grown = (resident(os.getpid()) - before) / MB
        print(f"- {backend}: {CALLS:,} calls of 8 sizes in {seconds:.0f} s, growth {grown:.2f} MB")


def _live(schedule: Schedule) -> int:
    """Count the bytes that are live at once at most: inputs, outputs so far, and scratch memory."""
    spans: dict[int, tuple[int, int]] = {}
    places = [{x for launch in line for x in launch.allocations} for line in _steps(schedule)]
    for position, touched in enumerate(places):
        for place in touched:
            spans[place] = spans.get(place, (position, 0))[0], position
    most = fixed = 0
    for memory in schedule.allocations:
        fixed += memory.size if memory.kind == "input" else 0
    for position in range(len(places)):
        count = 0
        for place, (begin, end) in spans.items():
            memory = schedule.allocations[place]
            last = len(places) if memory.kind == "output" else end
            is_live = begin <= position <= last and memory.kind in ("output", "scratch")
            count += memory.size if is_live else 0
        most = max(most, count)
    return fixed + most


def _steps(schedule: Schedule) -> list[Sequence[Launch]]:
    """Take each launch as a step of its own, and a repeat as one."""
    steps: list[Sequence[Launch]] = []
    for repeat, group in itertools.groupby(schedule.launches, key=lambda launch: launch.repeat):
        line = list(group)
        steps += [line] if repeat >= 0 else [[launch] for launch in line]
    return steps


def plan() -> None:
    """Compare planned memory to what is live."""
    sys.path.insert(0, str(Path(__file__).with_name("zoo")))
    zoo: Any = import_module("zoo")
    backend: Any = REGISTRY.get("webgpu")
    device = REGISTRY.meet("webgpu").devices[0]
    ratios = []
    print("| model | regions | planned, MB | live at once, MB | ratio |")
    print("|---|---|---|---|---|")
    for name in sorted(path.stem for path in zoo.home().glob("*.onnx")):
        try:
            made = zoo.inputs(name, variant=0)
            loaded = fw.load(str(zoo.path(name))).inputs
            graph = fw.trace(str(zoo.path(name)), *(made[x.name] for x in loaded))
            program = fw.compile(graph, backend="webgpu", level=0, fallback="allow")
            regions = [x for x in program.plan.regions() if x.backend == "webgpu"]
            schedules = [backend.lower(x.graph, device, Config()).schedule for x in regions]
        except FusewireError as error:
            print(f"| {name} | {type(error).__name__} | | | |")
            continue
        planned = live = 0
        for schedule in schedules:
            kinds = ("input", "output")
            own = sum(m.size for m in schedule.allocations if m.kind in kinds)
            planned, live = planned + own + sum(schedule.scratch), live + _live(schedule)
        if not live:
            continue
        ratios.append(planned / live)
        print(
            f"| {name} | {len(schedules)} | {planned / MB:.2f} | {live / MB:.2f} "
            f"| {ratios[-1]:.3f} |",
            flush=True,
        )
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"\nGeometric mean of {len(ratios)}: {mean:.3f}, most {max(ratios):.3f}")


PARTS = {"chain": chain, "waits": waits, "state": state, "calls": calls, "plan": plan}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args().parts or ["chain", "state", "calls"]
    if unknown := sorted(set(chosen) - PARTS.keys()):
        parser.error(f"{unknown[0]!r} is not a part: {', '.join(PARTS)}.")
    for part in chosen:
        PARTS[part]()


if __name__ == "__main__":
    main()
