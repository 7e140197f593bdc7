"""Whether a table agrees with the choice: the README's snippets, ``bench --example``, silero-vad.

    python benchmarks/agrees.py [--count 20] [--json FILE] [SUBJECT ...]
    python benchmarks/agrees.py --table [--json FILE]    prints the table of what was kept

Each trial is a process with an empty cache. It waits until the program is settled (or runs
``fusewire bench``), and asks of the table: is a candidate that is right, or was not judged, faster
than the marked one beyond the intervals, in times of one kind? That is allowed where the first
sentence says so and the program is not settled. Live: what serves, the same source compiled for
each engine by name, and the function or module itself are called in turns in that process, and the
10th percentiles of single calls are compared, after two seconds of calls. What serves passes at 1.1
times the best of the others, or 5 us more. ``--json`` keeps the rows, so that a run can go on. Zoo
models come from ``benchmarks/zoo/zoo.py``. Exit 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__)
sys.path[:0] = [str(HERE.with_name("zoo")), str(HERE.parents[1])]

Row = dict[str, Any]
ENGINES = ("onnxruntime", "openvino", "xla")
SUBJECTS = ("onnx", "numpy", "torch", "bench-example", "bench-silero-vad")
USABLE = ("right", "cannot say", "not judged")
# What serves may take so many times as long as the best, or so many seconds more.
MOST_TIMES, MOST_MORE = 1.1, 5e-6
# Seconds of calls before those that count, and of those; rounds at most.
WARMING, TIMING, MOST_ROUNDS = 2.0, 3.0, 3000
# The shares of trials that must pass.
BARS = {"agrees": 1.0, "settled": 0.9, "ranked": 1.0, "live": 0.95}


def softmax(x: Any, axis: int = -1) -> Any:
    """Compute what the README's snippet does."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def source_of(subject: str) -> tuple[Any, tuple[Any, ...] | dict[str, Any], bool]:
    """Return what is compiled, its arguments in order or by name, and whether it runs itself."""
    if subject == "torch":
        torch = import_module("torch")
        torch.set_grad_enabled(False)
        module = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
        return module, (torch.zeros(1, 10, 64),), True
    if subject == "numpy":
        scores = np.random.default_rng(0).standard_normal((1, 10)).astype(np.float32)
        return softmax, (scores,), True
    if subject == "bench-silero-vad":
        zoo: Any = import_module("zoo")
        return str(zoo.path("silero-vad")), zoo.inputs("silero-vad"), False
    from fusewire.example import MODEL

    return MODEL, (np.zeros((1, 1, 28, 28), np.float32),), False


def beaten(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the candidates that are faster than the marked one beyond the intervals."""
    names = []
    for marked in (row for row in rows if row["is_chosen"]):
        for low, high in (("low", "high"), ("here_low", "here_high")):
            for row in rows:
                least, most = marked.get(low), row.get(high)
                is_usable = row["status"] in USABLE and not row.get("is_barred")
                if is_usable and least is not None and most is not None and most < least:
                    names.append(str(row["name"]))
    return names


def trial(subject: str) -> Row:
    """Settle once, and look at the table and at the times; the cache is empty."""
    report = bench(subject) if subject.startswith("bench") else None
    import fusewire as fw

    source, arguments, runs_itself = source_of(subject)
    program = fw.compile(source)
    called(program, arguments)()
    waited = program.wait(600)
    why = program.why()
    if report is None:
        first = str(why).splitlines()[0]
        rows = json.loads(why.to_json())["tried"]
        is_settled = waited and program.state == "settled"
    else:
        first, rows = report["first"], report["rows"]
        is_settled = " times faster than " in first or " tie" in first or "only " in first
    faster = beaten(rows)
    ways = {"program": called(program, arguments)}
    for engine in ENGINES:
        ways[engine] = called(fw.compile(source, backend=engine), arguments)
    if runs_itself:
        ways["itself"] = called(source, arguments)
    times = live(ways)
    best = min(seconds for name, seconds in times.items() if name != "program")
    is_said = first.startswith("Not settled") and not is_settled
    return {
        "subject": subject,
        "serves": why.backend,
        "marked": next((row["name"] for row in rows if row["is_chosen"]), ""),
        "first": first,
        "beaten": faster,
        "times": times,
        "rows": [_short(row) for row in rows],
        "agrees": not faster or is_said,
        "settled": bool(is_settled),
        "ranked": "too busy" not in first,
        "live": times["program"] <= max(MOST_TIMES * best, best + MOST_MORE),
    }


def _short(row: Mapping[str, Any]) -> Row:
    names = ("name", "status", "seconds", "low", "high", "here", "here_low", "here_high")
    return {name: row.get(name) for name in (*names, "is_chosen", "reason")}


def bench(subject: str) -> Row:
    """Run ``fusewire bench``, and return its report with its first sentence."""
    from fusewire.cli.ranking import summary

    command = [sys.executable, "-m", "fusewire", "bench", "--json"]
    if subject == "bench-example":
        command.append("--example")
    else:
        zoo: Any = import_module("zoo")
        command.append(str(zoo.path("silero-vad")))
        inputs = zoo.inputs("silero-vad")
        folder = Path(os.environ["FUSEWIRE_CACHE"]).parent
        for name, array in inputs.items():
            np.save(folder / f"{name}.npy", array)
            command += ["--input", f"{name}={folder / name}.npy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report: Row = json.loads(done.stdout)
    return {**report, "first": next(iter(summary(report)))}


def called(way: Any, arguments: tuple[Any, ...] | dict[str, Any]) -> Callable[[], Any]:
    """Return a call of a way."""
    return partial(way, **arguments) if isinstance(arguments, dict) else partial(way, *arguments)


def live(ways: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the 10th percentile of single calls of each way, called in turns."""
    order, samples = list(ways), {name: list[float]() for name in ways}
    begin = time.monotonic()
    while time.monotonic() < begin + WARMING:
        for name in order:
            ways[name]()
    luck = np.random.default_rng(0)
    begin, rounds = time.monotonic(), 0
    while time.monotonic() < begin + TIMING and rounds < MOST_ROUNDS:
        luck.shuffle(order)
        for name in order:
            start = time.perf_counter()
            ways[name]()
            samples[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: float(np.quantile(times, 0.1)) for name, times in samples.items()}


def run(subject: str) -> Row:
    """Run a trial in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="agrees-") as folder:
        environment = {**os.environ, "FUSEWIRE_CACHE": f"{folder}/cache"}
        command = [sys.executable, __file__, "--trial", subject]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    try:
        row: Row = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        row = {"subject": subject, "problem": done.stderr[-800:], **dict.fromkeys(BARS, False)}
    return row


def table(rows: Sequence[Row]) -> str:
    """Write how many trials of each subject pass, and what came of them."""
    lines = [
        "| subject | trials | table agrees | settled | ranked | live | live, worst | serves |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for subject in dict.fromkeys(row["subject"] for row in rows):
        own = [row for row in rows if row["subject"] == subject]
        counts = [str(sum(bool(row[name]) for row in own)) for name in BARS]
        ratios = [ratio(row) for row in own if "times" in row]
        served = [row.get("serves", "failed") for row in own]
        who = ", ".join(f"{x} {served.count(x)}" for x in dict.fromkeys(served))
        worst = f"{max(ratios):.2f}" if ratios else "-"
        lines.append(f"| {subject} | {len(own)} | {' | '.join(counts)} | {worst} | {who} |")
    return "\n".join(lines)


def ratio(row: Row) -> float:
    """Return how many times as long what serves takes as the best of the others."""
    times = row["times"]
    least = min(seconds for name, seconds in times.items() if name != "program")
    return float(times["program"] / least)


def passes(rows: Sequence[Row]) -> bool:
    """Tell whether every subject meets every bar."""
    subjects = {row["subject"] for row in rows}
    own = {x: [row for row in rows if row["subject"] == x] for x in subjects}
    return all(
        sum(bool(row[name]) for row in trials) >= share * len(trials)
        for trials in own.values()
        for name, share in BARS.items()
    )


def main() -> None:
    """Run trials in turns over the subjects, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--count", type=int, default=20, help="trials of each subject")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none later")
    parser.add_argument("--json", type=Path, help="keep rows here, and go on with them")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--trial", choices=SUBJECTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trial:
        print(json.dumps(trial(args.trial)))
        return
    begin = time.monotonic()
    rows: list[Row] = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    for number in range(0 if args.table else args.count):
        for subject in args.subjects or SUBJECTS:
            is_due = sum(row["subject"] == subject for row in rows) <= number
            if is_due and time.monotonic() < begin + args.seconds:
                rows.append(run(subject))
                print(_line(rows[-1]), file=sys.stderr, flush=True)
                if args.json:
                    args.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))
    sys.exit(not passes(rows))


def _line(row: Row) -> str:
    if "times" not in row:
        return f"{row['subject']}: {row['problem']}"
    missed = [name for name in BARS if not row[name]]
    times = ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in row["times"].items())
    return f"{row['subject']}: {row['first']} [{times} us] missed: {', '.join(missed) or 'none'}"


if __name__ == "__main__":
    main()
