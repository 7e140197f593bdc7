"""What a graph holds at once: the values that are live while its nodes run in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewire.errors import DimError
from fusewire.ir.dims import Symbol, bind_alone, evaluate
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType, type_symbols


def live_at_peak(graph: Graph, sizes: Mapping[Symbol, int]) -> dict[Value, int]:
    """Map the values that are live when a graph holds most, for these sizes, to their bytes.

    Inputs and constants are not ours to free, and are not in it. While a node with bodies runs, the
    body that holds most counts as well.
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
        inside = _live_inside(node, sizes)
        if used + (inner := sum(inside.values())) > most:
            most, peak = used + inner, {**live, **inside}
        for value in {*node.operands, *node.outputs}:
            if value in live and value not in kept and last.get(value, place) <= place:
                used -= live.pop(value)
    return peak


def bytes_at_peak(graph: Graph, sizes: Mapping[Symbol, int]) -> int:
    """Count the bytes that the values of a graph take at once, without its inputs."""
    return sum(live_at_peak(graph, sizes).values())


def call_bytes(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> int:
    """Count the bytes that a call holds at once, from the shapes of its inputs."""
    return bytes_at_peak(graph, _sizes(graph, shapes))


def result_bytes(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> int:
    """Count the bytes that a call returns and computes: any engine holds these at its end."""
    sizes = _sizes(graph, shapes)
    computed = {value for node in graph.nodes for value in node.outputs}
    return sum(_bytes(value, sizes) or 0 for value in computed.intersection(graph.outputs))


def _sizes(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> dict[Symbol, int]:
    sizes: dict[Symbol, int] = {}
    for value, shape in zip(graph.inputs, shapes, strict=True):
        if isinstance(value.type, TensorType):
            bind_alone(value.type.shape, shape, sizes)
    return sizes


def _live_inside(node: Node, sizes: Mapping[Symbol, int]) -> dict[Value, int]:
    """Map what is live in the body of a node that holds most; in a loop with what it carries.

    A round makes new values while it reads those of the round before.
    """
    most: dict[Value, int] = {}
    for _, body in node.graphs():
        inside = live_at_peak(body, sizes)
        if "carries" in node.attrs:
            counts = {value: _bytes(value, sizes) for value in body.inputs}
            inside |= {value: count for value, count in counts.items() if count is not None}
        if sum(inside.values()) > sum(most.values()):
            most = inside
    return most


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
