"""What do large outputs cost when they are written where earlier ones were?

    python benchmarks/outputs.py [--rounds 40] [--engines xla,openvino] [--scale 1.0] [--json]
    python benchmarks/outputs.py --soak 10000 [--json]

Programs that do little but write an output of 40 to 80 MB, on every engine in a process of its own:
``program(x)`` against the fastest way the engine has to give a fresh output of the same loaded
model (benchmarks/bare.py), in turns, with a pause between calls that spinning threads do not
outlast. A/A is bare against itself. "Bound" is the ratio over binding a fresh NumPy array, where
one can: not the engine's own way, and what we did before. "All kept" is the worst there is: the
caller keeps every result, so that nothing can be used again. Page faults are the kernel's count, by
call.

``--soak``: so many calls by four threads that keep results, and parts of them, at random for a
while. What is kept must stay what it was, and memory must not grow.

The bar: at most 0.8 of bare on every program, for two engines or more. Exit 1 if it is missed, or
if the soak finds a result changed or memory grown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import fusewire as fw
from benchmarks import bare
from benchmarks.overhead import about, child
from benchmarks.timing import interleaved, ratio
from fusewire.host_memory import POOL, aligned_copy
from fusewire.ir.graph import Array
from fusewire.system.processes import resident

ENGINES = ("xla", "openvino", "onnxruntime")
BAR = 0.8
PAUSE = 0.12
THREADS = 4
# What may be held at once by each thread, and what a process may grow by between the first fifth of
# a soak and its end, in outputs.
HELD = 12
GROWTH = 8


# Ways of benchmarks/bare.py that are no engine's own: a caller's memory is bound.
BOUND = "bound anew"


def chain(x: Any) -> Any:
    for _ in range(4):
        x = np.maximum(x * np.float32(0.5), np.float32(0.1))
    return x


# The function, and the shape of what it takes.
PROGRAMS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "8 elementwise, 1e7": (chain, (10_000_000,)),
    "add, 2e7": (lambda x: x + np.float32(1), (20_000_000,)),
    "transpose, 4096 x 4096": (np.transpose, (4096, 4096)),
    "concat, 2 of 5e6": (lambda x: np.concatenate([x, x]), (5_000_000,)),
}


def given(name: str, scale: float) -> Array:
    """Make the input: aligned, so that no engine copies it."""
    shape = (max(int(PROGRAMS[name][1][0] * scale), 1), *PROGRAMS[name][1][1:])
    return aligned_copy(np.random.default_rng(0).random(shape, np.float32))


def compiled(engine: str, name: str, x: Array) -> Any:
    return fw.compile(PROGRAMS[name][0], x, backend=engine, fallback="error", isolate=False)


def faults(call: Callable[[], object], calls: int = 5) -> float:
    """Count page faults of one call."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls


def ways(engine: str, program: Any, x: Array) -> dict[str, bare.Call]:
    """List the ways to call the engine bare; OpenVINO can also allocate outputs itself."""
    found = bare.ENGINES[engine](program, x)
    if engine != "openvino":
        return found
    import openvino as ov

    request = bare.loaded(program, x)._compiled.create_infer_request()
    shape = request.get_output_tensor(0).shape

    def fresh(x: Array) -> Any:
        made = ov.Tensor(ov.Type.f32, shape)
        request.set_input_tensor(0, ov.Tensor(x, shared_memory=True))
        request.set_output_tensor(0, made)
        request.infer(share_outputs=True)
        return made.data

    return {**found, "infer(), a tensor of its own": fresh}


def measure(engine: str, name: str, rounds: int, scale: float, pause: float) -> dict[str, Any]:
    """Find the fastest way to call bare, and time it against ours."""
    x = given(name, scale)
    program = compiled(engine, name, x)
    expected = PROGRAMS[name][0](x)
    np.testing.assert_allclose(program(x), expected, rtol=1e-6)
    listed = ways(engine, program, x)
    calls: dict[str, Callable[[], Any]] = {way: partial(call, x) for way, call in listed.items()}
    for call in calls.values():
        np.testing.assert_allclose(call(), expected, rtol=1e-6)
    bound = [call for way, call in calls.items() if BOUND in way]
    own = {way: call for way, call in calls.items() if BOUND not in way}
    trials = interleaved(own, seconds=0, least=max(rounds // 6, 3), pause=pause, warm=2)
    best = min(trials, key=lambda way: trials[way].median)
    ours = partial(program, x)
    sides: dict[str, Callable[[], Any]] = {"bare": own[best], "ours": ours, "again": own[best]}
    counted = {side: faults(call) for side, call in sides.items()}
    if bound:
        sides["bound"] = bound[0]
    found = interleaved(sides, seconds=0, least=rounds, pause=pause)
    kept = worst(own[best], ours, max(rounds // 4, 3), pause)
    ratios = [a / b for a, b in zip(found["ours"].samples, found["bare"].samples, strict=True)]
    return {
        "engine": engine,
        "program": name,
        "best": best,
        "bytes": expected.nbytes,
        "bare_ms": found["bare"].median * 1e3,
        "ours_ms": found["ours"].median * 1e3,
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
        "aa": ratio(found["again"], found["bare"]),
        "bound": ratio(found["ours"], found["bound"]) if bound else None,
        "kept": kept,
        "faults": counted,
        "rounds": rounds,
    }


def worst(bare: Callable[[], Any], ours: Callable[[], Any], rounds: int, pause: float) -> float:
    """Time calls whose results are all kept: ours over bare."""
    POOL.clear()
    kept: list[Any] = []
    sides = {"bare": lambda: kept.append(bare()), "ours": lambda: kept.append(ours())}
    found = interleaved(sides, seconds=0, least=rounds, pause=pause, warm=1)
    return ratio(found["ours"], found["bare"])


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | output, MB | bare, ms | by a program, ms | ratio | A/A | bound | all kept | faults "
        "bare | faults ours | bare is |",
        "|---" * 11 + "|",
    ]
    for row in rows:
        low, high = row["quartiles"]
        bound = "" if row["bound"] is None else f"{row['bound']:.2f}"
        lines.append(
            f"| {row['engine']}: {row['program']} | {row['bytes'] / 1e6:.0f} | "
            f"{row['bare_ms']:.1f} | {row['ours_ms']:.1f} | "
            f"**{row['ratio']:.2f}** ({low:.2f} to {high:.2f}) | {row['aa']:.2f} | {bound} | "
            f"{row['kept']:.2f} | {row['faults']['bare']:.0f} | {row['faults']['ours']:.0f} | "
            f"`{row['best']}` |"
        )
    return "\n".join(lines)


class Soak:
    """Threads that call one program and keep what they like of its results for a while."""

    def __init__(self, engine: str, calls: int, scale: float) -> None:
        self.name = "8 elementwise, 1e7"
        self.engine = engine
        self.calls = calls
        self.scale = scale
        self.wrong = 0
        self.held: list[int] = []

    def work(self, program: Any, inputs: list[Array], number: int) -> None:
        """Call, keep, look whether what is kept is as it was, and let go."""
        chance = random.Random(number)
        kept: list[tuple[Array, Array]] = []
        for turn in range(self.calls // THREADS):
            found = program(chance.choice(inputs))
            if chance.random() < 0.3:
                start = chance.randrange(found.shape[0] // 2)
                part = found[start :: chance.randrange(1, 999)][: 1 << 12]
                kept.append((part, part.copy()))
            del found
            while len(kept) > chance.randrange(1, HELD):
                part, was = kept.pop(chance.randrange(len(kept)))
                self.wrong += not np.array_equal(part, was)
            if number == 0 and turn % 50 == 0:
                self.held.append(resident(os.getpid()))
        self.wrong += sum(not np.array_equal(part, was) for part, was in kept)

    def run(self) -> dict[str, Any]:
        x = given(self.name, self.scale)
        program = compiled(self.engine, self.name, x)
        inputs = [x, *(aligned_copy(x + np.float32(n)) for n in (1, 2, 3))]
        program(x)
        threads = [
            threading.Thread(target=self.work, args=(program, inputs, number))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        early = max(self.held[: max(len(self.held) // 5, 1)])
        return {
            "engine": self.engine,
            "calls": self.calls,
            "wrong": self.wrong,
            "output_mb": x.nbytes / 1e6,
            "early_mb": early / 1e6,
            "most_mb": max(self.held) / 1e6,
            "idle_mb": POOL.idle_bytes / 1e6,
        }


def soak_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | calls | results changed | most memory in the first fifth, MB | at any time, MB | idle "
        "at the end, MB |",
        "|---" * 6 + "|",
    ]
    lines += [
        f"| {row['engine']} | {row['calls']} | {row['wrong']} | {row['early_mb']:.0f} | "
        f"{row['most_mb']:.0f} | {row['idle_mb']:.0f} |"
        for row in rows
    ]
    return "\n".join(lines)


def has_grown(row: dict[str, Any]) -> bool:
    return bool(row["most_mb"] - row["early_mb"] > GROWTH * row["output_mb"])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the programs' sizes")
    parser.add_argument("--pause", type=float, default=PAUSE)
    parser.add_argument("--soak", type=int, help="calls")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help="one engine, in this process, as JSON")
    return parser.parse_args()


def one(chosen: argparse.Namespace) -> Any:
    """Do what is asked on one engine."""
    if chosen.soak:
        return Soak(chosen.one, chosen.soak, chosen.scale).run()
    return [
        measure(chosen.one, name, chosen.rounds, chosen.scale, chosen.pause) for name in PROGRAMS
    ]


def main() -> int:
    chosen = options()
    if chosen.one:
        print(json.dumps(one(chosen)))
        return 0
    settings = [f"--{key}={getattr(chosen, key)}" for key in ("rounds", "scale", "pause")]
    settings += [f"--soak={chosen.soak}"] if chosen.soak else []
    found = [
        child("benchmarks.outputs", f"--one={engine}", *settings)
        for engine in chosen.engines.split(",")
    ]
    if chosen.soak:
        print(json.dumps(found) if chosen.json else f"{about()}\n\n{soak_table(found)}")
        return int(any(row["wrong"] or has_grown(row) for row in found))
    rows = [row for part in found for row in part]
    print(json.dumps(rows) if chosen.json else f"{about()}\n\n{table(rows)}")
    within = [all(row["ratio"] <= BAR for row in part) for part in found]
    return int(sum(within) < min(2, len(within)))


if __name__ == "__main__":
    sys.exit(main())
