"""Does every trial of a fleet leave one record, whoever dies meanwhile?

    python benchmarks/ray_trials.py [--count 240] [--calm 240] [--pause 20] [--seed 0] [--budget 1]
                                    [--json] [--write results/ray_trials.md]

Trials of 6 small models, at 10 sizes and on 4 engines, are scattered over two raylets of this
machine, which the lock of the host makes one host. Once nothing is disturbed. Once a worker that
runs a trial is killed every so many seconds, and half way the second raylet with all its processes.
Each run has a store of its own. Counted are the records, those of one trial on one host, trials
that overlapped in time, and retries; times of the two runs are compared trial by trial, beside
those of another undisturbed run of a part of them (A/A). Exit 1 if a record is missing or double,
or two trials ran at the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.options import Options
from fusewire.ray.tuning import KIND, TunedModel, tune
from fusewire.store.disk import Store

ENGINES = ("onnxruntime", "openvino", "xla", "reference")
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
WIDTH, SIDE = 64, 16
MACHINE = "here"
_RNG = np.random.default_rng(0)


def _weights(*shape: int) -> Any:
    return (_RNG.standard_normal(shape) / math.sqrt(shape[0])).astype(np.float32)


def models() -> dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]]:
    """Make six small models, each with the shape of a row of what it takes."""
    first, second = _weights(WIDTH, 2 * WIDTH), _weights(2 * WIDTH, WIDTH)
    query, key, value = (_weights(WIDTH, WIDTH) for _ in range(3))

    def mlp(x: Any) -> Any:
        return np.maximum(x @ first, np.float32(0)) @ second

    def gated(x: Any) -> Any:
        y = x @ first
        return (np.tanh(y) * (1 / (1 + np.exp(-y)))) @ second

    def normalized(x: Any) -> Any:
        mean = x.mean(axis=-1, keepdims=True)
        spread = np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + np.float32(1e-5))
        return ((x - mean) / spread) @ query

    def softmax(x: Any) -> Any:
        y = np.exp(x - x.max(axis=-1, keepdims=True))
        return y / y.sum(axis=-1, keepdims=True)

    def attention(x: Any) -> Any:
        scores = (x @ query) @ np.swapaxes(x @ key, -1, -2) / np.float32(math.sqrt(WIDTH))
        return softmax(scores) @ (x @ value)

    def chain(x: Any) -> Any:
        for _ in range(6):
            x = np.tanh(x * np.float32(1.1) + np.float32(0.1))
        return x

    row, tokens = (WIDTH,), (SIDE, WIDTH)
    given = {"mlp": (mlp, row), "gated": (gated, row), "normalized": (normalized, row)}
    return {
        **given,
        "softmax": (softmax, tokens),
        "attention": (attention, tokens),
        "chain": (chain, tokens),
    }


def tuned_models(folder: Path, count: int) -> list[TunedModel]:
    """Write the models, and give so many trials' worth of sizes, round about the models."""
    rng, found = np.random.default_rng(1), []
    for name, (function, row) in models().items():
        fw.save_onnx(function, folder / f"{name}.onnx", fw.Spec(("rows", *row), "float32"))
    for size, (name, (_, row)) in itertools.product(SIZES, models().items()):
        x = rng.standard_normal((size, *row)).astype(np.float32)
        found.append(TunedModel(folder / f"{name}.onnx", {"x": x}))
    return found[: math.ceil(count / len(ENGINES))]


@contextlib.contextmanager
def two_raylets(cache: Path) -> Iterator[Any]:
    """Start Ray with two raylets on the loopback; each has this machine's kind."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["FUSEWIRE_CACHE"] = str(cache)
    import ray
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="fw-ray-", ignore_cleanup_errors=True) as folder:
        its = {
            "num_cpus": 1,
            "resources": {f"{KIND}{MACHINE}": 1},
            "include_dashboard": False,
            "temp_dir": folder,
        }
        cluster = Cluster(initialize_head=True, head_node_args=its)
        try:
            second = cluster.add_node(**{**its, "temp_dir": None})
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield cluster, second
        finally:
            ray.shutdown()
            cluster.shutdown()


def workers(raylets: Sequence[int]) -> list[int]:
    """List the workers of these raylets that run a trial now."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            title = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if title.startswith(b"ray::run_trial") and parent in raylets:
                found.append(int(path.name))
    return found


def raylet_of(node: Any) -> int:
    """Return the process of a raylet."""
    (process,) = node.all_processes["raylet"]
    pid: int = process.process.pid
    return pid


class TrialKiller(threading.Thread):
    """Kills a worker that runs a trial every so many seconds, and the second raylet once."""

    def __init__(self, cluster: Any, second: Any, pause: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.second, self.pause = cluster, second, pause
        self.workers_killed = 0
        self.raylets_killed = 0
        self.is_half = threading.Event()
        self.is_over = threading.Event()
        self._random = random.Random(seed)

    def run(self) -> None:
        raylets = [raylet_of(self.cluster.head_node), raylet_of(self.second)]
        while not self.is_over.wait(self.pause):
            if self.is_half.is_set() and not self.raylets_killed:
                os.kill(raylets.pop(), signal.SIGKILL)
                self.raylets_killed = 1
                continue
            running = workers(raylets)
            if running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(running), signal.SIGKILL)
                    self.workers_killed += 1


def recorded(store: Store) -> list[dict[str, Any]]:
    """List the records of trials on hosts, as the store has them."""
    found = []
    for entry in store.entries("measurement"):
        fields = dict(entry.key.fields)
        if "trial" in fields and fields["host"] != "any":
            found.append(json.loads(store.get(entry.key) or b"{}"))
    return found


def run_trials(
    given: Sequence[TunedModel], budget: float, *, pause: float | None, seed: int
) -> dict[str, Any]:
    """Run all trials with a new store, with kills if there is a pause between them."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fusewire-trials-") as folder:
        cache = Path(folder) / "cache"
        with two_raylets(cache) as (cluster, second):
            killer = TrialKiller(cluster, second, pause or math.inf, seed)
            total, done = len(given) * len(ENGINES), itertools.count(1)

            def report(record: Mapping[str, Any]) -> None:
                number = next(done)
                if number >= total / 2:
                    killer.is_half.set()
                said = f"{number} of {total} {record['trial']}: {record['status']}"
                print(said, file=sys.stderr, flush=True)

            if pause is not None:
                killer.start()
            options = Options(budget_seconds=budget, threads=1)
            records = tune(given, engines=ENGINES, ray="auto", options=options, report=report)
            killer.is_over.set()
        found = recorded(Store(cache))
    return {
        "seconds": time.perf_counter() - start,
        "answers": records,
        "records": found,
        "workers_killed": killer.workers_killed,
        "raylets_killed": killer.raylets_killed,
    }


def counted(outcome: Mapping[str, Any], total: int) -> dict[str, Any]:
    """Count what must not be: records that are missing or double, trials side by side."""
    records = outcome["records"]
    times = Counter((row["trial"], row["host"]) for row in records)
    spans = sorted((row["began"], row["ended"]) for row in records)
    overlaps = sum(one[1] > other[0] for one, other in itertools.pairwise(spans))
    return {
        "trials": total,
        "answers": len(outcome["answers"]),
        "records": len(records),
        "missing": total - len({row["trial"] for row in records}),
        "double": sum(count - 1 for count in times.values()),
        "hosts": len({row["host"] for row in records}),
        "overlaps": overlaps,
        "recalled": sum(row["is_recalled"] for row in outcome["answers"]),
        "workers_killed": outcome["workers_killed"],
        "raylets_killed": outcome["raylets_killed"],
        "states": dict(Counter(row["status"] for row in records)),
        "longest": max(end - start for start, end in spans),
        "seconds": outcome["seconds"],
    }


def ratios(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Compare the times of the trials that both runs have; quartiles of the ratios."""
    times = [
        {row["trial"]: row["seconds"] for row in run["records"] if row.get("seconds")}
        for run in (one, other)
    ]
    found = sorted(times[1][trial] / times[0][trial] for trial in times[0].keys() & times[1].keys())
    low, middle, high = statistics.quantiles(found, n=4)
    mean = math.exp(statistics.fmean(map(math.log, found)))
    return {"trials": len(found), "geomean": mean, "low": low, "median": middle, "high": high}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Take all runs."""
    with tempfile.TemporaryDirectory(prefix="fusewire-models-") as folder:
        given = tuned_models(Path(folder), arguments.count)
        total = len(given) * len(ENGINES)
        some = given[: math.ceil((arguments.calm or total) / len(ENGINES))]
        calm = run_trials(some, arguments.budget, pause=None, seed=0)
        part = some[: max(len(some) // 4, 1)]
        again = run_trials(part, arguments.budget, pause=None, seed=0)
        killed = run_trials(given, arguments.budget, pause=arguments.pause, seed=arguments.seed)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "count": total,
        "pause": arguments.pause,
        "budget": arguments.budget,
        "calm": counted(calm, len(some) * len(ENGINES)),
        "killed": counted(killed, total),
        "killed_over_calm": ratios(calm, killed),
        "aa": ratios(calm, again),
        "versions": {
            x: version(x) for x in ("fusewire", "ray", "onnxruntime", "openvino", "jaxlib")
        },
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[2]:.1f}",
    }


def is_sound(report: Mapping[str, Any]) -> bool:
    """Tell whether no record is missing or double, and no two trials ran at once."""
    sides = report["calm"], report["killed"]
    names = "missing", "double", "overlaps"
    return all(side["records"] == side["trials"] for side in sides) and not any(
        side[name] for side in sides for name in names
    )


def page(report: Mapping[str, Any]) -> str:
    """Write the page of results."""
    versions = ", ".join(f"{name} {text}" for name, text in report["versions"].items())
    shown = (
        ("trials", "trials"),
        ("records", "records"),
        ("trials without a record", "missing"),
        ("records of one trial on one host beyond the first", "double"),
        ("trials that ran beside another", "overlaps"),
        ("hosts", "hosts"),
        ("workers killed", "workers_killed"),
        ("raylets killed", "raylets_killed"),
        ("answers that a retry found recorded", "recalled"),
    )
    calm, killed = report["calm"], report["killed"]
    ours, noise = report["killed_over_calm"], report["aa"]
    return "\n".join(
        [
            "# Trials on Ray, with deaths",
            "",
            f"`python benchmarks/ray_trials.py --count {report['count']} --calm "
            f"{report['calm']['trials']} --pause {report['pause']:g}`, {report['date']}, "
            f"{versions}, {report['machine']}.",
            f"{report['count']} trials of 6 models on {', '.join(ENGINES)}, budget "
            f"{report['budget']:g} s each, two raylets on one machine. The longest trial took "
            f"{killed['longest']:.1f} s.",
            "",
            "| | undisturbed | with kills |",
            "|---|---:|---:|",
            *(f"| {name} | {calm[key]} | {killed[key]} |" for name, key in shown),
            *(
                f"| {x} | {calm['states'].get(x, 0)} | {killed['states'].get(x, 0)} |"
                for x in sorted({*calm["states"], *killed["states"]})
            ),
            f"| seconds | {calm['seconds']:.0f} | {killed['seconds']:.0f} |",
            "",
            f"Time with kills over time without, {ours['trials']} trials: geometric mean "
            f"{ours['geomean']:.3f}, quartiles {ours['low']:.3f} to {ours['high']:.3f}. Two "
            f"undisturbed runs, {noise['trials']} trials: {noise['geomean']:.3f}, "
            f"{noise['low']:.3f} to {noise['high']:.3f}.",
            "",
        ]
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=240, help="trials, a multiple of 4")
    parser.add_argument("--calm", type=int, help="trials of the undisturbed run (default: all)")
    parser.add_argument("--pause", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of a comparison")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="the page of results to write")
    arguments = parser.parse_args(words)
    report = run(arguments)
    print(json.dumps(report, indent=1) if arguments.json else page(report))
    if arguments.write is not None:
        arguments.write.write_text(page(report), encoding="utf-8")
    return 0 if is_sound(report) else 1


if __name__ == "__main__":
    sys.exit(main())
