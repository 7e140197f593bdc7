"""Do submitted calls always end, and right? What does a captured sequence save?

    python benchmarks/asynchronous.py submits [--runs 10] [--threads 8] [--submits 1000]
    python benchmarks/asynchronous.py interrupts [--points 200]
    python benchmarks/asynchronous.py captured [--rounds 200]

``submits``: threads submit calls, cancel some at random, and make some fail; every future must end,
with the right answer or the right error. ``interrupts``: processes that submit get SIGINT at
random moments; they must go on, and end clean. ``captured``: ten tiny programs one by one against
the same ten captured, in turns; the bar is 0.6.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from statistics import median
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.errors import CheckError

X = np.arange(16, dtype=np.float32)
# The share of submits after which a future is cancelled, and that of indices out of bounds.
CANCELS, FAILS = 0.3, 0.3
SECONDS = 60

INTERRUPTED = """
import os, random, signal, sys, threading, time
import numpy as np, fusewire as fw
chance = random.Random(int(sys.argv[1]))
x = np.ones((32, 32), np.float32)
f = fw.compile(lambda x: np.tanh(x @ x), x, backend="reference")
f.submit(x).result()
for _ in range(int(sys.argv[2])):
    futures = []
    seconds = chance.uniform(0.005, 0.05)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            futures.append(f.submit(x))
            if len(futures) % 5 == 0:
                futures[-1].result()
            if len(futures) % 3 == 0:
                futures[-2].cancel()
    except KeyboardInterrupt:
        pass
    for future in futures:
        assert future.cancelled() or future.result(30).shape == (32, 32)
    assert f.submit(x).result(30).shape == (32, 32)
    print("clean", flush=True)
f.close()
"""
# Interrupts of one process.
EACH = 20


def submits(threads: int, count: int, seed: int) -> dict[str, int]:
    """Submit from several threads; returns how the futures ended."""
    program = fw.compile(lambda x, i: np.take(x, i), X, np.int64(0), backend="reference")
    made: list[list[tuple[int, Future[Any]]]] = [[] for _ in range(threads)]

    def work(number: int) -> None:
        chance = random.Random(seed * 1000 + number)
        for _ in range(count):
            index = chance.randrange(16, 32) if chance.random() < FAILS else chance.randrange(16)
            made[number].append((index, program.submit(X, np.int64(index))))
            if chance.random() < CANCELS:
                chance.choice(made[number])[1].cancel()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    ended = {"right": 0, "failed": 0, "cancelled": 0, "wrong": 0}
    for index, future in [pair for row in made for pair in row]:
        ended[_outcome(index, future)] += 1
    program.close()
    return ended


def _outcome(index: int, future: Future[Any]) -> str:
    if future.cancelled():
        return "cancelled"
    error = future.exception(SECONDS)
    if index >= len(X):
        return "failed" if isinstance(error, CheckError) else "wrong"
    return "right" if error is None and future.result() == X[index] else "wrong"


def interrupts(points: int, seconds: float) -> dict[str, Any]:
    """Interrupt processes at random moments; returns how often they went on as they should."""
    clean, problems = 0, []
    end = time.monotonic() + seconds
    for number in range(-(-points // EACH)):
        if time.monotonic() > end:
            break
        command = [sys.executable, "-c", INTERRUPTED, str(number), str(EACH)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS)
        except subprocess.TimeoutExpired as error:
            problems.append(f"{number}: it hangs after {error.stdout!r}")
            continue
        clean += done.stdout.count("clean")
        if (done.returncode, done.stderr) != (0, ""):
            problems.append(f"{number}: {done.returncode} {done.stderr[-500:]!r}")
    return {"clean": clean, "problems": problems}


def captured(engine: str, rounds: int) -> dict[str, Any]:
    """Time ten tiny programs one by one, and captured, in turns."""
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    programs = [
        fw.compile(lambda x, k=k: np.tanh(x * 0.5 + k), x, backend=engine, level=0)
        for k in range(10)
    ]

    def one_by_one(x: Any) -> Any:
        for program in programs:
            x = program(x)
        return x

    whole = fw.capture(one_by_one, x)
    for _ in range(20):
        assert np.allclose(one_by_one(x), whole(x), atol=1e-5)
    pairs, same = [], []
    for _ in range(rounds):
        single, again, together = (_timed(run, x) for run in (one_by_one, one_by_one, whole))
        pairs.append((single, together))
        same.append(again / single)
    ratios = [together / single for single, together in pairs]
    low, high = np.percentile(ratios, [10, 90])
    return {
        "engine": engine,
        "one_by_one_us": median(single for single, _ in pairs) * 1e6,
        "captured_us": median(together for _, together in pairs) * 1e6,
        "ratio": median(ratios),
        "p10": float(low),
        "p90": float(high),
        "aa": median(same),
        "regions": len(whole.plan.regions()),
    }


def _timed(run: Any, x: Any, calls: int = 50) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run(x)
    return (time.perf_counter() - start) / calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["submits", "interrupts", "captured"])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--submits", type=int, default=1000)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--engines", default="onnxruntime,reference")
    given = parser.parse_args()
    if given.what == "submits":
        rows = [submits(given.threads, given.submits, seed) for seed in range(given.runs)]
        print(json.dumps(rows, indent=1))
        return int(any(row["wrong"] for row in rows))
    if given.what == "interrupts":
        found = interrupts(given.points, given.seconds)
        print(json.dumps(found, indent=1))
        return int(bool(found["problems"]))
    ratios = [captured(engine, given.rounds) for engine in given.engines.split(",")]
    print(json.dumps(ratios, indent=1))
    return int(any(row["ratio"] > 0.6 for row in ratios))


if __name__ == "__main__":
    sys.exit(main())
