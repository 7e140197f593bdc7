"""Time the steps of a plan in real runs, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from fusewire.plan.execute import PlanRunner
from fusewire.program.arguments import plain
from fusewire.program.entry import Entry
from fusewire.show.timeline import RegionTime, Timeline

# The runs that are timed: so many, or fewer if they take longer than this together, in seconds.
_RUNS, _SECONDS = 15, 2.0

# A step of one run: its number, and when it began and ended.
Noted = tuple[int, float, float]


def measure(entry: Entry, arguments: tuple[Any, ...]) -> Timeline:
    """Run an entry on arguments that fit it until the times tell something."""
    leaves = list(map(plain, entry.inputs, entry.arguments.flatten(arguments)))
    run = _run_of(entry, leaves)
    # The first run may load an engine.
    run()
    runs: list[tuple[float, float, list[Noted]]] = []
    end = time.perf_counter() + _SECONDS
    while not runs or (len(runs) < _RUNS and time.perf_counter() < end):
        start = time.perf_counter()
        steps = run()
        runs.append((time.perf_counter() - start, start, steps))
    return _shown(_names(entry), runs)


def _run_of(entry: Entry, leaves: Sequence[Any]) -> Callable[[], list[Noted]]:
    """Return what runs once, and lists the steps; a runner without steps is one."""
    runner = entry.runner

    def by_step() -> list[Noted]:
        assert isinstance(runner, PlanRunner)
        steps: list[Noted] = []
        runner.timed(leaves, lambda *noted: steps.append(noted))
        return steps

    def at_once() -> list[Noted]:
        start = time.perf_counter()
        runner.call(leaves)
        return [(0, start, time.perf_counter())]

    return by_step if isinstance(runner, PlanRunner) else at_once


def _names(entry: Entry) -> list[tuple[str, str]]:
    """Name the region and the backend of each step."""
    if not isinstance(entry.runner, PlanRunner):
        return [(entry.backend, entry.backend)]
    regions = [step.region for step in entry.details.plan.steps]
    return [(region.graph.name, region.backend) for region in regions]


def _shown(
    names: Sequence[tuple[str, str]], runs: Sequence[tuple[float, float, list[Noted]]]
) -> Timeline:
    times: dict[int, list[float]] = {}
    for _, _, steps in runs:
        for number, begun, ended in steps:
            times.setdefault(number, []).append(ended - begun)
    seconds, start, steps = sorted(runs, key=lambda run: run[0])[(len(runs) - 1) // 2]
    spans = [
        RegionTime(
            *names[number],
            begun - start,
            ended - begun,
            median(times[number]),
            min(times[number]),
            max(times[number]),
        )
        for number, begun, ended in steps
    ]
    return Timeline(len(runs), seconds, tuple(spans))
