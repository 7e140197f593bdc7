"""Is a right engine ever called wrong, whatever the inputs are like?

    python benchmarks/fairness.py [--models a,b] [--families zeros,huge] [--engines xla] [--json]
    python benchmarks/fairness.py --table      sums up what was found so far

Every model of the zoo runs on every engine under ten families of inputs. Whether an engine is right
is decided apart from the judge: its error against a float64 run is at most ten times that of NumPy
in the model's own dtypes, and its NaNs, infinities and integers are those of one of the two. Then
the judge of comparisons has its say. Counted are right engines that it calls wrong, each of which
would be in quarantine. With ``--race SECONDS``, a whole comparison with children and a cache of its
own runs for each family instead, and what is in quarantine afterwards is counted.

Each model has a process of its own, and what it found is kept in $FUSEWIRE_ZOO/results, family by
family, so that a run can go on. Exit 1 if a right engine was called wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.compiler import Session
from fusewire.errors import FusewireError, GraphError, NoneRightError, SizesNeededError
from fusewire.ir.graph import Array, Graph
from fusewire.numerics.bound import leaves
from fusewire.numerics.oracle import Oracle
from fusewire.numerics.spread import classes
from fusewire.ops.interpret import Interpreter
from fusewire.records.entries import Records
from fusewire.store.disk import Store

HERE = Path(__file__)
# The folder beside this file, whose list and fetch script are `zoo`.
sys.path.insert(0, str(HERE.with_name("zoo")))
zoo: Any = import_module("zoo")

ENGINES = ("onnxruntime", "openvino", "xla")
# How many times the error of NumPy in the model's own dtypes a right engine may have.
MOST = 10.0
# Few integers may be sizes, which keep their values.
_SIZES = 8
Draw = Callable[[Array, np.random.Generator], Array]


def _scaled(scale: float) -> Draw:
    def draw(x: Array, rng: np.random.Generator) -> Array:
        size = float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) or 1.0
        return np.asarray(rng.standard_normal(x.shape) * size * scale)

    return draw


def _sparse(x: Array, rng: np.random.Generator) -> Array:
    return np.where(rng.random(x.shape) < 0.95, 0.0, x)


FAMILIES: dict[str, Draw] = {
    "given": lambda x, rng: x,
    "zeros": lambda x, rng: np.zeros(x.shape),
    "ones": lambda x, rng: np.ones(x.shape),
    "tiny": lambda x, rng: np.asarray(rng.standard_normal(x.shape) * 1e-20),
    "huge": lambda x, rng: np.asarray(rng.standard_normal(x.shape) * 1e6),
    "negative": lambda x, rng: -np.abs(x) - 0.1,
    "sparse": _sparse,
    "random 0.01": _scaled(0.01),
    "random 1": _scaled(1.0),
    "random 100": _scaled(100.0),
}


def inputs_of(given: Sequence[Any], family: str, seed: int = 0) -> list[Any]:
    """Make inputs of a family; integers stay in the range of those given."""
    rng = np.random.default_rng([seed, list(FAMILIES).index(family)])
    return [_of(np.asarray(x), family, rng) for x in given]


def _of(x: Array, family: str, rng: np.random.Generator) -> Array:
    if family == "given" or not x.size:
        return x
    if x.dtype.kind == "f" or x.dtype.name == "bfloat16":
        with np.errstate(over="ignore"):
            moved = FAMILIES[family](x.astype(np.float64), rng)
        most = 6e4 if x.dtype.itemsize == 2 else 1e30
        return np.clip(moved, -most, most).astype(x.dtype)
    if x.dtype.kind not in "iu" or x.size <= _SIZES:
        return x
    low, high = int(x.min()), int(x.max())
    fixed = {"zeros": 0, "ones": 1, "tiny": low, "huge": high, "negative": low}
    if family in fixed:
        return np.full(x.shape, min(max(fixed[family], low), high), x.dtype)
    drawn: Array = np.asarray(rng.integers(low, high, x.shape, endpoint=True))
    if family == "sparse":
        drawn = np.where(rng.random(x.shape) < 0.95, min(max(0, low), high), x)
    return drawn.astype(x.dtype)


def is_right(got: Array, own: Array, wide: Array) -> tuple[bool, float]:
    """Decide without the judge; also give the error as a multiple of NumPy's own."""
    if got.shape != own.shape or got.shape != wide.shape or got.dtype != own.dtype:
        return got.shape == own.shape and bool(np.array_equal(got, own)), np.inf
    if got.dtype.kind not in "fc" and got.dtype.name != "bfloat16":
        differ, allowed = int(np.sum(got != wide)), int(np.sum(own != wide))
        ratio = differ / allowed if allowed else (np.inf if differ else 0.0)
        return ratio <= MOST, ratio
    with np.errstate(all="ignore"):
        stored = wide.astype(got.dtype)
        same = (classes(got) == classes(own)) | (classes(got) == classes(stored))
        finite = (classes(got) == 0) & (classes(own) == 0) & (classes(stored) == 0)
        work = np.complex128 if got.dtype.kind == "c" else np.float64
        apart, error = (
            np.abs(np.where(finite, x.astype(work) - wide.astype(work), 0)) for x in (got, own)
        )
        size = np.abs(np.where(finite, wide, 0)).max(initial=0.0)
    # An answer that NumPy has exactly may be off in the last place.
    last = float(np.finfo(np.float32).eps) * float(size) + 1.2e-38
    ratio = float(apart.max(initial=0.0)) / max(float(error.max(initial=0.0)), last)
    return bool(same.all()) and ratio <= MOST, ratio if same.all() else np.inf


def load(name: str, given: Sequence[Any]) -> Graph:
    """Read a model as comparisons see it."""
    path = str(zoo.path(name))
    try:
        graph = fw.load(path)
    except SizesNeededError:
        graph = fw.trace(path, *given)
    return Session(fw.Options(cache=False)).rewrite(graph)


class Model:
    """One model of the zoo, on engines in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        made = zoo.inputs(name)
        program = fw.compile(str(zoo.path(name)), backend="reference", cache=False)
        try:
            ports = program.inputs
        except GraphError:
            # Some models are read only when the sizes of a call are known.
            program(**made)
            ports = program.inputs
        self.given = [made[port.name] for port in ports]
        self.graph = load(name, self.given)
        self._programs: dict[str, Any] = {}

    def run(self, engine: str, inputs: Sequence[Any]) -> list[Any]:
        program = self._programs.get(engine)
        if program is None:
            program = self._programs[engine] = fw.compile(
                str(zoo.path(self.name)),
                backend=engine,
                fallback="allow",
                isolate="never",
                cache=False,
                deadline=600.0,
            )
        outputs = program(*inputs)
        return list(outputs) if isinstance(outputs, tuple | list) else [outputs]

    def judged(self, family: str, engines: Sequence[str]) -> dict[str, Any]:
        """Judge engines on a family of inputs, and decide apart from that who is right."""
        inputs = inputs_of(self.given, family)
        try:
            oracle = Oracle(self.graph, inputs)
            wide = oracle.outputs
            own = [x for _, _, x in leaves(self.graph, Interpreter(self.graph)(inputs))]
        except (FusewireError, ValueError, LookupError, ArithmeticError) as error:
            return {"left out": f"{type(error).__name__}: {error}"[:200]}
        rows: dict[str, Any] = {}
        for engine in engines:
            try:
                outputs = self.run(engine, inputs)
            except FusewireError as error:
                rows[engine] = {"status": "refused", "reason": str(error)[:200]}
                continue
            found = [x for _, _, x in leaves(self.graph, outputs)]
            apart = [is_right(*three) for three in zip(found, own, wide, strict=True)]
            verdict, strict = oracle.verdict(outputs), oracle.judge(outputs)
            rows[engine] = {
                "status": verdict.status,
                "before": strict.status,
                "error": min(verdict.error, 1e300),
                "right": all(good for good, _ in apart),
                "times": min(max((ratio for _, ratio in apart), default=0.0), 1e300),
                "reason": verdict.reason[:300],
            }
        return rows

    def raced(self, family: str, engines: Sequence[str], seconds: float) -> dict[str, Any]:
        """Compare engines as ``auto`` does; count what is in quarantine afterwards."""
        options = fw.Options(level=1, budget_seconds=seconds, fallback="allow")
        decider = Session(options).decider
        finder = decider.context.finder
        question = replace(
            decider.question(self.graph, inputs_of(self.given, family)),
            fields=None,
            targets=lambda: (t for name in engines for t in finder.targets(name)),
            is_thorough=True,
            backends=tuple,
        )
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "cache")
            try:
                decision: Any = decider.decide(question, Records(store))
            except NoneRightError as error:
                decision = error
            except FusewireError as error:
                return {"left out": f"{type(error).__name__}: {error}"[:200]}
            count = len(list(store.entries("quarantine")))
            rows = {
                row.name: {"status": row.status, "reason": row.reason[:300]}
                for row in decision.tried
            }
            store.close()
        return {**rows, "quarantined": {"status": str(count)}}


def kept(name: str, is_race: bool) -> Path:
    """Return the place of what was found about a model."""
    folder = Path(os.environ.get("FUSEWIRE_FAIRNESS") or zoo.home() / "results")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{'race' if is_race else 'fairness'}.{name}.json"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def measure(name: str, args: argparse.Namespace) -> None:
    """Go through the families of one model, and keep each when it is done."""
    warnings.simplefilter("ignore")
    path = kept(name, args.race > 0)
    found = {} if args.again else read(path)
    wanted = [x for x in args.families if set(found.get(x, {})) < {*args.engines, "left out"}]
    wanted = [x for x in wanted if args.race or "left out" not in found.get(x, {})]
    if not wanted:
        return
    model = Model(name)
    for family in wanted:
        if args.race:
            found[family] = model.raced(family, args.engines, args.race)
        else:
            found[family] = found.get(family, {}) | model.judged(family, args.engines)
        path.write_text(json.dumps(found, indent=1))


def run_all(args: argparse.Namespace) -> list[str]:
    """Run each model in a process of its own; returns those that did not end well."""
    failed = []
    for place, name in enumerate(args.models, 1):
        start = time.perf_counter()
        command = [sys.executable, str(HERE), "--child", "--models", name]
        command += ["--families", ",".join(args.families), "--engines", ",".join(args.engines)]
        command += ["--race", str(args.race), *(["--again"] if args.again else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=7200)
        said = summary([name], args)
        if done.returncode:
            failed.append(name)
            said["failed"] = (done.stderr.strip().splitlines() or [f"{done.returncode}"])[-1][:200]
        seconds = time.perf_counter() - start
        line = f"[{place}/{len(args.models)}] {name:20} {seconds:6.1f} s  {said}"
        print(line, file=sys.stderr, flush=True)
    return failed


def rows(names: Sequence[str], args: argparse.Namespace) -> Iterator[tuple[str, str, str, Any]]:
    """Yield model, family, engine and what was found, for all that is kept."""
    for name in names:
        for family, found in read(kept(name, args.race > 0)).items():
            if family in args.families:
                yield from ((name, family, engine, row) for engine, row in found.items())


def summary(names: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Count what the judge said of engines that are right, and of those that are not."""
    count: Counter[str] = Counter()
    for *_, engine, row in rows(names, args):
        if engine == "left out":
            count["left out"] += 1
        elif engine == "quarantined":
            count["quarantined"] += int(row["status"])
        elif "right" not in row:
            count[row["status"]] += 1
        else:
            count[f"{'right' if row['right'] else 'not right'}: {row['status']}"] += 1
            count["right: wrong before"] += row["right"] and row["before"] == "wrong"
    return dict(sorted(count.items()))


def blamed(names: Sequence[str], args: argparse.Namespace) -> list[str]:
    """List right engines that the judge calls wrong, or that are wrong in a race."""
    return [
        f"{engine} on {name}, {family}: {row.get('times', 0.0):.2g} times NumPy's error; "
        f"{row['reason']}"
        for name, family, engine, row in rows(names, args)
        if engine != "left out" and row["status"] == "wrong" and row.get("right", True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",") if name.strip()]

    parser.add_argument("--models", type=names, default=list(zoo.MODELS))
    parser.add_argument("--families", type=names, default=list(FAMILIES))
    parser.add_argument("--engines", type=names, default=list(ENGINES))
    parser.add_argument("--race", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--again", action="store_true", help="also what is kept already")
    parser.add_argument("--table", action="store_true", help="only sum up what is kept")
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measure(args.models[0], args)
        return 0
    failed = [] if args.table else run_all(args)
    counts, faults = summary(args.models, args), blamed(args.models, args)
    found = {"counts": counts, "right and called wrong": faults, "failed": failed}
    found["versions"] = f"Python {platform.python_version()}, NumPy {np.__version__}"
    if args.as_json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(f"{key}: {value}" for key, value in counts.items()))
        print("\n".join(f"- called wrong: {fault}" for fault in faults))
        print("\n".join(f"- did not end: {name}" for name in failed))
    return 1 if faults or counts.get("quarantined") else 0


if __name__ == "__main__":
    sys.exit(main())
