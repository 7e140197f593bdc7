"""What do engines do with indices and lengths that an op does not allow?

    python benchmarks/index_values.py [--small] [--engines xla,openvino] [--names gather] [--json]

Every op with such an operand, as an input of the graph and computed in it, in int32 and int64, is
given 11 values (tests/planning/index_models.py), on every engine, in a process of its own that may
die. A program is called with good values first, then with each value, then with good ones again;
and another program meets a bad value in its first call. Each outcome must be that of the reference:
the same answer, or the same CheckError. ``minimol`` of the zoo, with -1000 in all its indices, is
one more model if benchmarks/zoo/zoo.py has fetched it. Exit 1 if a process died, a value was
accepted that the reference refuses, or an outcome differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

import fusewire as fw
from benchmarks.overhead import about
from tests.planning.index_models import FAMILIES, VALUES, IndexModel, differs, models, outcome

ROOT = Path(__file__).parents[1]
ENGINES = ("onnxruntime", "openvino", "torch", "xla", "webgpu")
SMALL = ("gather", "scatter_elements add", "gather_nd", "lstm", "coo_to_dense")
# Seconds without a row after which a process counts as hanging.
PATIENCE = 120.0


def compiled(model: IndexModel, engine: str) -> Any:
    return fw.compile(model.graph, backend=engine, isolate=False, cache=False, fallback="allow")


def rows_of(model: IndexModel, engine: str) -> Iterator[dict[str, Any]]:
    """Call one model with every value, each time as the reference is called."""
    program, reference = compiled(model, engine), compiled(model, "reference")
    good = outcome(reference, model.inputs)
    calls: list[tuple[str, Sequence[Any]]] = [("good", model.inputs)]
    for name, value in VALUES.items():
        changed = model.with_index(value(model.dim))
        if changed is not None:
            calls.append((name, changed))
    calls.append(("good again", model.inputs))
    for name, inputs in calls:
        expected = good if name.startswith("good") else outcome(reference, inputs)
        found = outcome(program, inputs)
        yield row(model, engine, name, found, expected)
    bad = model.with_index(-model.dim - 1)
    assert bad is not None
    expected = outcome(reference, bad)
    yield row(model, engine, "in the first call", outcome(compiled(model, engine), bad), expected)


def row(model: IndexModel, engine: str, value: str, found: Any, expected: Any) -> dict[str, Any]:
    return {
        "model": model.name,
        "engine": engine,
        "value": value,
        "is_refused": isinstance(expected, str),
        "is_accepted": isinstance(expected, str) and not isinstance(found, str),
        "problem": differs(found, expected),
    }


def minimol_rows(engine: str) -> Iterator[dict[str, Any]]:
    """Call a model of the zoo with -1000 in every integer, between good calls."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "zoo"))
    zoo: Any = import_module("zoo")

    if not zoo.path("minimol").exists():
        return
    good = list(zoo.inputs("minimol").values())
    bad = [np.full_like(x, -1000) if x.dtype.kind == "i" else x for x in good]
    program = fw.compile(
        zoo.path("minimol"), backend=engine, isolate=False, cache=False, fallback="allow"
    )
    reference = fw.compile(zoo.path("minimol"), backend="reference", cache=False)
    expected = outcome(lambda *x: reference(*x)[0], good), outcome(reference, bad)
    for name, inputs in (("good", good), ("-1000", bad), ("-1000", bad), ("good again", good)):
        found = outcome(lambda *x: program(*x)[0], inputs)
        wanted = expected[name == "-1000"]
        problem = differs(found, wanted)
        refused = isinstance(wanted, str)
        yield {
            "model": "minimol",
            "engine": engine,
            "value": name,
            "is_refused": refused,
            "is_accepted": refused and not isinstance(found, str),
            "problem": problem,
        }


def here(engine: str, names: list[str]) -> None:
    """Print the rows of some models, one by one."""
    warnings.simplefilter("ignore")
    for model in models([name for name in names if name != "minimol"] or ["gather"]):
        if names == ["minimol"]:
            break
        for found in rows_of(model, engine):
            print(json.dumps(found), flush=True)
    if "minimol" in names:
        for found in minimol_rows(engine):
            print(json.dumps(found), flush=True)


def apart(engine: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Run families in one child; go on with the next family if it dies."""
    left = list(names)
    while left:
        command = [sys.executable, __file__, "--here", engine, "--names", ",".join(left)]
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                timeout=PATIENCE * len(left),
            )
            output, code = done.stdout, str(done.returncode)
        except subprocess.TimeoutExpired as error:
            output, code = (error.stdout or b"").decode(), "no answer"
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        yield from rows
        if code == "0":
            return
        last = rows[-1]["model"].partition(",")[0] if rows else left[0]
        yield {
            "model": last,
            "engine": engine,
            "value": "",
            "problem": f"the process ended: {code}",
        }
        left = left[left.index(last) + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few ops only")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--names", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", default="")
    options = parser.parse_args()
    names = options.names.split(",") if options.names else [*FAMILIES, "minimol"]
    if options.small and not options.names:
        names = list(SMALL)
    if options.here:
        here(options.here, names)
        return
    start, failed = time.monotonic(), False
    for engine in options.engines.split(","):
        counted: Counter[str] = Counter()
        seen = set()
        for found in apart(engine, names):
            seen.add(found["model"])
            counted["calls"] += 1
            counted["refused"] += found.get("is_refused", False)
            counted["accepted"] += found.get("is_accepted", False)
            counted["deaths"] += "the process ended" in found["problem"]
            counted["problems"] += bool(found["problem"])
            if options.json:
                print(json.dumps(found), flush=True)
            elif found["problem"]:
                print(
                    f"{found['model']}, {found['value']}, {engine}: {found['problem']}", flush=True
                )
        failed |= counted["problems"] > 0
        print(f"{engine}: {len(seen)} models, {dict(counted)}", flush=True)
    print(f"{about()}; {time.monotonic() - start:.0f} s")
    sys.exit(failed)


if __name__ == "__main__":
    main()
