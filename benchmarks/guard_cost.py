"""What do the guards on indices and lengths cost, and the look for NaN in inputs?

    python benchmarks/guard_cost.py [--models minimol,lac] [--engines xla] [--rounds 300] [--json]

Models of the zoo that have a guard (benchmarks/zoo/zoo.py fetches them). Own time: the copies and
checks of a plan alone, on the arguments of a call, divided by a call without them. End to end:
single calls with and without them in turns, on the same sessions, and without them once more (A/A),
as the ratio of 10th percentiles with a 95% interval. The bars: own time at most 1% of a call, 3% of
one under 1 ms; and end to end inside what A/A shows, or below the same bar. Exit 1 if one is
missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from copy import copy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw

ROOT = Path(__file__).parents[1]
MODELS = ("minimol", "lac", "minilm-l3", "tashkeel")
ENGINES = ("onnxruntime", "openvino", "auto")
# Seconds for which the checks alone are timed.
OWN_SECONDS = 1.0


def entry_of(path: Path, engine: str, inputs: tuple[Any, ...]) -> Any:
    """Make the entry of a settled program."""
    program = fw.compile(path, backend=engine, fallback="allow")
    program(*inputs)
    program.wait()
    return program.entry(tuple(inputs))


def without_guards(entry: Any) -> Any:
    """Give an entry whose calls skip the checks, and run the very sessions of another."""
    runner = copy(entry.runner)
    runner._checks = [None] * len(runner._checks)
    runner._run = runner._direct() or runner._within_limits
    runner.call = runner._run
    return replace(entry, runner=runner)


def own_seconds(runner: Any, plan: Any, inputs: tuple[Any, ...]) -> float:
    """Time the copies and the checks of the start of a run, and the look at its floats."""
    from fusewire.plan.finite import are_finite
    from fusewire.plan.guards import EntryChecks

    places = runner._looked_at
    checks = EntryChecks(plan.guards, plan.constants, plan.guarded_inputs)
    times, end = [], time.perf_counter() + OWN_SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        are_finite(checks.admitted(inputs), places)
        times.append(time.perf_counter() - start)
    return float(low(times))


def low(times: Any, axis: int = 0) -> Any:
    """Give the 10th percentile, which a busy moment of the machine does not move."""
    return np.quantile(times, 0.1, axis=axis)


def in_turns(calls: list[Any], inputs: tuple[Any, ...], rounds: int) -> np.ndarray[Any, Any]:
    """Time every call once a round, in changing order."""
    rng, times = np.random.default_rng(0), np.zeros((rounds, len(calls)))
    for number in range(rounds):
        for place in rng.permutation(len(calls)):
            start = time.perf_counter()
            calls[place](inputs)
            times[number, place] = time.perf_counter() - start
    return times


def interval(times: Any, base: Any) -> dict[str, float]:
    """Give the ratio of two 10th percentiles with a 95% interval, from rounds drawn again."""
    drawn = np.random.default_rng(0).integers(len(times), size=(2000, len(times)))
    ratios = low(times[drawn], 1) / low(base[drawn], 1)
    least, most = np.quantile(ratios, [0.025, 0.975])
    return {"ratio": float(low(times) / low(base)), "low": float(least), "high": float(most)}


def measure(name: str, engine: str, rounds: int) -> dict[str, Any]:
    """Measure one model on one engine."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "zoo"))
    zoo: Any = import_module("zoo")

    inputs = tuple(zoo.inputs(name).values())
    entry = entry_of(zoo.path(name), engine, inputs)
    calls = [entry.run, without_guards(entry).run, without_guards(entry).run]
    in_turns(calls, inputs, 20)
    times = in_turns(calls, inputs, rounds)
    plan, call = entry.details.plan, float(low(times[:, 1]))
    own, bar = own_seconds(entry.runner, plan, inputs), 0.03 if call < 1e-3 else 0.01
    ratio, noise = interval(times[:, 0], times[:, 1]), interval(times[:, 2], times[:, 1])
    is_inside = ratio["ratio"] <= max(noise["high"], 1 + bar)
    return {
        "model": name,
        "engine": engine,
        "guards": len(plan.guards) + sum(len(step.guards) for step in plan.steps),
        "floats": len(entry.runner._looked_at),
        "regions": len(plan.steps),
        "own_us": own * 1e6,
        "call_us": call * 1e6,
        "share": own / call,
        "bar": bar,
        "end_to_end": ratio,
        "a_a": noise,
        "meets": bool(own / call <= bar and is_inside),
    }


def shown(row: dict[str, Any]) -> str:
    both = [
        f"{x['ratio']:.4f} [{x['low']:.4f}, {x['high']:.4f}]"
        for x in (row["end_to_end"], row["a_a"])
    ]
    return (
        f"{row['model']:10} {row['engine']:12} {row['guards']} guards, {row['floats']} inputs "
        f"looked at, {row['regions']} regions: "
        f"{row['own_us']:.1f} us of {row['call_us']:.0f} us = {row['share']:.2%} "
        f"(bar {row['bar']:.0%}); with/without {both[0]}, A/A {both[1]}"
        f"{'' if row['meets'] else '  MISSED'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for engine in options.engines.split(","):
        for name in options.models.split(","):
            rows.append(measure(name, engine, options.rounds))
            print(json.dumps(rows[-1]) if options.json else shown(rows[-1]), flush=True)
    sys.exit(not all(row["meets"] for row in rows))


if __name__ == "__main__":
    main()
