"""State that calls change: outputs of a graph that replace inputs, in the caller's own memory.

A graph has no side effects. A source that changes an argument, such as the key-value cache of a
decoder, returns the new value as one more output, which is written over the argument after the
run. Where only the op that replaces elements reads the old value, the engine may do it in place,
so that nothing else is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusewire.contract.backend import Held
from fusewire.ir.graph import Graph
from fusewire.ops.replacing import replaced_input
from fusewire.runtime.entry import Runner
from fusewire.runtime.execute import PlanRunner
from fusewire.runtime.regions import Updates


def in_place(graph: Graph, updates: Updates) -> list[tuple[int, int]]:
    """List the updates that an engine may do in place.

    Repeating such a run gives the same state: what is written does not depend on the old value.
    """
    return [(output, place) for output, place in updates if replaced_input(graph, output) == place]


def updating_call(
    runner: Runner, graph: Graph, updates: Updates
) -> Callable[[Sequence[Held]], list[Any]]:
    """Return what runs a graph and writes outputs over inputs, in place where that is possible."""
    call = runner.call
    if isinstance(runner, PlanRunner) and (pairs := in_place(graph, updates)):
        call = runner.updating(pairs)

    def run(inputs: Sequence[Held]) -> list[Any]:
        outputs = call(inputs)
        for output, place in updates:
            state: Any = inputs[place]
            if outputs[output] is not state:
                np.copyto(state, outputs[output])
        return outputs

    return run
