"""What is a bound on the error worth, and does it hold?

    python benchmarks/precision.py run [--only NAME ...] [--minutes 3.5]   goes on where it was cut
    python benchmarks/precision.py held [--only NAME ...] [--minutes 3.5]
    python benchmarks/precision.py page                    writes results/precision.md of it

``run`` times programs of Fusewire with accuracy 1e-2 and 5e-2 against the best engine in float32
and against each engine's own low precision, all run bare on the same ONNX file: ONNX Runtime's
``quantize_dynamic`` with int8 weights per channel, and OpenVINO without a precision hint, which is
bf16 on processors that have it. Contestants are processes that are asked in turns, as in
engines.py; the error of each is that of its outputs against float64. Fusewire chooses in an earlier
process. ``held`` runs what ``run`` chose on inputs that took no part in the choice: other seeds,
at a half, once and twice the scale, against ONNX Runtime in float32, and the first 20 of each
against float64. Rows where an exact candidate was chosen have nothing to hold.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

import numpy as np  # noqa: E402 - the path comes first

from benchmarks.contestants import Array, Task  # noqa: E402
from benchmarks.engines import HOME, machine, original, slug  # noqa: E402
from benchmarks.match import Gone, Match, Player  # noqa: E402
from fusewire.choosing.measure import interval  # noqa: E402
from fusewire.numerics.metrics import relative  # noqa: E402

# Named before anything was measured.
WORKLOADS = (
    "matmul 256 + gelu",
    "matmul 1024 + gelu",
    "matmul 2048 + gelu",
    "attention 768, batch 1",
    "attention 768, batch 8",
    "encoder x6 384, batch 1",
    "encoder x6 384, batch 8",
    "encoder x6 768, batch 1",
    "encoder x6 768, batch 8",
    "conv 3x3 + bn + relu, batch 1",
    "conv 3x3 + bn + relu, batch 8",
    "ResNet-18, batch 1",
    "ResNet-18, batch 8",
)
MODELS = ("minilm-l3", "ppocr-rec", "ppocr-det", "resnet50-arc", "yolox", "u2netp")
# Ten models: those, and four that are small or have little to multiply.
TEN = (*MODELS, "page-orientation", "magika", "silero-vad", "mnist")
EXACT, BOUNDS = 0.0, (1e-2, 5e-2)
FULL, OWN = ("onnxruntime", "openvino", "torch"), ("onnxruntime-int8", "openvino-own")
SCALES = (0.5, 1.0, 2.0)
HELD, BY_ORACLE = 1000, 20
THREADS = 2
Row = dict[str, Any]


def ours(bound: float) -> str:
    return f"fusewire {bound:g}" if bound else "fusewire exact"


def bounds_of(name: str) -> tuple[float, ...]:
    """List the bounds of a row; those ten models are run exactly, too."""
    return (EXACT, *BOUNDS) if name in TEN else BOUNDS


def kept(part: str, name: str) -> Path:
    folder = HOME / "precision"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{part}.{slug(name)}.json"


def player(folder: Path, path: Path, name: str, who: str, accuracy: float, budget: float) -> Player:
    """Start a contestant; programs of one bound share a cache, which outlives the row."""
    engine = who.partition(" ")[0]
    task = Task(
        engine,
        name,
        str(path),
        str(folder / "inputs.npz"),
        str(folder / f"{slug(who)}.npz"),
        THREADS,
        budget=budget,
        accuracy=accuracy,
    )
    settings = {
        "FUSEWIRE_CACHE": str(cache(name, accuracy)),
        "OPENBLAS_NUM_THREADS": str(THREADS),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    return Player(asdict(task), settings)


def cache(name: str, accuracy: float) -> Path:
    folder = HOME / "precision" / "plans" / f"{slug(name)}-{accuracy:g}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def measure(name: str, seconds: float, budget: float) -> Row:
    """Let Fusewire choose for each bound, then time all of a row in turns."""
    folder = HOME / "work" / f"precision-{slug(name)}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    path, inputs = original(name)
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type] # names are the file's
    bounds = {ours(bound): bound for bound in bounds_of(name)}
    for program, bound in bounds.items():
        shutil.rmtree(cache(name, bound), ignore_errors=True)
        player(folder, path, name, program, bound, budget).close()
    who = [*FULL, *OWN, *bounds]
    players = {w: player(folder, path, name, w, bounds.get(w, 0.0), budget) for w in who}
    try:
        row = timed(players, seconds)
        row["errors"] = errors(folder, path, inputs, [w for w in who if w in row["seconds"]])
    finally:
        for one in players.values():
            one.close()
        shutil.rmtree(folder, ignore_errors=True)
    versions = {x: version(x) for x in ("fusewire", "onnxruntime", "openvino", "torch")}
    return {"name": name, **row, "versions": versions, "machine": machine()}


def timed(players: Mapping[str, Player], seconds: float) -> Row:
    """Time rounds of all that run; those far behind the best leave after a few."""
    ready = {who: one.ready for who, one in players.items()}
    able = [who for who in players if "refused" not in ready[who]]
    match = Match({who: players[who] for who in able})
    match.heats(able)
    best = min((w for w in able if w in FULL), key=match.median)
    names = [w for w in able if match.median(w) <= 1.5 * match.median(best) or w.startswith("fuse")]
    for who in names:
        match.samples.pop(who)
    end = time.monotonic() + seconds
    while match.rounds < 9 or (match.rounds < 200 and time.monotonic() < end):
        match._round(names, match.rounds)
        match.rounds += 1
    return {
        "seconds": {who: match.median(who) for who in able},
        "samples": {who: match.samples[who] for who in names},
        "ready": ready,
        "disturbed": match.disturbed,
    }


def errors(folder: Path, path: Path, inputs: Mapping[str, Array], who: Sequence[str]) -> Row:
    """Measure the relative error of each contestant's outputs against float64."""
    exact = exact_outputs(path, inputs)
    found = {}
    for name in who:
        with np.load(folder / f"{slug(name)}.npz") as held:
            found[name] = relative(exact, [held[key] for key in held.files])
    return found


def exact_outputs(path: Path, inputs: Mapping[str, Array]) -> list[Any]:
    from fusewire.ops.interpret import Interpreter
    from fusewire.session.model_source import ModelSource

    reading = ModelSource(path).read(tuple(inputs.values()))
    outputs = Interpreter(reading.graph, wide=True)(list(inputs.values()))
    return [np.asarray(x) for x in outputs]


def drawn(inputs: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield other inputs: floats as spread as those of the row, at three scales; other tokens."""
    for seed in range(HELD):
        rng = np.random.default_rng([seed, 977])
        scale = SCALES[seed % len(SCALES)]
        yield {name: _drawn(x, scale, rng) for name, x in inputs.items()}


def _drawn(x: Array, scale: float, rng: np.random.Generator) -> Array:
    if x.dtype.kind == "f":
        drawn = x.mean() + x.std() * rng.standard_normal(x.shape)
        return np.asarray(scale * drawn, x.dtype)
    return rng.permutation(x.reshape(-1)).reshape(x.shape) if x.size > 8 else x


def hold(name: str, bound: float, seconds: float) -> Row | None:
    """Run what was chosen on other inputs; None if that computes in the model's own dtypes."""
    import onnxruntime

    import fusewire as fw

    row = json.loads(kept("run", name).read_text())
    chosen = next(x for x in row["ready"][ours(bound)]["tried"] if x["is_chosen"])
    if not chosen["is_reduced"]:
        return None
    path, inputs = original(name)
    # By its options: a choice that is made again may be another one.
    program = fw.compile(
        path,
        backend=chosen["backend"],
        backend_config=chosen["options"],
        level=0,
        threads=THREADS,
        fallback="error",
    )
    program(*inputs.values())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found, by_oracle = [], []
    end = time.monotonic() + seconds
    for number, feeds in enumerate(drawn(inputs)):
        outputs = program(*feeds.values())
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        found.append(relative(session.run(None, feeds), outputs))
        if number < BY_ORACLE:
            by_oracle.append(relative(exact_outputs(path, feeds), outputs))
        if time.monotonic() > end and number + 1 >= BY_ORACLE:
            break
    return {
        "name": name,
        "bound": bound,
        "candidate": chosen["name"],
        "expected": chosen["expected_error"],
        "count": len(found),
        "largest": max(found),
        "over": sum(x > bound for x in found),
        "by_oracle": [len(by_oracle), max(by_oracle), sum(x > bound for x in by_oracle)],
    }


def mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def gain(row: Row, who: str, than: Sequence[str]) -> float:
    """Return how many times as fast as the best of others a contestant is."""
    return float(min(row["seconds"][w] for w in than if w in row["seconds"]) / row["seconds"][who])


def spread(row: Row, who: str) -> str:
    """Return half of the 95% interval of a contestant's median, in percent."""
    samples = row["samples"].get(who)
    if not samples:
        return "-"
    low, high = interval(samples)
    return f"{(high - low) / 2 / row['seconds'][who]:.0%}"


def own_within(row: Row, bound: float) -> list[str]:
    """List the engines, in any precision of their own, whose error is within a bound."""
    able = (*FULL, *OWN)
    return [w for w in able if w in row["seconds"] and row["errors"].get(w, 1.0) <= bound]


def chosen_by(row: Row, who: str) -> str:
    tried = row["ready"][who].get("tried", ())
    return next((x["name"] for x in tried if x["is_chosen"]), "-")


def table(rows: Sequence[Row], bound: float) -> Iterator[str]:
    """Yield the lines of one bound's table."""
    yield (
        "| row | best float32, ms | ± | Fusewire, ms | ± | chosen | error | gain | own low "
        "precision within the bound | to that |"
    )
    yield "|---|---:|---:|---:|---:|---|---:|---:|---|---:|"
    who = ours(bound)
    for row in rows:
        if who not in row["seconds"]:
            refused = row["ready"][who]["refused"]
            yield f"| {row['name']} | - | - | {refused} | - | - | - | - | - | - |"
            continue
        best = min((w for w in FULL if w in row["seconds"]), key=row["seconds"].__getitem__)
        within = own_within(row, bound)
        low = min(within, key=row["seconds"].__getitem__)
        cells = [
            row["name"],
            f"{best} {1e3 * row['seconds'][best]:.3g}",
            spread(row, best),
            f"{1e3 * row['seconds'][who]:.3g}",
            spread(row, who),
            chosen_by(row, who),
            f"{row['errors'][who]:.1e}",
            f"{gain(row, who, FULL):.2f}",
            f"{low} {1e3 * row['seconds'][low]:.3g}",
            f"{gain(row, who, [low]):.2f}",
        ]
        yield f"| {' | '.join(cells)} |"
    timed = [row for row in rows if who in row["seconds"]]
    if timed:
        gains = mean([gain(row, who, FULL) for row in timed])
        owns = mean([gain(row, who, own_within(row, bound)) for row in timed])
        yield ""
        yield (
            f"Geometric means over {len(timed)} rows: {gains:.2f} times the best float32 engine, "
            f"{owns:.2f} times the best engine in any precision of its own within the bound."
        )


def headline(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a short table: each engine bare, and Fusewire exactly and within 1e-2."""
    programs = [ours(EXACT), ours(BOUNDS[0])]
    yield "| model | ONNX Runtime | OpenVINO | PyTorch | Fusewire | Fusewire within 1e-2 |"
    yield "|---|---:|---:|---:|---:|---:|"
    kept = [row for row in rows if all(who in row["seconds"] for who in programs)]
    for row in kept:
        taken = [row["seconds"].get(who) for who in (*FULL, *programs)]
        cells = ["refused" if seconds is None else f"{1e3 * seconds:.3g}" for seconds in taken]
        yield f"| {row['name']} | {' | '.join(cells)} |"
    for who in programs if kept else ():
        yield ""
        gains = mean([gain(row, who, FULL) for row in kept])
        yield f"{who}: {gains:.2f} times as fast as the best engine of each row, geometric mean."


def own_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what engines do by themselves in low precision."""
    yield "| row | " + " | ".join(f"{w}, ms | error" for w in OWN) + " |"
    yield "|---|" + "---:|" * (2 * len(OWN))
    for row in rows:
        cells = [row["name"]]
        for who in OWN:
            if who in row["seconds"]:
                cells += [f"{1e3 * row['seconds'][who]:.3g}", f"{row['errors'][who]:.1e}"]
            else:
                cells += [row["ready"][who]["refused"][:60], "-"]
        yield f"| {' | '.join(cells)} |"


def held_table() -> Iterator[str]:
    yield "| row | bound | chosen | inputs | largest error | over | of 20 by float64 | predicted |"
    yield "|---|---:|---|---:|---:|---:|---|---:|"
    for path in sorted((HOME / "precision").glob("held.*.json")):
        for row in json.loads(path.read_text()):
            count, largest, over = row["by_oracle"]
            yield (
                f"| {row['name']} | {row['bound']:g} | {row['candidate']} | {row['count']} | "
                f"{row['largest']:.1e} | {row['over']} | {over} over, largest {largest:.1e} "
                f"({count}) | {row['expected']:.1e} |"
            )


def page() -> str:
    """Write the page of what is kept."""
    names = [*WORKLOADS, *TEN]
    rows = [json.loads(kept("run", n).read_text()) for n in names if kept("run", n).exists()]
    lines = ["# Precision within a bound", "", __doc__.split("\n\n", 2)[2].strip(), ""]
    if rows:
        versions = ", ".join(f"{k} {v}" for k, v in rows[-1]["versions"].items())
        lines += [f"{rows[-1]['machine']}; {versions}; {THREADS} threads.", ""]
    lines += (HERE_SAYS, "")
    for bound in BOUNDS:
        for title, part in (("Workloads", WORKLOADS), ("Zoo", MODELS)):
            own = [row for row in rows if row["name"] in part]
            lines += [f"## {title}, accuracy={bound:g}", "", *table(own, bound), ""]
    ten = [row for row in rows if row["name"] in TEN]
    lines += ["## Ten real models, ms", "", *headline(ten), ""]
    lines += ["## The engines' own low precision", "", *own_table(rows), ""]
    lines += ["## Held-out inputs", "", *held_table(), ""]
    return "\n".join(lines)


# What the machine of the latest run can do.
HERE_SAYS = (
    "The processor of this run has AVX-512 and VNNI (int8), and neither AVX-512 bf16 nor AMX: "
    "OpenVINO lists FP32 and INT8, its bf16 is emulated (40 times as slow as float32 on a product "
    "of 1024), and f16 is computed in float32. So int8 products are all that a bound gains here."
)


def within_time(part: str, names: Sequence[str], args: argparse.Namespace) -> None:
    """Do rows that are not kept yet, until the minutes are used."""
    start, longest = time.monotonic(), 0.0
    for name in names:
        if kept(part, name).exists() and not args.again:
            continue
        used = time.monotonic() - start
        if used + longest > 60 * args.minutes:
            print(f"out of time before {name}", flush=True)
            return
        begin = time.monotonic()
        try:
            found: Any
            if part == "run":
                found = measure(name, args.seconds, args.budget)
                said = {w: f"{1e3 * s:.3g} ms" for w, s in found["seconds"].items()}
            else:
                rows = [hold(name, bound, args.seconds) for bound in BOUNDS]
                found = said = [row for row in rows if row is not None]  # type: ignore[assignment]
        except Gone as error:
            print(f"{name}: a contestant ended: {error}", flush=True)
            continue
        kept(part, name).write_text(json.dumps(found, indent=1))
        longest = max(longest, time.monotonic() - begin)
        print(f"{name}: {said}, {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["run", "held", "page"])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=3.5, help="after which no row begins")
    parser.add_argument("--seconds", type=float, default=6.0, help="of rounds, or of held-out runs")
    parser.add_argument("--budget", type=float, default=15.0, help="in which Fusewire chooses")
    parser.add_argument("--again", action="store_true", help="also what is kept already")
    args = parser.parse_args()
    names = args.only or [*WORKLOADS, *TEN]
    if args.part == "page":
        (ROOT / "benchmarks" / "results" / "precision.md").write_text(page())
    else:
        within_time(args.part, names, args)


if __name__ == "__main__":
    main()
