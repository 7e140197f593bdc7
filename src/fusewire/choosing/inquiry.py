"""What follows a wrong answer: the first wrong node, a script to show it, a fact that is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fusewire.choosing.bisect import engine, find_culprit
from fusewire.choosing.ledger import Ledger
from fusewire.choosing.repro import write_repro
from fusewire.errors import EngineError
from fusewire.ops.sample import HostValue
from fusewire.records.quarantine import Fact
from fusewire.trials.stage import Stage, Staged

# Where scripts go, beside what the store keeps.
FOLDER = "repros"


def inquire(
    staged: Staged,
    inputs: Sequence[HostValue],
    stage: Stage,
    ledger: Ledger,
    reason: str,
    deadline: float,
) -> str:
    """Find what a candidate gets wrong on inputs, write it down, and say it in a sentence."""
    candidate = staged.candidate
    plan, home = candidate.planned.plan, candidate.home
    fact = Fact("wrong", reason)
    if not plan.is_whole:
        return ""
    if time.monotonic() > deadline:
        return "The budget was used up before its first wrong node was looked for."
    config = candidate.config(stage.config)
    reference = stage.reference_of(home.name)
    build = engine(reference, home.device, config, stage.limits, isolate=stage.isolate)
    graph = plan.steps[0].region.graph
    try:
        culprit = find_culprit(graph, inputs, build, deadline=deadline)
    except EngineError as error:
        return f"Its first wrong node was not found: {error}"
    if culprit is None:
        return "Its first wrong node was not found in the time there was."
    ledger.hold(candidate, replace(fact, place=str(culprit.place), op=culprit.op))
    said = f"The first wrong node is {culprit.place}, {culprit.op}"
    said += f" ({culprit.source})." if culprit.source else "."
    folder = ledger.folder
    if folder is None:
        return said
    path = folder / FOLDER / f"{home.name}-{culprit.op}-{ledger.exact[:12]}"
    try:
        written: Path | None = write_repro(
            path, culprit, home.backend, home.device, config, reference
        )
    except OSError as error:
        return f"{said} The script that shows it could not be written: {error}."
    return f"{said} {written} shows it." if written else said
