"""Are two branches of a graph faster at the same time, and does the planner know when not?

    python benchmarks/branches.py [--seconds 8] [--engines onnxruntime openvino]
    python benchmarks/branches.py --chosen [--budget 30]     what level 2 decides, with its figures

A branch is a chain of sums, which engines run on one thread ("scans"), a chain of products, which
has work for all of them ("products"), or a few elements ("tiny"). The branches of
a graph are placed on two engines, or twice on the first, and timed in this process, in turns: one
after the other, at the same time, and at the same time with one thread each; with them the first
engine alone, as it would run the whole graph, and one after the other once more (A/A).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.contract.backend import Config
from fusewire.ir.graph import Graph
from fusewire.planning.branches import forks
from fusewire.planning.candidates import Candidate, placed_candidate, placing_of, plan_choice
from fusewire.planning.planner import make_plan
from fusewire.planning.policy import TargetFinder
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY
from fusewire.runtime.execute import PlanRunner
from fusewire.runtime.plan import Plan
from fusewire.trials.build import BuildTarget, PlanBuilder

Call = Callable[[], Any]
DRAW = np.random.default_rng(0)
# A sample takes at least so many seconds.
BATCH = 0.02


def drawn(*shape: int) -> Any:
    return (DRAW.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)


def scans() -> tuple[Graph, Any]:
    """Sum up along both axes, eight times in each branch."""

    def chain(x: Any, scale: float) -> Any:
        for at in range(8):
            x = np.tanh(np.cumsum(x * np.float32(scale), axis=at % 2))
        return x

    x = drawn(512, 512)
    return fw.trace(lambda x: chain(x, 0.1) + chain(x, -0.2), x), x


def products() -> tuple[Graph, Any]:
    """Multiply by six matrices in each branch."""
    weights = [[drawn(384, 384) for _ in range(6)] for _ in range(2)]

    def chain(x: Any, own: Any) -> Any:
        for weight in own:
            x = np.tanh(x @ weight)
        return x

    x = drawn(384, 384)
    return fw.trace(lambda x: chain(x, weights[0]) + chain(x, weights[1]), x), x


def tiny() -> tuple[Graph, Any]:
    """Compute a few elements in each branch."""
    x = drawn(4, 4)
    return fw.trace(lambda x: np.exp(np.tanh(x)) + np.sqrt(np.abs(np.sin(x))), x), x


CASES = {"scans": scans, "products": products, "tiny": tiny}


def target(name: str) -> Target:
    (first, *_) = TargetFinder(REGISTRY).targets(name)
    return first


def placed(graph: Graph, names: list[str]) -> Candidate:
    """Place the second branch on the second engine; both leave the cores between calls."""
    second = {node for fork in forks(graph, {}) for node in fork.second}
    placing = placing_of(int(node in second) for node in graph.nodes)
    targets = [target(name) for name in names]
    own = [x.backend.beside_others(x.device) for x in targets]
    targets[1] = replace(targets[1], options=own[1])
    found = placed_candidate(
        graph, targets, placing, target("reference"), options=own[0], may_fall_back=False
    )
    assert found is not None
    return found


def concurrent(candidate: Candidate, graph: Graph, threads: int | None) -> Candidate:
    choice = replace(candidate.choice(), is_concurrent=True)
    planned = plan_choice(choice, graph, candidate.targets, target("reference"), False)
    return replace(candidate, planned=planned, is_concurrent=True, threads=threads)


def runner(candidate: Candidate, plan: Plan | None = None) -> PlanRunner:
    first, *others = (BuildTarget.of(x, candidate.config(Config(), x)) for x in candidate.targets)
    fallback = BuildTarget.of(target("reference"), Config())
    builder = PlanBuilder(first, fallback, "allow", 60.0, others=tuple(others))
    return PlanRunner(plan or candidate.planned.plan, builder)


def in_turns(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Time calls in turns, for so many seconds."""
    counts = {}
    for name, call in calls.items():
        for _ in range(5):
            call()
        start = time.perf_counter()
        call()
        counts[name] = max(1, round(BATCH / (time.perf_counter() - start)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            samples[name].append((time.perf_counter() - start) / counts[name])
    return samples


def measured(case: str, names: list[str], seconds: float) -> dict[str, Any]:
    """Time one graph in all ways; times are in milliseconds, ratios to one after the other."""
    graph, x = CASES[case]()
    one = placed(graph, names)
    whole = Candidate(target(names[0]), make_plan(graph, [target(names[0])]))
    runners = {
        "one after the other": runner(one),
        "again": runner(one),
        "same time": runner(concurrent(one, graph, None)),
        "same time, 1 thread each": runner(concurrent(one, graph, 1)),
        f"{names[0]} alone": runner(whole),
    }
    expected = runners["one after the other"].call([x])[0]
    for found in runners.values():
        np.testing.assert_allclose(found.call([x])[0], expected, rtol=1e-3, atol=1e-4)
    calls: dict[str, Call] = {name: partial(found.call, [x]) for name, found in runners.items()}
    samples = in_turns(calls, seconds)
    base = samples.pop("one after the other")
    row: dict[str, Any] = {"case": case, "engines": names, "one_ms": 1e3 * median(base)}
    for name, own in samples.items():
        ratios = [a / b for a, b in zip(own, base, strict=True)]
        low, high = np.percentile(ratios, [10, 90])
        row[name] = {"ms": 1e3 * median(own), "ratio": median(ratios), "80%": [low, high]}
    for found in runners.values():
        found.close()
    return row


def chosen(case: str, budget: float) -> dict[str, Any]:
    """Have level 2 decide."""
    graph, x = CASES[case]()
    program = fw.compile(graph, x, level=2, start="measured", budget_seconds=budget, cache=False)
    program(x)
    why = program.why()
    rows = [(row.name, row.seconds and 1e3 * row.seconds) for row in why.tried if row.seconds]
    notes = [note for note in why.notes if "same time" in note]
    program.close()
    return {"case": case, "is_concurrent": why.is_concurrent, "tried_ms": rows, "notes": notes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="for each graph and placing")
    parser.add_argument("--engines", nargs=2, default=["onnxruntime", "openvino"])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--chosen", action="store_true", help="have level 2 decide instead")
    parser.add_argument("--budget", type=float, default=30.0)
    given = parser.parse_args()
    for case in given.cases:
        if given.chosen:
            print(json.dumps(chosen(case, given.budget)), flush=True)
            continue
        for names in (given.engines, [given.engines[0]] * 2):
            print(json.dumps(measured(case, names, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
