"""Schedules: scratch memory is used again, and never while somebody needs what is in it."""

import json
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.fusion.grouping import fuse
from fusewire.kernel.form import Kernel, KernelBuffer, Lowered, Repeat
from fusewire.kernel.lower.region import lower_fusion
from fusewire.kernel.lower.table import expansion_refusal, refusal
from fusewire.kernel.printed import PrintedKernel
from fusewire.kernel.program import ProgramWriter, Schedule
from tests.kernel.regions import random_region


def printed(kernel: Kernel) -> PrintedKernel[str]:
    """Print a name for code; locals are memory of the device, as in Triton."""
    own = tuple(KernelBuffer(f"{kernel.name}.{b.name}", b.dtype, b.shape) for b in kernel.locals)
    buffers = dict.fromkeys((*kernel.reads, *kernel.writes, *own))
    return PrintedKernel(kernel.name, tuple(buffers), (1,))


def size_of(buffer: KernelBuffer) -> int:
    return math.prod(buffer.shape) * buffer.dtype.itemsize


def kernels_of(step: Kernel | Repeat) -> tuple[Kernel, ...]:
    return step.kernels if isinstance(step, Repeat) else (step,)


def spans_of(region: Lowered) -> dict[str, set[int]]:
    """List the steps from the first to the last in which each buffer is touched."""
    touched: dict[str, set[int]] = defaultdict(set)
    for position, step in enumerate(region.steps):
        for kernel in kernels_of(step):
            for buffer in printed(kernel).buffers:
                touched[buffer.name].add(position)
    return {name: {*range(min(at), max(at) + 1)} for name, at in touched.items()}


def check(region: Lowered, lends: bool = False) -> Schedule:
    """Fail where two buffers that are needed at once lie in one slot, or one does not fit."""
    codes, schedule = ProgramWriter(region, printed, size_of, lends=lends).write()
    kernels = {kernel.name: kernel for kernel in region.kernels}
    places: dict[str, int] = {}
    for launch in schedule.launches:
        buffers = printed(kernels[codes[launch.kernel]]).buffers
        places |= zip((b.name for b in buffers), launch.allocations, strict=True)
    spans, slots = spans_of(region), defaultdict[tuple[str, int], list[str]](list)
    outputs = {m.place: m.size for m in schedule.allocations if m.kind == "output"}
    rooms = {"scratch": dict(enumerate(schedule.scratch)), "lent": outputs}
    for name, number in places.items():
        allocation = schedule.allocations[number]
        if allocation.kind in rooms:
            assert allocation.size <= rooms[allocation.kind][allocation.place]
            slot = allocation.kind, allocation.place
            for other in slots[slot]:
                assert not spans[other] & spans[name], f"{name} and {other} share a slot"
            slots[slot].append(name)
    for place, name in enumerate(region.outputs):
        for other in slots["lent", place]:
            assert max(spans[other]) < min(spans[name]), f"{other} is over the output {name}"
    return schedule


def test_no_two_buffers_that_are_needed_at_once_share_a_slot() -> None:
    shared = 0
    for seed in range(60):
        schedule = check(random_region(seed).lowered)
        count = sum(allocation.kind == "scratch" for allocation in schedule.allocations)
        shared += count - len(schedule.scratch)
    assert shared > 10


def test_outputs_lend_their_memory_until_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fusewire.kernel.program.LENT_BYTES", 1)
    lent, before, after = 0, 0, 0
    for seed in range(60):
        region = random_region(seed).lowered
        schedule = check(region, lends=True)
        lent += sum(allocation.kind == "lent" for allocation in schedule.allocations)
        before, after = before + check(region).bytes, after + schedule.bytes
    assert lent > 5
    assert after < before


def test_slots_hardly_take_more_than_is_live() -> None:
    def chain(x: Any) -> Any:
        for size in (40, 30, 20, 30, 40):
            x = np.cumsum(x[:size], axis=0)
            x = np.cumsum(np.concatenate([x, x[:5]]), axis=0)
        return x[:3]

    schedule = check(lower_fusion(fuse(fw.trace(chain, fw.Spec((50, 64))), refusal)))
    sizes = sorted(m.size for m in schedule.allocations if m.kind == "scratch")
    assert len(sizes) >= 9
    assert sum(schedule.scratch) <= sizes[-1] + sizes[-2]


def test_loops_of_the_host_keep_what_a_turn_hands_to_the_next() -> None:
    def network(x: Any, w: Any, r: Any) -> Any:
        return ops.softmax(ops.lstm(x, w, r)[0] + 1)

    shapes = [(5, 2, 3), (1, 16, 3), (1, 16, 4)]
    graph = fw.trace(network, *(fw.Spec(shape, "float32") for shape in shapes))
    assert all(expansion_refusal(node) is None for node in graph.nodes)
    region = lower_fusion(fuse(graph, refusal))
    assert any(isinstance(step, Repeat) for step in region.steps)
    turns = check(region).turns()
    assert {turn for launch, turn in turns if launch.repeat >= 0} == {*range(5)}


def test_a_schedule_goes_to_json_and_back() -> None:
    schedule = check(random_region(7).lowered)
    assert Schedule.from_data(json.loads(json.dumps(schedule.to_data()))) == schedule


def test_kernel_that_runs_over_nothing_or_stores_nothing_is_not_launched() -> None:
    region = random_region(0).lowered

    def over_nothing(kernel: Kernel) -> PrintedKernel[str]:
        return replace(printed(kernel), grid=(4, 0))

    def storing_nothing(kernel: Kernel) -> PrintedKernel[str]:
        found = printed(kernel)
        return replace(found, buffers=tuple(b for b in found.buffers if b not in kernel.writes))

    assert ProgramWriter(region, printed, size_of).write()[1].launches
    for printer in (over_nothing, storing_nothing):
        assert not ProgramWriter(region, printer, size_of).write()[1].launches
