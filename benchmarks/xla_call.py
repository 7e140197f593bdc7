"""What does a call through the XLA backend cost, over jax called bare?

A tiny MLP (16-32-4, float32), so that the call is all there is. Everything runs in one process in
turns, from host arrays to host arrays; the backend is timed twice, and the ratio of the two (A/A)
is the noise. The tenth percentile is what the call costs, the median what it cost here.

    python benchmarks/xla_call.py --rounds 300 --json out.json
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fusewire import trace
from fusewire.backends.xla.engine import XlaBackend
from fusewire.contract.region import build, first_device

CALLS = 20
OURS, AGAIN = "fusewire", "fusewire again (A/A)"
BARE = "jax.jit to a copy"


def contenders() -> dict[str, Callable[[], Any]]:
    """Give what is timed: each takes one host array and gives one."""
    rng = np.random.default_rng(0)
    x, *weights = (
        rng.normal(size=shape).astype(np.float32)
        for shape in ((1, 16), (16, 32), (32,), (32, 4), (4,))
    )

    def layers(xp: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return xp.maximum(x @ w1 + b1, np.float32(0)) @ w2 + b2

    backend = XlaBackend()
    graph = trace(lambda x: layers(np, x, *weights), x)
    executable = build(backend, graph, first_device(backend))
    bare = jax.jit(lambda *arrays: layers(jnp, *arrays))
    held = [jax.device_put(array) for array in weights]

    def ours() -> Any:
        return executable.run([x])[0]

    return {
        "numpy": lambda: layers(np, x, *weights),
        OURS: ours,
        AGAIN: ours,
        BARE: lambda: np.array(bare(x, *held)),
        "jax.jit, read-only": lambda: np.asarray(bare(x, *held)),
    }


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Time all contenders in turns; microseconds a call."""
    found = contenders()
    times: dict[str, list[float]] = {name: [] for name in found}
    for call in found.values():
        for _ in range(200):
            call()
    gc.disable()
    for turn in range(rounds):
        # Whoever comes after a program that leaves threads awake pays for it: take turns.
        names = list(found)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = found[name]
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
        time.sleep(0.001)
    gc.enable()
    return {
        name: {"p10": float(np.percentile(t, 10)), "median": float(np.median(t))}
        for name, t in times.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sync", action="store_true", help="let bare jax dispatch at once, too")
    options = parser.parse_args()
    if options.sync:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    found = measure(options.rounds)
    for name, row in found.items():
        print(f"{name:24} p10 {row['p10']:7.2f} us   median {row['median']:7.2f} us")
    ratio = found[OURS]["p10"] / found[BARE]["p10"]
    noise = found[AGAIN]["p10"] / found[OURS]["p10"]
    print(f"over bare: {ratio:.2f} (A/A {noise:.2f})")
    if options.json is not None:
        about = {"jax": jax.__version__, "machine": platform.machine(), "sync": options.sync}
        options.json.write_text(json.dumps({"about": about, "us": found}, indent=1))


if __name__ == "__main__":
    main()
