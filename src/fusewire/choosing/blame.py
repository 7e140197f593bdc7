"""Find the engines to blame for a wrong plan of several: each runs its own regions alone.

The reference gives every region its inputs, so that what one engine gets wrong does not spoil the
regions of another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fusewire.choosing.bisect import engine
from fusewire.choosing.judge import Judge
from fusewire.contract.backend import Config
from fusewire.errors import BudgetError, FusewireError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import HostValue
from fusewire.numerics.scale import bindings_of
from fusewire.ops.interpret import Interpreter
from fusewire.ops.limits import RunLimits, limited
from fusewire.plan.plan import Plan, Region
from fusewire.planning.candidates import Candidate
from fusewire.planning.target import Target
from fusewire.process.limits import ChildLimits

# Runs of an oracle, as for the search for a wrong node.
_RUNS = 4


def wrong_engines(
    candidate: Candidate,
    inputs: Sequence[HostValue],
    config: Config,
    limits: ChildLimits,
    reference_of: Callable[[str], str],
    deadline: float,
) -> tuple[str, ...] | None:
    """Name the engines that are wrong about a region of their own; None if none is known to be.

    ``deadline`` is a time of ``time.monotonic()``.
    """
    if len(candidate.engines) == 1:
        return None
    names: dict[str, None] = {}
    try:
        with limited(RunLimits(max(deadline - time.monotonic(), 1.0))):
            for region, values in _regions(candidate.planned.plan, inputs):
                target = candidate.target_of(region)
                if target is None or target.name in names or time.monotonic() > deadline:
                    continue
                own = replace(limits, seconds=min(limits.seconds, deadline - time.monotonic() + 1))
                reference = reference_of(target.name)
                given = target, candidate.config(config, target), own, reference
                if _is_wrong(region, values, *given):
                    names[target.name] = None
    except BudgetError:
        # What was found so far is true.
        pass
    return tuple(names) or None


def _regions(
    plan: Plan, inputs: Sequence[HostValue]
) -> Iterator[tuple[Region, Sequence[HostValue]]]:
    """Run a plan on the reference, and yield its regions with the values that each takes."""
    count = plan.places - plan.takes - len(plan.constants)
    values: list[Any] = [*inputs, *plan.constants, *[None] * count]
    for step in plan.steps:
        taken = [values[place] for place in step.inputs]
        yield step.region, taken
        outputs = Interpreter(step.region.graph)(taken)
        for place, value in zip(step.outputs, outputs, strict=True):
            values[place] = value


def _is_wrong(
    region: Region,
    inputs: Sequence[HostValue],
    target: Target,
    config: Config,
    limits: ChildLimits,
    reference: str,
) -> bool:
    graph = bind_symbols(region.graph, dict(bindings_of(region.graph, inputs)))
    build = engine(reference, target.device, config, limits, isolate=target.reference is not None)
    try:
        judge = Judge(graph, inputs, runs=_RUNS, only=("given",), alone=True)
        return judge.judge(build(graph)).status == "wrong"
    except (FusewireError, ValueError):
        # It gives no answer for a region alone, or the reference does not.
        return False
