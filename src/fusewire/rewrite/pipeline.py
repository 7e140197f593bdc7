"""The order of rewriting. Every graph goes through ``PIPELINE`` before anything else sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusewire.ir.collection import collection_paused
from fusewire.ir.graph import Graph
from fusewire.rewrite.cse import share
from fusewire.rewrite.dead import drop_dead
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.fold import Budget, ConstantFolder
from fusewire.rewrite.resolve import resolve
from fusewire.rewrite.rule import Log, Rewritten, Rule
from fusewire.rewrite.rules import TABLES


@dataclass(frozen=True)
class Pass:
    """One step over the whole graph."""

    name: str
    because: str
    run: Callable[[Graph, ConstantFolder], Rewritten]


RULES: Sequence[Rule] = [rule for table in TABLES for rule in table.rules]

PIPELINE: Sequence[Pass] = (
    Pass(
        "dead",
        "Later steps do not see what nobody needs.",
        lambda graph, folder: drop_dead(graph),
    ),
    Pass(
        "resolve",
        "Resolved sizes make types more precise, and rules need types.",
        lambda graph, folder: resolve(graph),
    ),
    Pass(
        "simplify",
        "Folding and all rules run in one sweep, so that each sees the results of the others.",
        lambda graph, folder: simplify(graph, [folder.rule, *RULES]),
    ),
    Pass(
        "share",
        "After simplification, equal nodes also look equal.",
        lambda graph, folder: share(graph),
    ),
)
# A round does what the one before it made possible; this many have always been enough.
ROUNDS = 16


def run_pipeline(graph: Graph, budget: Budget = Budget(), rounds: int = ROUNDS) -> Rewritten:
    """Rewrite until a round changes nothing.

    The report's ``counts`` say how often each rule fired. Its ``refused`` are those of the last
    round, about nodes that are still in the graph.
    """
    with collection_paused():
        return _rewrite(graph, ConstantFolder(budget), rounds)


def _rewrite(graph: Graph, folder: ConstantFolder, rounds: int) -> Rewritten:
    log = Log()
    for _ in range(rounds):
        before, last = graph, Log()
        for step in PIPELINE:
            graph, report = step.run(graph, folder)
            last.add(report)
        log = Log.joined(log, last)
        if graph is before:
            break
    return Rewritten(graph, log.report())
