"""Bind symbols to sizes, and infer types again where that makes them more precise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewire.errors import DimError
from fusewire.ir.builder import Rebuild, bind_symbols
from fusewire.ir.dims import Dim, Symbol, lone_symbol
from fusewire.ir.graph import Attr, Graph, Node
from fusewire.ir.types import TensorType, Type, type_symbols
from fusewire.ops.table import get_op


def specialize(graph: Graph, sizes: Mapping[str, int] | Mapping[Symbol, int]) -> Graph:
    """Bind symbols of the inputs, by name, and infer all types again.

    Raises DimError for a name that no input mentions, TypeRuleError where a size cannot be right.
    """
    known = {s.name: s for v in graph.inputs for s in type_symbols(v.type)}
    values: dict[Symbol, Dim] = {}
    for given, size in sizes.items():
        name = given if isinstance(given, str) else given.name
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise DimError(f"No input of {graph.name} has a dim {name!r}; their symbols: {listed}.")
        values[known[name]] = size
    return infer_again(bind_symbols(graph, values))


def infer_again(graph: Graph) -> Graph:
    """Apply all type rules anew, and tell bodies the sizes of what they are given."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        current = rebuild.copied(node)
        attrs: dict[str, Attr] = {
            key: infer_again(bind_symbols(body, _told(current, key, body)))
            for key, body in node.graphs()
        }
        attrs = {**node.attrs, **attrs}
        types = get_op(node.op).infer(
            [None if v is None else v.type for v in current.inputs], attrs
        )
        if any(True for _ in node.graphs()) or types != node.types:
            current = current.copy(current.inputs, attrs, types)
        rebuild.replace(node, current.outputs)
    nodes = [rebuild.value(n.outputs[0]).node or n for n in graph.nodes]
    outputs = [rebuild.value(v) for v in graph.outputs]
    return Graph(graph.inputs, outputs, nodes, name=graph.name, output_names=graph.output_names)


def _told(node: Node, key: str, body: Graph) -> Mapping[Symbol, Dim]:
    """Find the sizes that the inputs of a body have in every run of it."""
    found: dict[Symbol, Dim] = {}
    moving: set[Symbol | None] = set()
    for position, (value, type_) in enumerate(zip(body.inputs, given_types(node), strict=True)):
        if not isinstance(value.type, TensorType) or not isinstance(type_, TensorType):
            continue
        after = _carried_type(node, position)
        for axis, dim in enumerate(value.type.shape):
            alone = lone_symbol(dim)
            if after is not None and after.shape[axis] != dim:
                moving.add(alone)
            if alone is not None:
                found.setdefault(alone, type_.shape[axis])
    return {s: d for s, d in found.items() if s not in moving and isinstance(d, int)}


def given_types(node: Node) -> Sequence[Type]:
    """List the types of what a control op gives its bodies."""
    layout = get_op(node.op).layout
    if layout is None:
        return [v.type for v in node.operands]
    types = [v.type for v in node.inputs[layout.fixed :] if v is not None]
    scans = node.attrs.get("scans", 0)
    assert isinstance(scans, int)
    first = layout.carries(node)
    for i in range(first, first + scans):
        row = types[i]
        assert isinstance(row, TensorType)
        types[i] = row.with_shape(row.shape[1:])
    return [*layout.leading, *types]


def _carried_type(node: Node, position: int) -> TensorType | None:
    """Give what the body makes of a carried input; None for one that is not carried."""
    body, layout = node.attrs.get("body"), get_op(node.op).layout
    if not isinstance(body, Graph) or layout is None:
        return None
    place = position - len(layout.leading)
    if not 0 <= place < layout.carries(node):
        return None
    after = body.outputs[place + layout.flags].type
    return after if isinstance(after, TensorType) else None
