"""What a graph holds at once: the values that are live while its nodes run in order."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.errors import DimError
from fusewire.ir.dims import Symbol, evaluate
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, type_symbols


def live_at_peak(graph: Graph, sizes: Mapping[Symbol, int]) -> dict[Value, int]:
    """Map the values that are live when a graph holds most, for these sizes, to their bytes.

    Inputs and constants are not ours to free, and are not in it; neither is what bodies hold.
    """
    last = {value: place for place, node in enumerate(graph.nodes) for value in node.operands}
    kept = set(graph.outputs)
    live: dict[Value, int] = {}
    used = most = 0
    peak: dict[Value, int] = {}
    for place, node in enumerate(graph.nodes):
        for value in node.outputs:
            if (count := _bytes(value, sizes)) is not None:
                live[value] = count
                used += count
        if used > most:
            most, peak = used, dict(live)
        for value in {*node.operands, *node.outputs}:
            if value in live and value not in kept and last.get(value, place) <= place:
                used -= live.pop(value)
    return peak


def _bytes(value: Value, sizes: Mapping[Symbol, int]) -> int | None:
    type_ = value.type
    if not isinstance(type_, TensorType):
        return None
    if any(s not in sizes for s in type_symbols(type_)):
        return None
    try:
        return evaluate(type_.size, sizes) * type_.dtype.itemsize
    except DimError:
        # No call has such sizes: they do not broadcast.
        return None
