"""Check that every rewrite keeps what a random graph computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fusewire.dtypes import dtype
from fusewire.errors import FusewireError
from fusewire.ir.graph import Graph, HostValue
from fusewire.ir.hash import exact_hash
from fusewire.ir.text import constants_of, parse_graph, print_graph
from fusewire.numerics.judge import Verdict
from fusewire.numerics.oracle import Oracle
from fusewire.numerics.scale import bindings_of
from fusewire.ops.interpret import interpret
from fusewire.ops.table import verify
from fusewire.rewrite.cse import share
from fusewire.rewrite.dead import drop_dead
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.expand import expand, refuses_composites
from fusewire.rewrite.fold import Budget, ConstantFolder
from fusewire.rewrite.pipeline import RULES, run_pipeline
from fusewire.rewrite.resolve import resolve
from fusewire.rewrite.rule import Rewritten, RuleTable
from fusewire.rewrite.rules import TABLES
from fusewire.rewrite.specialize import specialize
from tests.random_graphs import Generated
from tests.rewrite.check import differences

Rewrite = Callable[[Graph], Rewritten]


def _by(table: RuleTable) -> Rewrite:
    return lambda graph: simplify(graph, table.rules)


REWRITES: Mapping[str, Rewrite] = {
    **{table.name: _by(table) for table in TABLES},
    "all rules": lambda graph: simplify(graph, RULES),
    "fold": lambda graph: simplify(graph, [ConstantFolder(Budget()).rule]),
    "share": share,
    "dead": drop_dead,
    "resolve": resolve,
    "pipeline": run_pipeline,
    "legalize": lambda graph: expand(graph, refuses_composites),
    "legalize, pipeline": lambda graph: run_pipeline(expand(graph, refuses_composites).graph),
}


@dataclass
class Tally:
    """What many checks found."""

    fired: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    rounded: Counter[str] = field(default_factory=Counter)


def failures(found: Generated, tally: Tally) -> Iterator[str]:
    """Say which rewrites of a graph are not the graph any more."""
    for name, rewrite in REWRITES.items():
        try:
            done = rewrite(found.graph)
        except (FusewireError, AssertionError) as error:
            yield f"{name}: raised {type(error).__name__}: {error}"
            continue
        if name in ("pipeline", "legalize", "fold", "share", "dead"):
            tally.fired.update(done.report.counts)
        if name == "pipeline":
            tally.refused.update(r.rule for r in done.report.refused)
            again = run_pipeline(done.graph)
            if again.report.fired:
                yield f"pipeline: fires again: {sorted(again.report.counts)}"
        yield from _check(name, found, done.graph, tally)
    yield from _text(found.graph)
    yield from _specialized(found, tally)


def _check(name: str, found: Generated, after: Graph, tally: Tally) -> Iterator[str]:
    if after is found.graph:
        return
    tally.changed[name] += 1
    try:
        verify(after)
        got = interpret(after, found.inputs)
    except (FusewireError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        yield f"{name}: the rewritten graph fails: {type(error).__name__}: {error}"
        return
    if not (difference := next(differences(found.outputs, got), "")):
        return
    # Other strides make NumPy add in another order, and some rules round better. The oracle also
    # allows for what such a difference becomes further down.
    near = all(_is_near(a, b) for a, b in zip(found.outputs, got, strict=True))
    verdict = Verdict("right") if near else Oracle(found.graph, found.inputs).judge(got)
    if verdict.status == "right":
        tally.rounded[name] += 1
    else:
        yield f"{name}: {verdict.status}, {verdict.reason}: {difference}"


def _is_near(before: HostValue, after: HostValue) -> bool:
    """Tell whether two outputs differ by a few units in the last place of the largest element."""
    if not isinstance(before, np.ndarray) or before.dtype == object or before.dtype.kind in "biu":
        return not list(differences([before], [after]))
    eps = dtype(before.dtype).eps
    with np.errstate(all="ignore"):
        a, b = before.astype(np.complex128), after.astype(np.complex128)
        finite = np.isfinite(a)
        largest = np.max(np.abs(a[finite]), initial=0.0)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= 16 * eps * largest)
    return bool(same.all())


def _text(graph: Graph) -> Iterator[str]:
    again = parse_graph(print_graph(graph), constants_of(graph))
    if exact_hash(again) != exact_hash(graph):
        yield "text: the graph read back has another hash"


def _specialized(found: Generated, tally: Tally) -> Iterator[str]:
    bound = {s: n for s, n in bindings_of(found.graph, found.inputs).items() if not s.unbacked}
    if not bound:
        return
    try:
        after = specialize(found.graph, bound)
    except FusewireError as error:
        yield f"specialize: raised {type(error).__name__}: {error}"
        return
    yield from _check("specialize", found, after, tally)
