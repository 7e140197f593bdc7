"""Does a model that was read, saved and read again give the same graph?

    python benchmarks/roundtrip.py [--part cases|zoo|samples] [-k REGEX] [--write]

``cases`` are all cases of ONNX's backend test suite, ``zoo`` the 35 real models, ``samples`` one
graph of every sample of every op, which were not read from ONNX before. Two graphs are the same if
their structural hashes are. What differs is run on the reference, and must be right all the same.
``--write`` writes results/roundtrip.md.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

from fusewire.contract.frontend import Limits  # noqa: E402
from fusewire.errors import FormatError, FusewireError, SizesNeededError  # noqa: E402
from fusewire.ir.graph import Graph  # noqa: E402
from fusewire.ir.hash import structural_hash  # noqa: E402
from fusewire.numerics.judge import judge_op  # noqa: E402
from fusewire.onnx.frontend import OnnxFrontend  # noqa: E402
from fusewire.onnx.saving import written_with_functions  # noqa: E402
from fusewire.ops.interpret import interpret  # noqa: E402
from fusewire.ops.table import all_ops  # noqa: E402
from fusewire.testing.conformance import first_cases  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "roundtrip.md"
OPSETS = (21, 26)
STATUSES = ("same", "otherwise", "wrong", "not saved", "not read")


class Known(Exception):
    """Ends a case of the suite once its graph was looked at."""


@dataclass(frozen=True)
class Outcome:
    """What came of one model: the status, and why it is not the same."""

    status: str
    why: str = ""
    functions: int = 0
    checked: str = ""
    again: Graph | None = None


def read(model: Any, inputs: Sequence[Any]) -> Graph:
    """Read a model as ``fw.compile`` does: with sizes only if it cannot do without."""
    document = OnnxFrontend().open(model, Limits())
    try:
        return document.convert(()).graph
    except SizesNeededError:
        return document.convert(inputs, is_open=True).graph


def saved(graph: Graph) -> Any:
    """Save for the lowest opset that will do."""
    for opset in OPSETS:
        try:
            return written_with_functions(graph, opset).proto()
        except FormatError:
            if opset == OPSETS[-1]:
                raise
    raise AssertionError


def checked(model: Any) -> str:
    """Say what the checker of onnx finds wrong; larger models cannot be checked in memory."""
    from onnx import checker, shape_inference

    try:
        if model.ByteSize() < 2**30:
            checker.check_model(model, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        return str(error).strip()
    return ""


def compared(graph: Graph, inputs: Sequence[Any]) -> Outcome:
    """Save a graph, read it back and compare."""
    try:
        model = saved(graph)
    except FormatError as error:
        return Outcome("not saved", str(error))
    try:
        again = read(model, inputs)
    except FusewireError as error:
        return Outcome("wrong", f"does not read back: {error}")
    about = len(model.functions), checked(model), again
    if structural_hash(again) == structural_hash(graph):
        return Outcome("same", "", *about)
    return Outcome("otherwise", difference(graph, again), *about)


def difference(before: Graph, after: Graph) -> str:
    """Say in few words where two graphs part."""
    was, now = (Counter(n.op for g in graph.walk() for n in g.nodes) for graph in (before, after))
    lost, new = was - now, now - was
    if lost or new:
        return f"{_listed(lost)} became {_listed(new)}"
    for one, other in zip(_nodes(before), _nodes(after), strict=False):
        if one.op == other.op == "cond" and len(one.inputs) != len(other.inputs):
            return "cond takes what its branches read, and no more"
        keys = [k for k in one.attrs if str(one.attrs[k]) != str(other.attrs.get(k))]
        if one.op == other.op and keys:
            return "; ".join(
                f"{k} of {one.op}: {_short(one.attrs[k])} became {_short(other.attrs.get(k))}"
                for k in keys
            )
    return "types, constants or order"


def _nodes(graph: Graph) -> Iterator[Any]:
    for part in graph.walk():
        yield from part.nodes


def _short(attr: Any) -> str:
    text = re.sub(r"\s+", " ", str(attr))
    return text if len(text) < 60 else f"{text[:57]}..."


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {op}" if n > 1 else op for op, n in sorted(counts.items())) or "nothing"


def cases(match: str) -> Iterator[tuple[str, Outcome]]:
    """Take every case of ONNX's suite."""
    from fusewire.testing.onnx_suite.cases import Suite

    suite = Suite()
    with tempfile.TemporaryDirectory() as home:
        for name in suite.names:
            if re.search(match, name):
                yield name, case(suite, name, home)


def case(suite: Any, name: str, home: str) -> Outcome:
    """Take one case; what reads back otherwise must give the answers of the suite."""
    found = Outcome("not read", "the suite ended before it was asked.")

    def prepare(model: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            nonlocal found
            try:
                graph = read(model, inputs)
            except FusewireError as error:
                found = Outcome("not read", str(error))
                raise Known from None
            found = compared(graph, inputs)
            if found.status != "otherwise" or found.again is None:
                raise Known
            return interpret(found.again, inputs)

        return run

    try:
        suite.run(name, prepare, home)
    except Known:
        pass
    except (AssertionError, FusewireError, ValueError, TypeError, LookupError) as error:
        return Outcome("wrong", f"{found.why}; {type(error).__name__}: {error}".strip())
    return found


def zoo(match: str) -> Iterator[tuple[str, Outcome]]:
    """Take every model of the zoo."""
    models: Any = import_module("zoo")
    models.fetch([name for name in models.MODELS if re.search(match, name)])
    for name in models.MODELS:
        if not re.search(match, name):
            continue
        inputs = list(models.inputs(name).values())
        try:
            graph = read(str(models.path(name)), inputs)
        except FusewireError as error:
            yield name, Outcome("not read", str(error))
            continue
        yield name, compared(graph, inputs)


def samples(match: str) -> Iterator[tuple[str, Outcome]]:
    """Take a graph of every sample of every op in one dtype."""
    for name, op in all_ops().items():
        for drawn in first_cases(op)[:12] if re.search(match, name) else ():
            graph, inputs = drawn.make()
            found = compared(graph, inputs)
            if found.status == "otherwise" and found.again is not None:
                verdict = judge_op(graph, inputs, interpret(found.again, inputs))
                if verdict.status != "right":
                    found = Outcome("wrong", f"{found.why}; {verdict.reason}")
            yield drawn.id, found


PARTS = {"cases": cases, "zoo": zoo, "samples": samples}
TITLES = {
    "cases": "Cases of ONNX's suite",
    "zoo": "Models of the zoo",
    "samples": "Samples of ops, not read from ONNX before",
}


def page(found: dict[str, dict[str, Outcome]]) -> str:
    """Write the table, and each model that is not the same."""
    lines = [
        "# Read, saved, read again",
        "",
        "`python benchmarks/roundtrip.py --write`, 2026-11-15, onnx "
        f"{version('onnx')}, NumPy {version('numpy')}, Linux x86_64.",
        "",
        "*Same*: the structural hash is the same. *Otherwise*: another graph that means the same, "
        "and gave right answers on the reference. *Not saved*: ONNX has nothing for it up to opset "
        f"{OPSETS[-1]}. *Not read*: refused the first time. *Invalid*: the checker of onnx, with "
        "`full_check`, says so.",
        "",
        f"| | {' | '.join(STATUSES)} | invalid | with local functions |",
        f"|---|{'---:|' * (len(STATUSES) + 2)}",
    ]
    for part, outcomes in found.items():
        counts = Counter(o.status for o in outcomes.values())
        local = sum(o.functions > 0 for o in outcomes.values())
        figures = " | ".join(str(counts[status]) for status in STATUSES)
        invalid = sum(bool(o.checked) for o in outcomes.values())
        lines.append(f"| {TITLES[part]} ({len(outcomes)}) | {figures} | {invalid} | {local} |")
    for part, outcomes in found.items():
        for status in STATUSES[1:]:
            lines += _reasons(
                TITLES[part], status, {n: o.why for n, o in outcomes.items() if o.status == status}
            )
        wrong = {n: o.checked for n, o in outcomes.items() if o.checked}
        lines += _reasons(TITLES[part], "invalid", wrong)
    return "\n".join(lines) + "\n"


def _reasons(title: str, status: str, reasons: dict[str, str]) -> list[str]:
    grouped: dict[str, list[str]] = {}
    for name, why in reasons.items():
        grouped.setdefault(re.sub(r"\?u\d+", "?u", why), []).append(name)
    if not grouped:
        return []
    rows = sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = [f"- {why} ({', '.join(names)})" for why, names in rows]
    return ["", f"## {title}: {status}", "", *shown]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("-k", "--match", default="")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    found: dict[str, dict[str, Outcome]] = {}
    for part in args.part or PARTS:
        start, outcomes = time.perf_counter(), found.setdefault(part, {})
        for name, outcome in PARTS[part](args.match):
            # The graph is not needed any more, and there are many.
            outcomes[name] = replace(outcome, again=None)
            if args.verbose and (outcome.status != "same" or outcome.checked):
                print(f"{name}: {outcome.status}: {outcome.why} {outcome.checked}"[:400])
        counts = Counter(o.status for o in outcomes.values())
        print(part, dict(counts), f"{time.perf_counter() - start:.0f} s")
    if args.write:
        RESULTS.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
