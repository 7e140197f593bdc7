"""What does a second engine run that the first refuses, and what does that save over NumPy?

    python benchmarks/second_engine.py suite [A+B ...] [--slice 1/8]
    python benchmarks/second_engine.py split [NAME ...]    lists models that engines refuse in part
    python benchmarks/second_engine.py right [NAME ...]    judges those, before and after
    python benchmarks/second_engine.py speed [NAME ...]    times those, before and after
    python benchmarks/second_engine.py table               writes results/second_engine.md

``suite`` plans every case of ONNX's backend tests on A, and runs those of which A refuses a node on
data with ``backend=[A, B], fallback="error"``: nothing runs on NumPy but sizes and the driving of
loops. ``split`` plans the models of the zoo on each engine. ``right`` has the oracle judge the
models that it found, and ``speed`` times them: on the engine with NumPy for the rest, with ONNX
Runtime for the rest, and on ONNX Runtime alone, interleaved. What was found is kept in
build/second_engine.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__)
ROOT = HERE.parents[1]
# The root, for `benchmarks`; the folder beside this file, whose list and fetch script are `zoo`.
sys.path[:0] = [str(HERE.with_name("zoo")), str(ROOT)]

import fusewire as fw  # noqa: E402
from fusewire.errors import FusewireError, ShapeMismatchError  # noqa: E402
from fusewire.program.program import Program  # noqa: E402
from fusewire.show.why import Why  # noqa: E402

KEPT = ROOT / "build" / "second_engine"
PAGE = ROOT / "benchmarks" / "results" / "second_engine.md"
PAIRS = (
    "openvino+onnxruntime",
    "xla+onnxruntime",
    "onnxruntime+openvino",
    "onnxruntime+xla",
    "webgpu+onnxruntime",
)
ENGINES, SECOND = ("onnxruntime", "openvino", "xla"), "onnxruntime"
PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "jax", "wgpu")
# What a case of the suite raises that the first engine takes alone.
ALONE = "The first engine takes all of it."
_PAUSE = 0.05


def refused(why: Why) -> int:
    """Count the nodes on data that the first engine refuses."""
    return sum(
        node.work == "data" and bool(node.verdicts) and not node.verdicts[0].is_offered
        for node in why.nodes
    )


# The suite. Its children import this module, and ask it for `openvino__onnxruntime`.


def __getattr__(name: str) -> Callable[[Any], Any]:
    """Return the runner of models on several engines, by their names."""
    names = name.split("__")
    if len(names) < 2 or not all(names):
        raise AttributeError(name)
    return partial(_prepared, names)


def _prepared(order: list[str], model: Any) -> Callable[[Sequence[Any]], Any]:
    program = fw.compile(model, backend=order, fallback="error", threads=1, isolate=False)
    if program.signatures:
        _check_needed(program)

    def run(inputs: Sequence[Any]) -> Any:
        answer = program(*inputs)
        _check_needed(program)
        return answer if isinstance(answer, tuple) else (answer,)

    return run


def _check_needed(program: Program) -> None:
    if not refused(program.why()):
        raise AssertionError(ALONE)


def suite(pairs: Sequence[str], part: str) -> None:
    """Run the cases that the first engine of each pair refuses alone on both; keep the part."""
    from fusewire.testing.onnx_suite.crew import Crew
    from fusewire.testing.onnx_suite.record import exclusions

    number, _, count = part.partition("/")
    with Crew() as crew:
        left_out = exclusions()
        names = [name for name in crew.names() if name not in left_out]
        names = names[int(number) - 1 :: int(count)]
        for pair in pairs:
            first, _, second = pair.partition("+")
            start, counts, wrong = time.monotonic(), Counter[str](), dict[str, str]()
            side = f"benchmarks.second_engine:{first}__{second}"
            for case, outcome in crew.run(side, names):
                # Which of both refuses it, the refusal of a case does not say: both do.
                status = "alone" if ALONE in outcome.reason else outcome.status
                if status == "failed" and "run on none of" in outcome.reason:
                    status = "refused"
                counts[status] += 1
                if status == "failed":
                    wrong[case] = outcome.reason
            seconds = time.monotonic() - start
            print(pair, dict(counts), f"{seconds:.0f} s", flush=True)
            row = {"counts": counts, "wrong": wrong, "number": int(number), "of": int(count)}
            keep(f"suite.{pair}.{number}-{count}", row)


def suite_results() -> dict[str, dict[str, Any]]:
    """Add the parts of each pair that were run, of the finest cut."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for name, row in kept("suite").items():
        parts.setdefault(name.rpartition(".")[0], []).append(row)
    results = {}
    for pair, rows in parts.items():
        count = max(row["of"] for row in rows)
        used = [row for row in rows if row["of"] == count]
        counts: Counter[str] = sum((Counter(row["counts"]) for row in used), Counter())
        wrong = {case: reason for row in used for case, reason in row["wrong"].items()}
        results[pair] = {"counts": counts, "wrong": wrong, "share": f"{len(used)}/{count}"}
    return {pair: results[pair] for pair in PAIRS if pair in results}


# The zoo.


def split(names: Sequence[str]) -> None:
    """List the models of which an engine refuses nodes on data, with how many."""
    zoo: Any = import_module("zoo")
    warnings.simplefilter("ignore")
    for name in names or zoo.MODELS:
        rows = {}
        for engine in ENGINES:
            try:
                program = _compiled(name, [engine])
            except FusewireError as error:
                print(name, engine, "refused", str(error)[:200])
                continue
            why = program.why()
            if count := refused(why):
                rows[engine] = {"refused": count, "nodes": len(why.nodes)}
                print(name, engine, rows[engine], flush=True)
        keep(f"split.{name}", rows)


def _inputs(name: str) -> list[Any]:
    from benchmarks.zoo_model import _inputs as inputs

    return list(inputs(name, 0))


def _compiled(name: str, order: list[str], **options: Any) -> Program:
    zoo: Any = import_module("zoo")
    path, threads = str(zoo.path(name)), len(os.sched_getaffinity(0))
    return fw.compile(
        path,
        *_inputs(name),
        backend=order,
        fallback="allow",
        threads=threads,
        cache=False,
        deadline=600.0,
        **options,
    )


def each_split(part: str, names: Sequence[str], work: Callable[[str, str], Any]) -> None:
    """Do something for every model and every engine that refuses nodes of it; keep the result.

    A name may have an engine: "slanet:openvino".
    """
    warnings.simplefilter("ignore")
    for name, rows in kept("split").items():
        for engine in rows:
            is_wanted = not names or name in names or f"{name}:{engine}" in names
            if is_wanted and engine != SECOND:
                row = work(name, engine)
                keep(f"{part}.{name}.{engine}", row)
                print(name, engine, json.dumps(row), flush=True)


def _programs(name: str, engine: str) -> dict[str, Program]:
    """Compile a model: with NumPy for the rest, with a second engine, and on that alone."""
    orders = {"before": [engine], "after": [engine, SECOND], "second": [SECOND]}
    return {way: _compiled(name, order) for way, order in orders.items()}


def right(name: str, engine: str) -> dict[str, str]:
    """Judge a model before and after."""
    from fusewire.numerics.oracle import Oracle

    zoo: Any = import_module("zoo")
    given = _inputs(name)
    programs = _programs(name, engine).items()
    oracle = Oracle(fw.trace(str(zoo.path(name)), *given), given, runs=4)
    verdicts: dict[str, str] = {}
    for way, program in programs:
        outputs = _outputs(program(*given))
        try:
            verdicts[way] = oracle.judge(outputs).status
        except ShapeMismatchError:
            # With a little noise a size comes out differently, and nothing can be compared.
            verdicts[way] = "cannot say"
    return verdicts


def speed(name: str, engine: str, seconds: float) -> dict[str, Any]:
    """Time a model before and after."""
    from benchmarks.timing import interleaved

    given = _inputs(name)
    programs = _programs(name, engine)
    ways = {way: partial(program, *given) for way, program in programs.items()}
    times = interleaved(ways, seconds=seconds, pause=_PAUSE, warm=3, least=5)
    rows = {}
    for way, program in programs.items():
        why = program.why()
        rows[way] = {
            "ms": times[way].median * 1e3,
            "spread": times[way].spread,
            "data": why.counts()["data"],
            "regions": len(why.regions),
            "crossings": why.crossings,
        }
    return rows


def _outputs(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, tuple | list) else [answer]


# What is kept, and the page.


def keep(name: str, row: Any) -> None:
    """Keep what was found, with the versions."""
    KEPT.mkdir(parents=True, exist_ok=True)
    about = {"date": dt.date.today().isoformat(), "row": row}
    (KEPT / f"{name}.json").write_text(json.dumps(about, indent=1))


def kept(part: str) -> dict[str, Any]:
    """Read what was found in a part, by name; only what is not empty."""
    rows = {
        path.stem.partition(".")[2]: json.loads(path.read_text())["row"]
        for path in sorted(KEPT.glob(f"{part}.*.json"))
    }
    return {name: row for name, row in rows.items() if row}


def page() -> Iterator[str]:
    """Write what was found as tables."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    yield "# A second engine for what the first refuses\n"
    yield (
        f"Written by `python benchmarks/second_engine.py table`; not edited. {dt.date.today()}, "
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {versions}.\n"
    )
    yield "## ONNX's backend tests\n"
    yield (
        "Cases of which the first engine refuses a node on data, which NumPy ran before. They run "
        'with `backend=[first, second], fallback="error"`: *right* ones run without NumPy, but for '
        "sizes and loops that the host drives. *Wrong* is a wrong answer or an error of an engine "
        "that offered the node; *refused by both* still needs NumPy.\n"
    )
    yield "| first | second | cases refused by the first | right now | wrong | refused by both |"
    yield "|---|---|---:|---:|---:|---:|"
    results = suite_results()
    for pair, row in results.items():
        counts = row["counts"]
        passed, failed, none = (counts[x] for x in ("passed", "failed", "refused"))
        used, _, whole = row["share"].partition("/")
        part = "" if used == whole else f" ({row['share']} of the cases)"
        first, _, second = pair.partition("+")
        total = passed + failed + none
        yield f"| {first}{part} | {second} | {total} | {passed} | {failed} | {none} |"
    for pair, row in results.items():
        if row["wrong"]:
            yield f"\nWrong on {pair.replace('+', ' + ')}:\n"
            yield from (f"- `{case}`: {_short(reason)}" for case, reason in row["wrong"].items())
    yield "\n## Models of the zoo that were split with NumPy\n"
    yield (
        f"*Before* is the engine with NumPy for the rest, *after* `backend=[engine, "
        f'"{SECOND}"]`. Medians of interleaved calls with half the distance between the quartiles, '
        "judged by the oracle; crossings are tensors that one backend hands over to another.\n"
    )
    yield (
        "| model | engine | nodes refused | before, ms | after, ms | ratio | regions | crossings | "
        f"verdicts | {SECOND} alone, ms |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---|---:|"
    for name, row in kept("speed").items():
        model, _, engine = name.rpartition(".")
        yield _speed_row(model, engine, row)


def _speed_row(name: str, engine: str, row: dict[str, Any]) -> str:
    before, after, second = row["before"], row["after"], row["second"]
    found = kept("split")[name][engine]
    judged = kept("right").get(f"{name}.{engine}", {})

    def both(key: str) -> str:
        return f"{before[key]} to {after[key]}"

    cells = [
        name,
        engine,
        f"{found['refused']} of {found['nodes']:,}",
        f"{before['ms']:.2f} ± {before['spread']:.0%}",
        f"{after['ms']:.2f} ± {after['spread']:.0%}",
        f"{after['ms'] / before['ms']:.2f}",
        both("regions"),
        both("crossings"),
        f"{judged.get('before', 'not judged')}, {judged.get('after', 'not judged')}",
        f"{second['ms']:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _short(reason: str) -> str:
    return " ".join(reason.split())[:160].replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["suite", "split", "right", "speed", "table"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--slice", default="1/1")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_intermixed_args()
    if args.part == "suite":
        suite(args.names or PAIRS, args.slice)
    elif args.part == "split":
        split(args.names)
    elif args.part == "right":
        each_split("right", args.names, right)
    elif args.part == "speed":
        each_split("speed", args.names, partial(speed, seconds=args.seconds))
    else:
        PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
