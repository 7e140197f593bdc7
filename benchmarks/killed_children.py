"""Does an engine suffer for it that somebody kills its process?

    python benchmarks/killed_children.py [--count 200] [--seed 0] [--json]

Comparisons of real engines run one after another, each with a cache that lasts, while a thread
kills children from outside, with SIGKILL or SIGTERM, at moments drawn at random: while they start,
compile, run, are judged or timed. Counted are the kills, by what the child was doing, the verdicts,
and the entries of the quarantine. Exit 1 if there is one, or if a comparison ended with an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.compiler import Session
from fusewire.errors import NoneRightError
from fusewire.records.entries import Records
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store

ENGINES = ("onnxruntime", "openvino", "xla", "reference")
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
# A child is killed so many seconds after the one before, at most.
PAUSE = 3.0
SECONDS = 2.0


def children() -> list[int]:
    """List the child processes in which engines run."""
    found = []
    for path in Path("/proc/self/task").glob("*/children"):
        for word in path.read_text().split():
            with contextlib.suppress(OSError):
                if b"fusewire.process.start" in Path(f"/proc/{word}/cmdline").read_bytes():
                    found.append(int(word))
    return found


class Killer(threading.Thread):
    """Kills children until it has killed so many, or is stopped."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.killed: Counter[str] = Counter()
        # What the comparison is doing, as its progress says.
        self.phase = "starting"
        self.count = count
        self.is_stopped = threading.Event()
        self._random = random.Random(seed)

    @property
    def is_done(self) -> bool:
        return self.killed.total() >= self.count

    def run(self) -> None:
        while not self.is_done and not self.is_stopped.wait(self._random.uniform(0, PAUSE)):
            alive = children()
            if alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(alive), self._random.choice(SIGNALS))
                    self.killed[self.phase.partition(" ")[0]] += 1


def network(seed: int) -> Any:
    """Make a small network, another one for each seed."""
    rng = np.random.default_rng(seed)
    first, second = (rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(2))
    return lambda x: np.tanh(x @ first) @ second


def compare(number: int, engines: Sequence[str], store: Store, killer: Killer) -> Sequence[Any]:
    """Run one comparison, with engines that are not started yet; returns its rows."""
    x = np.random.default_rng(number).standard_normal((32, 64)).astype(np.float32)

    def progress(what: str, share: float) -> None:
        killer.phase = what

    for name in engines:
        # The next probe starts another child.
        REGISTRY.close(name)
    options = fw.Options(
        level=1, budget_seconds=SECONDS, fallback="allow", progress=progress, deadline=60.0
    )
    session = Session(options)
    records = Records(store)
    records.model = f"network {number}"

    def targets() -> Any:
        for name in engines:
            with contextlib.suppress(fw.FusewireError):
                yield from session.context.finder.targets(name)

    graph = session.rewrite(fw.trace(network(number), x))
    question = replace(
        session.decider.question(graph, [x]),
        fields=None,
        targets=targets,
        is_thorough=True,
        backends=tuple,
    )
    try:
        return session.decider.decide(question, records).tried
    except NoneRightError as error:
        return error.tried


def measure(count: int, seed: int = 0, engines: Sequence[str] = ENGINES) -> dict[str, Any]:
    """Kill so many children, and say what came of it."""
    warnings.simplefilter("ignore")
    verdicts: Counter[str] = Counter()
    problems: list[str] = []
    killer, start, number = Killer(count, seed), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "cache")
        killer.start()
        try:
            while not killer.is_done:
                number += 1
                try:
                    rows = compare(number, engines, store, killer)
                except Exception as error:  # noqa: BLE001 - whatever ends a comparison is reported
                    problems.append(f"comparison {number}: {type(error).__name__}: {error}"[:300])
                    continue
                verdicts.update(row.status for row in rows)
                bad = [x for x in rows if x.status in ("wrong", "refused", "quarantined")]
                problems += [f"{x.name}: {x.status}: {x.reason}"[:300] for x in bad]
        finally:
            killer.is_stopped.set()
            killer.join()
        entries = len(list(store.entries("quarantine")))
        store.close()
    return {
        "killed": killer.killed.total(),
        "killed while": dict(killer.killed.most_common()),
        "comparisons": number,
        "verdicts": dict(verdicts.most_common()),
        "quarantined": entries,
        "problems": problems,
        "seconds": round(time.monotonic() - start, 1),
        "versions": f"Python {platform.python_version()}, NumPy {np.__version__}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args()
    found = measure(args.count, args.seed, args.engines)
    lines = [f"{name}: {value}" for name, value in found.items()]
    print(json.dumps(found, indent=1) if args.as_json else "\n".join(lines))
    return 1 if found["quarantined"] or found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
