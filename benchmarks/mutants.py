"""How many small planted bugs do the tests notice?

    python benchmarks/mutants.py --count 100 --seed 20261116 --judge
    python benchmarks/mutants.py --count 100 --seed 20261116 --scratch FOLDER [--only ops onnx]
    python benchmarks/mutants.py --gate [store/secret.py ...] [--scratch FOLDER]
    python benchmarks/mutants.py --planted [NAME ...]

A sample of small changes to the source, each run against the tests in a copy of the tree. The
sample is stratified over folders; in a folder, a file is drawn by its number of places to change,
then the kind of change uniformly, then the place. ``--judge`` only lists what is drawn: a change
that cannot be noticed is written to mutants_equivalent.txt with the reason, and the slot's next
candidate takes its place.

The tests that mirror a folder are run once with a trace of the functions that each of them calls. A
mutant then meets the tests that call its function, the quickest first, up to the first failure,
and of ops those that derive from the declarations of its module. Where no test calls it in its own
process, or code runs in children too, a survivor meets those test folders as a whole.
``--scratch`` keeps copy, trace and results, so that a run that was stopped goes on where it was.
Exit 1 if fewer than --wanted percent were noticed.

``--gate`` takes every condition of the files that SECURITY.md leans on: what an if, a while, a
ternary, a filter or a function that returns a bool decides becomes always and never, a comparison
its neighbour, and each operand of and, or is left out. The tests of GATE are collected once; each
mutant meets them in a fork, those that call its function first. Exit 1 if one survives that is not
in mutants_equivalent.txt. An assert is no such condition: -O removes it.

``--planted`` plants the faults of planted.toml. Exit 1 if one is not noticed by its tests, or no
longer applies.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import gc
import inspect
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")
PLANTED = Path(__file__).with_name("planted.toml")
# The files that SECURITY.md leans on, and the tests that hold their conditions.
GATE: Mapping[str, tuple[str, ...]] = {
    "store/secret.py": ("store/test_secret.py",),
    "store/signing.py": ("store/test_signing.py",),
    "serve/datatypes.py": ("serve/test_datatypes.py",),
    "serve/rest.py": ("serve/test_rest.py",),
    "bundling/opening.py": ("bundling/test_opening.py",),
    "facts/proof.py": ("facts/test_proof.py",),
    "planning/guards.py": ("planning/test_needs.py",),
    "plan/guards.py": ("plan/test_guards.py",),
}
_ENGINES, _REFERENCE = "fusewire.backends.", "fusewire.backends.reference"
# Kinds of change that only the gate makes, and what it shares with the sample.
_GATE_ONLY = ("always", "never", "operand", "link", "quantifier")
_GATED = (*_GATE_ONLY, "compare", "condition")
# Out of a hundred, and the test folders that mirror a folder.
STRATA: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "ops": (17, ("ops", "conformance/test_refusals.py")),
    "rewrite": (8, ("rewrite",)),
    "process": (10, ("process",)),
    "store": (10, ("store",)),
    "plan": (5, ("plan",)),
    "program": (5, ("program",)),
    "choosing": (8, ("choosing",)),
    "numerics": (8, ("numerics",)),
    "onnx": (7, ("onnx",)),
    "facts": (4, ("facts",)),
    "planning": (3, ("planning",)),
    "kernel": (5, ("kernel",)),
    "records": (4, ("records",)),
    "trials": (3, ("choosing", "records")),
    "fusion": (3, ("fusion",)),
}
# Their code also runs in children, where no trace sees it: survivors meet the whole folder.
CHILDREN = ("process", "store", "records", "trials")
CANDIDATES = 6
SELECTED = 400
# Keywords that are no behaviour: tables of samples, texts, and guards against our own mistakes.
FIELDS = ("samples", "refuses", "doc", "strict", "example", "because", "frozen", "eq", "repr")
# Their arguments cannot be swapped without a type error.
TYPED = ("isinstance", "issubclass", "getattr", "np.zeros", "np.full", "np.array")

COMPARE: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SIGNS = {
    "<=": "<", "<": "<=", ">=": ">", ">": ">=", "!=": "==", "==": "!=",
    "is not": "is", "is": "is not", "not in": "in", "in": "not in",
}  # fmt: skip
ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
# What a mutant meets, one after another: a name, and arguments for pytest.
Rounds = list[tuple[str, list[str]]]
_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow")
# By place of a function: the tests that call it, each with its seconds.
Callers = dict[str, list[tuple[float, str]]]
DTYPES = {"float32": "float64", "float64": "float32", "int64": "int32", "int32": "int64"}


@dataclass(frozen=True)
class Mutant:
    """One change: the source between two places of a file becomes another text."""

    folder: str
    file: str
    function: int
    name: str
    kind: str
    line: int
    start: int
    end: int
    before: str
    after: str
    # The how-manieth of its kind and text in its function, so that a key outlives other edits.
    nth: int = 0

    @property
    def key(self) -> str:
        before = " ".join(self.before.split())
        return f"{self.file} {self.name} {self.kind} {self.nth}: {before}"

    @property
    def is_same(self) -> bool:
        """Whether it is a swap of two arguments that are the same."""
        return self.kind == "swap" and _tree(self.before) == _tree(self.after)

    def apply(self, source: bytes) -> bytes:
        """Give the source with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def _tree(text: str) -> str:
    return ast.dump(ast.parse(text, mode="eval"))


class Points(ast.NodeVisitor):
    """Lists the places of a file that can be changed."""

    def __init__(self, folder: str, file: Path) -> None:
        self.found: list[Mutant] = []
        self._folder = folder
        self._file = str(file.relative_to(ROOT))
        self._source = file.read_bytes()
        lines = self._source.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._functions: list[tuple[int, str]] = [(0, "module")]
        self._is_bool = [False]
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self.visit(ast.parse(self._source))

    def _add(self, kind: str, node: ast.expr | ast.stmt, after: str, shown: str = "") -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        before = self._source[start:end].decode()
        function, name = self._functions[-1]
        text = f"{shown}{before}"
        nth = self._counts[name, kind, text]
        self._counts[name, kind, text] += 1
        self.found.append(
            Mutant(
                self._folder, self._file, function, name, kind, node.lineno, start, end, before,
                after, nth,
            )
        )  # fmt: skip

    def _replace(self, kind: str, node: ast.expr, after: ast.expr) -> None:
        self._add(kind, node, f"({ast.unparse(after)})")

    # -- what is not code that runs: annotations, texts, tables of samples

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pass over texts: their parts have no places, and are words."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Pass over asserts: they are checks of our own."""

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in FIELDS:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name.endswith(("_samples", "_refuses")) or node.name == "__repr__":
            return
        first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
        outer = self._functions[-1][1]
        name = node.name if outer == "module" else f"{outer}.{node.name}"
        self._functions.append((first, name))
        self._is_bool.append(isinstance(node.returns, ast.Name) and node.returns.id == "bool")
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._functions.pop()
        self._is_bool.pop()

    # What handles requests is written with async.
    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment] # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._functions.append((0, node.name))
        self.generic_visit(node)
        self._functions.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._functions.append((node.lineno, f"{self._functions[-1][1]}.lambda"))
        self.visit(node.body)
        self._functions.pop()

    # -- what can be changed

    def _decide(self, test: ast.expr) -> None:
        """Let a condition always be true, or never; names that it binds are bound all the same."""
        binds = any(isinstance(part, ast.NamedExpr) for part in ast.walk(test))
        words = ast.unparse(test)
        for kind, after, joined in (("always", "True", "or"), ("never", "False", "and")):
            if words != after:
                self._add(kind, test, f"(({words}) {joined} {after})" if binds else after)

    def visit_Return(self, node: ast.Return) -> None:
        if self._is_bool[-1] and node.value is not None:
            self._decide(node.value)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            self._add("compare", node, f"({left} {COMPARE[type(node.ops[0])]} {right})")
        elif len(node.ops) > 1:
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            for changed in range(len(node.ops)):
                signs = [COMPARE[type(op)] for op in node.ops]
                kept = [SIGNS[sign] for sign in signs]
                kept[changed] = signs[changed]
                parts = (f" {sign} {side}" for sign, side in zip(kept, sides[1:], strict=True))
                self._add("link", node, f"({sides[0]}{''.join(parts)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("bool", node, str(not node.value))
        elif isinstance(node.value, int):
            self._add("int", node, str(node.value + 1))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        swapped: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace("boolean", node, ast.BoolOp(swapped, node.values))
        for place in range(len(node.values)):
            rest = [*node.values[:place], *node.values[place + 1 :]]
            self._replace("operand", node, ast.BoolOp(node.op, rest) if rest[1:] else rest[0])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = ARITHMETIC.get(type(node.op))
        words = any(isinstance(side, ast.Constant | ast.JoinedStr) and _is_text(side)
                    for side in (node.left, node.right))  # fmt: skip
        if other is not None and not words:
            self._replace("arithmetic", node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return
        self._decide(node.test)
        leaves = isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
        if leaves and not node.orelse:
            self._add("guard", node.test, "False")
        else:
            self._replace("condition", node.test, ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._decide(node.test)
        self._replace("condition", node.test, ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._decide(node.test)
            self._replace("condition", node.test, ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._decide(test)
            self._add("filter", test, "True")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._add("call", node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        # What is said in an error is no behaviour.
        self._add("raise", node, "pass")

    def visit_With(self, node: ast.With) -> None:
        if all(item.optional_vars is None for item in node.items) and len(node.items) == 1:
            self._add("with", node.items[0].context_expr, "__import__('contextlib').nullcontext()")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("any", "all"):
            other = "all" if node.func.id == "any" else "any"
            self._replace("quantifier", node.func, ast.Name(other))
        plain = [x for x in node.args if isinstance(x, ast.Name | ast.Attribute)]
        is_typed = ast.unparse(node.func) in TYPED
        if len(node.args) >= 2 and plain[:2] == node.args[:2] and not is_typed:
            swapped = [node.args[1], node.args[0], *node.args[2:]]
            self._replace("swap", node, ast.Call(node.func, swapped, node.keywords))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_numpy = isinstance(node.value, ast.Name) and node.value.id == "np"
        if is_numpy and node.attr in DTYPES:
            self._add("dtype", node, f"np.{DTYPES[node.attr]}")
        self.generic_visit(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def points(folder: str) -> dict[str, list[Mutant]]:
    """List the points of every file of a folder."""
    files = sorted((ROOT / "src" / "fusewire" / folder).rglob("*.py"))
    found = {
        str(file): [m for m in Points(folder, file).found if m.kind not in _GATE_ONLY]
        for file in files
    }
    return {file: mutants for file, mutants in found.items() if mutants}


def conditions(file: str) -> list[Mutant]:
    """List the changes of the gate to a file, without those that cannot be noticed."""
    found = Points(file, ROOT / "src" / "fusewire" / file).found
    gated = [mutant for mutant in found if mutant.kind in _GATED]
    reasons = judged()
    return [mutant for mutant in gated if mutant.key not in reasons]


def drawn(folder: str, count: int, rng: random.Random) -> list[list[Mutant]]:
    """Draw candidates for each slot of a folder."""
    files = points(folder)
    weights = [len(mutants) for mutants in files.values()]
    slots = []
    for _ in range(count):
        slot = []
        for _ in range(CANDIDATES):
            (mutants,) = rng.choices(list(files.values()), weights)
            kind = rng.choice(sorted({m.kind for m in mutants}))
            slot.append(rng.choice([m for m in mutants if m.kind == kind]))
        slots.append(slot)
    return slots


def judged() -> dict[str, str]:
    """Read which changes cannot be noticed, and why: ``key | reason`` a line."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    pairs = (line.rsplit(" | ", 1) for line in lines if line and not line.startswith("#"))
    return dict(pairs)


def sample(count: int, seed: int, only: Sequence[str]) -> list[Mutant]:
    """Take the first candidate of each slot that is not judged away, and no change twice."""
    taken: dict[str, Mutant] = {}
    reasons = judged()
    total = sum(share for share, _ in STRATA.values())
    for folder, (share, _) in STRATA.items():
        rng = random.Random(f"{seed} {folder}")
        for slot in drawn(folder, max(1, round(count * share / total)), rng):
            fresh = (m for m in slot if m.key not in {*reasons, *taken} and not m.is_same)
            chosen = next(fresh, None)
            if chosen is not None and (not only or folder in only):
                taken[chosen.key] = chosen
    return list(taken.values())


def difference(mutant: Mutant, source: bytes) -> str:
    """Show a mutant as a diff without context."""
    before, after = (x.decode().splitlines() for x in (source, mutant.apply(source)))
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[3:]
    return "\n".join(lines)


class Scratch:
    """A copy of the tree with an interpreter that imports from it, and children likewise."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self.results = folder / "results.jsonl"
        self._folder = folder
        self._clock = int(time.time())
        if not self.tree.exists():
            ignored = shutil.ignore_patterns(".git", ".venv", "results", ".*cache")
            shutil.copytree(ROOT, self.tree, ignore=ignored)
            self._make_python()
        self.python = str(self.tree / ".venv" / "bin" / "python")

    def _make_python(self) -> None:
        """Make an environment of ours plus the copy, in front of what ours has installed."""
        place = self.tree / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
        (packages,) = place.glob("lib/python*/site-packages")
        ours = [p for p in sys.path if p.endswith("site-packages")]
        own = [self.tree / "src", *self.tree.glob("tests/plugin*/src"), self.tree / "tests/plugin"]
        (packages / "_tree.pth").write_text("\n".join(map(str, (*own, *ours))) + "\n")

    def write(self, file: str, source: bytes) -> None:
        """Write a file with a time of its own: bytecode is told apart by whole seconds."""
        path = self.tree / file
        path.write_bytes(source)
        self._clock += 2
        os.utime(path, (self._clock, self._clock))

    def run(self, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Run Python in the copy; None for a run that took too long."""
        with tempfile.TemporaryFile("w+") as output:
            child = subprocess.Popen(
                [self.python, *arguments],
                cwd=self.tree,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = child.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(child.pid)
                child.wait()
            output.seek(0)
            return code, output.read()[-6000:]

    def done(self) -> dict[str, dict[str, Any]]:
        """Read the results that there are, by the keys of their mutants."""
        lines = self.results.read_text().splitlines() if self.results.exists() else []
        return {row["key"]: row for row in map(json.loads, lines)}

    def note(self, row: Mapping[str, Any], place: str) -> None:
        """Record a result, and show it."""
        with self.results.open("a") as target:
            print(json.dumps(row), file=target)
        verdict = "timed out" if row.get("timed_out") else row["noticed"] or "SURVIVED"
        print(f"{place} {row['seconds']:6.1f} s {verdict[-50:]:9} {row['key'][:110]}", flush=True)

    def trace(self, name: str, seconds: float) -> tuple[Callers, list[str]]:
        """Tell which tests of a folder call each function, and which fail as it is."""
        target = self._folder / f"trace-{name}.json"
        if not target.exists():
            script = str(self.tree / "benchmarks" / "mutants.py")
            paths = [f"tests/{path}" for path in STRATA[name][1]]
            _, said = self.run([script, "--trace-into", str(target), *paths], seconds)
            assert target.exists(), said
        found = json.loads(target.read_text())
        return found["callers"], found["failing"]


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


class Tracer:
    """A pytest plugin that notes the functions of the tree that each passing test calls."""

    def __init__(self, source: Path) -> None:
        self.callers: Callers = defaultdict(list)
        self.failing: list[str] = []
        self._source = str(source)
        self._called: set[Any] = set()

    def pytest_runtest_setup(self) -> None:
        self._called = set()
        sys.settrace(self._note)
        threading.settrace(self._note)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        self._called.add(frame.f_code)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failing.append(report.nodeid)
        if report.when != "call":
            return
        sys.settrace(None)
        threading.settrace(None)
        if not report.passed:
            return
        # Threads of the test may go on.
        for code in self._called.copy():
            if code.co_filename.startswith(self._source):
                place = f"{code.co_filename[len(self._source) + 1 :]}:{code.co_firstlineno}"
                self.callers[place].append((round(report.duration, 3), report.nodeid))

    def save(self, target: Path) -> None:
        """Write what was noted, and which of our modules the tests imported."""
        callers = {place: sorted(set(tests)) for place, tests in self.callers.items()}
        modules = sorted(name for name in sys.modules if name.startswith("fusewire."))
        noted = {"callers": callers, "failing": self.failing, "modules": modules}
        target.write_text(json.dumps(noted))


def trace_into(target: Path, paths: Sequence[str]) -> None:
    """Run tests with a trace, in the copy."""
    import pytest

    tracer = Tracer(ROOT)
    pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *paths], plugins=[tracer])
    tracer.save(target)


def selected(mutant: Mutant, callers: Callers) -> list[str]:
    """Choose tests that call the function: those of its mirrored folder first, by their time."""
    tests = callers.get(f"{mutant.file}:{mutant.function}", [])
    mirrored = tuple(f"tests/{name}" for name in STRATA[mutant.folder][1])
    ordered = sorted(
        tests, key=lambda test: (test[0] > 1.0, not test[1].startswith(mirrored), test)
    )
    return [*_derived(mutant), *(name for _, name in ordered[:SELECTED])]


def _derived(mutant: Mutant) -> list[str]:
    """Name the tests that derive from the ops of a module; of a shared one, of all and of some."""
    if mutant.folder != "ops":
        return []
    from fusewire.ops.table import all_ops, families

    family = families().get(Path(mutant.file).stem)
    own = list(all_ops() if family is None else family.ops)
    sampled = own[::6] if family is None else own
    suite = "tests/conformance/test_ops.py::test_every"
    return [
        *(f"{suite}_bad_sample_is_refused_for_its_reason[{op}]" for op in own),
        *(f"{suite}_sample_is_right[{op}]" for op in sampled),
    ]


def rounds(
    mutant: Mutant, scratch: Scratch, tests: Sequence[str], failing: Sequence[str]
) -> Rounds:
    """List what a mutant meets: the tests that call its function, and then its folder."""
    listed = scratch.tree / "selected.txt"
    listed.write_text("\n".join(tests))
    # What fails without the change says nothing about it.
    left_out = [f"--deselect={test}" for test in failing]
    folder = [*left_out, *(f"tests/{name}" for name in STRATA[mutant.folder][1])]
    found = [("callers", [f"@{listed}"])] if tests else []
    if not tests or mutant.folder in CHILDREN or len(tests) >= SELECTED:
        found.append(("folder", folder))
    return found


def meet(mutant: Mutant, scratch: Scratch, tests: Rounds, seconds: float) -> dict[str, Any]:
    """Run a mutant against rounds of tests, up to the first failure."""
    source = (ROOT / mutant.file).read_bytes()
    row = _row(mutant, source)
    start = time.perf_counter()
    scratch.write(mutant.file, mutant.apply(source))
    try:
        for by, arguments in tests:
            code, said = scratch.run([*_PYTEST, "-x", *arguments], seconds)
            if code != 0:
                shown = [x for x in said.splitlines() if x.startswith(("FAILED", "ERROR", "E  "))]
                row |= {"noticed": by, "timed_out": code is None, "said": shown[-1:], "code": code}
                break
        else:
            row |= {"noticed": None}
    finally:
        scratch.write(mutant.file, source)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _row(mutant: Mutant, source: bytes) -> dict[str, Any]:
    shown = difference(mutant, source)
    return {"key": mutant.key, "folder": mutant.folder, "line": mutant.line, "diff": shown}


def campaign(mutants: Sequence[Mutant], scratch: Scratch, seconds: float) -> list[dict[str, Any]]:
    """Run every mutant that has no result yet, one at a time."""
    done = scratch.done()
    for file in {mutant.file for mutant in mutants}:
        # An earlier run may have been stopped with a change in place.
        scratch.write(file, (ROOT / file).read_bytes())
    for place, mutant in enumerate(mutants, 1):
        if mutant.key in done:
            continue
        callers, failing = scratch.trace(mutant.folder, 3600.0)
        tests = selected(mutant, callers)
        row = meet(mutant, scratch, rounds(mutant, scratch, tests, failing), seconds)
        done[mutant.key] = row | {"tests": len(tests)}
        scratch.note(done[mutant.key], f"{place:3}/{len(mutants)}")
    return [done[m.key] for m in mutants]


class Forks:
    """A pytest plugin: mutants of one file meet the tests that it collected, each in a fork.

    What tests import takes longer than most of them, and is done once. A fork takes a change as the
    code of its functions; children that tests start read it from the file.
    """

    def __init__(self, file: str, scratch: Scratch, seconds: float) -> None:
        self._file = file
        self._scratch = scratch
        self._seconds = seconds

    def pytest_runtestloop(self, session: Any) -> bool:
        """Trace the tests, and then run every mutant that has no result yet."""
        path = ROOT / "src" / "fusewire" / self._file
        source = path.read_bytes()
        target = self._scratch.results.with_name(f"trace-{self._file.replace('/', '-')}.json")
        if not target.exists():
            self._fork(session, session.items, lambda: None, Tracer(ROOT), target)
        found = json.loads(target.read_text())
        for name in found["modules"]:
            # Those of engines bring threads, which a fork does not have.
            if not name.startswith(_ENGINES) or name.startswith(_REFERENCE):
                import_module(name)
        mutants, done = conditions(self._file), self._scratch.done()
        for place, mutant in enumerate(mutants, 1):
            if mutant.key in done:
                continue
            items = _ordered(session.items, mutant, found["callers"], found["failing"])
            changed = mutant.apply(source)
            row, start = _row(mutant, source), time.perf_counter()
            self._scratch.write(mutant.file, changed)
            try:
                by = self._fork(session, items, partial(_swap, path, changed))
            finally:
                self._scratch.write(mutant.file, source)
            row |= {"noticed": by, "seconds": round(time.perf_counter() - start, 1)}
            self._scratch.note(row, f"{place:3}/{len(mutants)}")
        return True

    def _fork(
        self,
        session: Any,
        items: Sequence[Any],
        change: Callable[[], None],
        tracer: Tracer | None = None,
        target: Path | None = None,
    ) -> str | None:
        """Run items up to the first failure, and give its name; all of them with a tracer."""
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # jax warns of every fork; nothing has been run in this process.
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            os.setsid()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            try:
                change()
                if tracer is not None:
                    session.config.pluginmanager.register(tracer)
                failed = _first_failure(session, items, goes_on=tracer is not None)
                if tracer is not None and target is not None:
                    tracer.save(target)
                os.write(writing, (failed or "-").encode())
            finally:
                os._exit(0)
        os.close(writing)
        limit = self._seconds if tracer is None else 3600.0
        ready = select.select([reading], [], [], limit)[0]
        said = os.read(reading, 4096).decode() if ready else "out of time"
        os.close(reading)
        _end(child)
        os.waitpid(child, 0)
        return None if said == "-" else said or "the process ended"


def _first_failure(session: Any, items: Sequence[Any], goes_on: bool) -> str | None:
    for item, after in pairwise([*items, None]):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.testsfailed and not goes_on:
            # Servers of the session are ended with the process group, if not here.
            session._setupstate.teardown_exact(None)
            return str(item.nodeid)
    return None


def _ordered(
    items: Sequence[Any], mutant: Mutant, callers: Callers, failing: Sequence[str]
) -> list[Any]:
    """Put the tests that call the function first, the quickest before all; then the others."""
    calling = [name for _, name in callers.get(f"{mutant.file}:{mutant.function}", [])]
    places = {name: place for place, name in enumerate(calling)}
    usable = (item for item in items if item.nodeid not in failing)
    return sorted(usable, key=lambda item: places.get(item.nodeid, len(places)))


def _swap(path: Path, source: bytes) -> None:
    """Give the functions that were made of a file the code of another text of it."""
    codes = dict(_codes(compile(source, str(path), "exec")))
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == str(path):
            code = codes.get(function.__code__.co_qualname)
            if code is not None:
                function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """List the code of functions and methods, without that of functions in them."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part.co_qualname, part
            if not part.co_flags & inspect.CO_NEWLOCALS:
                yield from _codes(part)


def gate(files: Sequence[str], scratch: Scratch, seconds: float) -> list[dict[str, Any]]:
    """Run every change of the conditions of files; one process of pytest for each."""
    script = str(scratch.tree / "benchmarks" / "mutants.py")
    for file in files:
        source = Path("src/fusewire") / file
        scratch.write(str(source), (ROOT / source).read_bytes())
        more = ["--scratch", str(scratch.results.parent), "--seconds", str(seconds)]
        command = [scratch.python, script, "--forks", file, *more]
        subprocess.run(command, cwd=scratch.tree, check=True)
    done = scratch.done()
    return [done[mutant.key] for file in files for mutant in conditions(file)]


def fork_into(file: str, scratch: Scratch, seconds: float) -> None:
    """Meet the mutants of a file, in the copy."""
    import pytest

    paths = [f"tests/{path}" for path in GATE[file]]
    pytest.main([*_PYTEST[2:], "-s", *paths], plugins=[Forks(file, scratch, seconds)])


@dataclass(frozen=True)
class Fault:
    """A fault of planted.toml: ``old`` is once in the file, and becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    # Why no test can notice it, if none can.
    equivalent: str = ""

    def mutant(self) -> Mutant:
        """Make the change; AssertionError if it no longer applies."""
        source = (ROOT / self.file).read_text()
        assert source.count(self.old) == 1, f"{self.name} does not apply to {self.file} any more"
        start = len(source[: source.index(self.old)].encode())
        end, line = start + len(self.old.encode()), source[: source.index(self.old)].count("\n") + 1
        return Mutant(
            "planted", self.file, 0, self.name, "planted", line, start, end, self.old, self.new
        )


def faults() -> list[Fault]:
    """Read the faults that were planted once, and must be noticed for ever."""
    rows = tomllib.loads(PLANTED.read_text())["fault"]
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def planted(names: Sequence[str], scratch: Scratch, seconds: float) -> list[dict[str, Any]]:
    """Plant faults, each for the tests that are to notice it and that pass without it."""
    rows = []
    for fault in faults():
        if fault.equivalent or (names and fault.name not in names):
            continue
        code, said = scratch.run([*_PYTEST, *fault.tests], seconds)
        assert code == 0, f"the tests of {fault.name} fail without it:\n{said}"
        row = meet(fault.mutant(), scratch, [("tests", [*fault.tests])], seconds)
        scratch.note(row, fault.name)
        rows.append(row)
    return rows


def report(rows: Sequence[Mapping[str, Any]]) -> float:
    """Print the share that was noticed by folder, and what survived."""
    kinds: dict[str, Counter[bool]] = defaultdict(Counter)
    for row in rows:
        kinds[row["folder"]][row["noticed"] is not None] += 1
    for folder, counts in kinds.items():
        print(f"{folder:10} {counts[True]:3} of {counts.total():3}")
    survivors = [row for row in rows if row["noticed"] is None]
    for row in survivors:
        print(f"\n{row['key']} (line {row['line']})\n{row['diff']}")
    share = 100 * (len(rows) - len(survivors)) / len(rows)
    print(f"\n{len(rows) - len(survivors)} of {len(rows)} noticed: {share:.0f}%")
    return share


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files of the gate, or names of faults")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20261116)
    parser.add_argument("--only", nargs="*", default=[], help="folders to run")
    parser.add_argument("--judge", action="store_true", help="list what is drawn, and run nothing")
    parser.add_argument("--scratch", type=Path, help="where copy, trace and results are kept")
    parser.add_argument("--seconds", type=float, default=240.0, help="limit for a run of tests")
    parser.add_argument("--wanted", type=float, default=85.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace-into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--gate", action="store_true", help="all conditions of files")
    parser.add_argument("--planted", action="store_true", help="the faults of planted.toml")
    parser.add_argument("--forks", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.trace_into is not None:
        trace_into(options.trace_into, options.paths)
        return 0
    if options.judge:
        return _show(sample(options.count, options.seed, options.only))
    scratch = Scratch(options.scratch or Path(tempfile.mkdtemp(prefix="mutants")))
    if options.forks is not None:
        fork_into(options.forks, scratch, options.seconds)
        return 0
    if options.gate:
        rows = gate(options.paths or [*GATE], scratch, options.seconds)
    elif options.planted:
        rows = planted(options.paths, scratch, options.seconds)
    else:
        mutants = sample(options.count, options.seed, options.only)
        rows = campaign(mutants, scratch, options.seconds)
    share = report(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if share >= (100.0 if options.gate or options.planted else options.wanted) else 1


def _show(mutants: Sequence[Mutant]) -> int:
    for mutant in mutants:
        shown = difference(mutant, (ROOT / mutant.file).read_bytes())
        print(f"{mutant.key}\n  line {mutant.line}\n{shown}\n")
    print(f"{len(mutants)} drawn, {len(judged())} judged away")
    return 0


if __name__ == "__main__":
    sys.exit(main())
