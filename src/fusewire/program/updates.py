"""State that calls change: outputs of a graph that replace inputs, in the caller's own memory.

A graph has no side effects. A source that changes an argument, such as the key-value cache of a
decoder, returns the new value as one more output, which is written over the argument after the
run. Where only the op that replaces elements reads the old value, the engine may do it in place,
so that nothing else is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds

from fusewire.contract.backend import Held, Into
from fusewire.host_memory import address
from fusewire.ir.graph import Array, Graph
from fusewire.plan.execute import PlanRunner

if TYPE_CHECKING:
    from fusewire.plan.runner import Runner

# Pairs of an output and the input that it replaces, by their places.
Updates: TypeAlias = Sequence[tuple[int, int]]


def in_place(graph: Graph, updates: Updates) -> list[tuple[int, int]]:
    """List the updates that an engine may do in place.

    Repeating such a run gives the same state: what is written does not depend on the old value.
    """
    from fusewire.ops.replacing import replaced_input

    return [(output, place) for output, place in updates if replaced_input(graph, output) == place]


def may_write(updates: Updates, inputs: Sequence[Held]) -> bool:
    """Tell whether there are inputs that an engine may write to: not if others share their memory.

    It would read those after it has written. Engines look after memory of their own devices.
    """
    if not updates:
        return False
    spans = [(*_span(x), place) for place, x in enumerate(inputs) if isinstance(x, np.ndarray)]
    shared: set[int] = set()
    end, owner = 0, 0
    for start, stop, place in sorted(spans):
        if start < end:
            shared |= {owner, place}
        if stop > end:
            end, owner = stop, place
    return not any(place in shared for _, place in updates)


def _span(array: Array) -> tuple[int, int]:
    """Return where the memory of an array begins and ends."""
    if array.flags.c_contiguous:
        start = address(array)
        return start, start + array.nbytes
    return byte_bounds(array)


def wishes(count: int, places: Mapping[int, int | None], memory: Into = ()) -> Into:
    """Say where so many outputs may go: over inputs, or else to memory of the caller's."""
    rest = memory or [None] * count
    return [places.get(output, rest[output]) for output in range(count)]


def updating_call(
    runner: Runner, graph: Graph, updates: Updates
) -> Callable[[Sequence[Held]], list[Any]]:
    """Return what runs a graph and writes outputs over inputs, in place where that is possible."""
    call, pairs = runner.call, in_place(graph, updates)
    into = wishes(len(graph.outputs), dict(pairs))
    write = partial(runner.run, into=into) if isinstance(runner, PlanRunner) else call

    def run(inputs: Sequence[Held]) -> list[Any]:
        outputs = write(inputs) if may_write(pairs, inputs) else call(inputs)
        for output, place in updates:
            state: Any = inputs[place]
            if outputs[output] is not state:
                np.copyto(state, outputs[output])
        return outputs

    return run
