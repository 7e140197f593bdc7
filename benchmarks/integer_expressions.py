"""Does what is proven of an index hold in an engine's own arithmetic?

    python benchmarks/integer_expressions.py [--engines openvino] [--from 0] [--graphs 100]
        [--seconds 300] [--json]

Random integer expressions feed every op with an index or length (tests/planning/integer_graphs.py),
twelve to a graph, each graph with 16 sets of values, on every engine, in children that may die.
Arrays lie between pages that nobody may touch, and no two numbers of a table are alike, so that an
engine which reads outside dies or answers with what is not there. Each outcome must be that of the
reference: the same answers, or its refusal. Graph N is made of the seed N alone; --from goes on
where a campaign ended. Exit 1 if a process died or an outcome differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

import fusewire as fw
from benchmarks.overhead import about
from fusewire.errors import CheckError, FusewireError
from fusewire.ops.interpret import interpret
from tests.planning.index_models import differs
from tests.planning.integer_graphs import IntegerGraph, fenced, integer_graph

ENGINES = ("onnxruntime", "openvino", "xla", "torch", "webgpu", "triton", "inductor")
# Graphs of one child: engines keep memory of what they compile.
BATCH = 8
# Seconds without a row after which a child counts as hanging.
PATIENCE = 300.0


def answers(call: Any, inputs: Any) -> list[Any] | str:
    """Run; returns the kind of what was raised as text."""
    try:
        found = call(inputs)
    except FusewireError as error:
        is_check = isinstance(error, CheckError)
        return "refused" if is_check else f"{type(error).__name__}: {error!s:.300}"
    return [np.asarray(x) for x in found]


def row_of(seed: int, engine: str) -> dict[str, Any]:
    """Compare all calls of one graph."""
    made: IntegerGraph = integer_graph(seed)
    program = fw.compile(made.graph, backend=engine, isolate=False, cache=False, fallback="allow")
    refused, problems = 0, []
    for number, inputs in enumerate(made.calls):
        wanted = answers(lambda x: interpret(made.graph, x), inputs)
        found = answers(lambda x: program(*x), fenced(inputs, seed + number))
        if isinstance(wanted, str) or isinstance(found, str):
            refused += wanted == "refused"
            if wanted != found:
                shown = [x if isinstance(x, str) else "answers" for x in (found, wanted)]
                problems.append(f"call {number}: found {shown[0]}, expected {shown[1]}")
            continue
        for place, (x, y) in enumerate(zip(found, wanted, strict=True)):
            if problem := differs(x.tolist(), y.tolist()):
                problems.append(f"call {number}, {made.families[place]} ({place}): {problem}")
    calls = len(made.calls)
    nodes = Counter[str]()
    for step in program.plan.steps:
        nodes[step.region.backend] += len(step.region.graph.nodes)
    return {
        "seed": seed,
        "engine": engine,
        "expressions": len(made.families) * calls,
        "calls": calls,
        "refused": refused,
        "nodes": nodes.total(),
        "own_nodes": nodes[engine],
        "problems": problems,
    }


def here(engine: str, first: int, count: int) -> None:
    """Print the rows of some graphs."""
    warnings.simplefilter("ignore")
    for seed in range(first, first + count):
        print(json.dumps(row_of(seed, engine)), flush=True)


def apart(engine: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Run graphs in a child; go on after the one at which it dies."""
    while count > 0:
        command = [sys.executable, __file__, "--here", engine]
        command += ["--from", str(first), "--graphs", str(count)]
        patience = PATIENCE + 20 * count
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=patience
            )
            output, said, code = done.stdout, done.stderr[-300:], done.returncode
        except subprocess.TimeoutExpired as error:
            output, said, code = (error.stdout or b"").decode(), "no answer", -1
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        yield from rows
        if code == 0:
            return
        seed = first + len(rows)
        problem = f"the process ended: {code}: {said}"
        yield {"seed": seed, "engine": engine, "problems": [problem], "is_dead": True}
        count -= len(rows) + 1
        first = seed + 1


def campaign(engine: str, options: argparse.Namespace) -> bool:
    """Run the graphs of one engine, two children at a time; returns whether all is well."""
    counted: Counter[str] = Counter()
    start, last = time.monotonic(), options.first + options.graphs
    batches = [
        (at, min(options.batch, last - at)) for at in range(options.first, last, options.batch)
    ]

    def run(batch: tuple[int, int]) -> list[dict[str, Any]]:
        if options.seconds and time.monotonic() - start > options.seconds:
            return []
        return list(apart(engine, *batch))

    with ThreadPoolExecutor(options.processes) as pool:
        for found in pool.map(run, batches):
            for row in found:
                counted["graphs"] += 1
                for name in ("expressions", "calls", "refused", "nodes", "own_nodes"):
                    counted[name] += row.get(name, 0)
                counted["deaths"] += row.get("is_dead", False)
                counted["problems"] += bool(row["problems"])
                if options.json:
                    print(json.dumps(row), flush=True)
                elif row["problems"]:
                    print(f"{engine}, seed {row['seed']}: {row['problems'][0]:.600}", flush=True)
    seconds = time.monotonic() - start
    print(f"{engine}: from {options.first}, {dict(counted)}, {seconds:.0f} s", flush=True)
    return not counted["problems"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--from", dest="first", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--graphs", type=int, default=BATCH)
    parser.add_argument("--batch", type=int, default=BATCH, help="graphs of one child")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0, help="begin no batch after so many")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", default="")
    options = parser.parse_args()
    if options.here:
        here(options.here, options.first, options.graphs)
        return
    is_well = [campaign(engine, options) for engine in options.engines.split(",")]
    print(about())
    sys.exit(not all(is_well))


if __name__ == "__main__":
    main()
