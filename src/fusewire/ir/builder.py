"""Build graphs from scratch, or from another graph with some nodes replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusewire.errors import GraphError
from fusewire.ir.dims import Dim, Sym, Symbol, lone_symbol, substitute
from fusewire.ir.graph import Attr, Constant, Graph, Node, Value
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type, substitute_type


class Builder:
    """Collect inputs and nodes in order, then make a graph of them.

    >>> from fusewire.dtypes import float32
    >>> b = Builder("twice")
    >>> x = b.input(TensorType(float32, (3,)), "x")
    >>> (y,) = b.node("add", [x, x], {}, [x.type])
    >>> print(b.finish([y]))
    graph twice(%x: float32[3]) {
      %0 = add(%x, %x) : float32[3]
      return %0 as output0
    }
    """

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []

    def input(self, type_: Type, name: str | None = None) -> Value:
        """Add an input."""
        value = Value(type_, name or f"input{len(self._inputs)}")
        self._inputs.append(value)
        return value

    def constant(self, array: Any, name: str | None = None) -> Value:
        """Make a constant; it belongs to the graph once a node uses it."""
        return constant(array, name)

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, Attr],
        types: Sequence[Type],
        name: str | None = None,
    ) -> tuple[Value, ...]:
        """Add a node and return its outputs."""
        node = Node(op, inputs, attrs, types, name=name)
        self._nodes.append(node)
        return node.outputs

    def finish(self, outputs: Sequence[Value], names: Sequence[str] | None = None) -> Graph:
        """Make the graph; nodes that no output needs stay in it."""
        return Graph(self._inputs, outputs, self._nodes, name=self.name, output_names=names)


def constant(array: Any, name: str | None = None) -> Value:
    """Make a constant value from an array or a Constant."""
    held = array if isinstance(array, Constant) else Constant.of(array)
    return Value(held.type, name, held)


class Rebuild:
    """Copy a graph node by node, sharing what does not change.

    Visit ``graph.nodes`` in order; call ``copied`` for each, and ``replace`` to put something else
    in its place. ``finish`` keeps what the outputs still need.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._new: dict[Value, Value] = {}

    def value(self, old: Value) -> Value:
        """Return the new value for a value of the old graph."""
        return self._new.get(old, old)

    def stand_in(self, old: Iterable[Value], new: Iterable[Value]) -> None:
        """Use other values in place of these from here on."""
        self._new.update(zip(old, new, strict=True))

    def copied(self, node: Node) -> Node:
        """Return the node with its new operands: the same object if none of them changed."""
        inputs = tuple(None if v is None else self._new.get(v, v) for v in node.inputs)
        if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
            return node
        return node.copy(inputs)

    def replace(self, node: Node, values: Sequence[Value]) -> None:
        """Use values in place of the outputs of an old node."""
        if len(values) != len(node.outputs):
            raise GraphError(
                f"{node!r} has {len(node.outputs)} outputs, not {len(values)}: cannot replace it."
            )
        for old, new in zip(node.outputs, values, strict=True):
            if new is not old:
                self._new[old] = new

    def finish(self, inputs: Sequence[Value] | None = None) -> Graph:
        """Make the new graph."""
        old = self.graph
        return Graph(
            old.inputs if inputs is None else inputs,
            [self.value(v) for v in old.outputs],
            name=old.name,
            output_names=old.output_names,
        )


def inline(graph: Graph, operands: Iterable[Value]) -> tuple[Value, ...]:
    """Return the outputs of a graph, computed from other values in place of its inputs."""
    rebuild = Rebuild(graph)
    rebuild.stand_in(graph.inputs, operands)
    for node in graph.nodes:
        rebuild.replace(node, rebuild.copied(node).outputs)
    return tuple(rebuild.value(v) for v in graph.outputs)


def bind_symbols(graph: Graph, values: Mapping[Symbol, Dim]) -> Graph:
    """Replace symbols in types, attributes and subgraphs.

    Types are substituted, not inferred again: a type rule gives the same answer either way.
    """
    if not values:
        return graph
    rebuild = Rebuild(graph)
    inputs = [Value(substitute_type(v.type, values), v.name) for v in graph.inputs]
    rebuild.stand_in(graph.inputs, inputs)
    for node in graph.nodes:
        attrs = {key: bind_attr(attr, values) for key, attr in node.attrs.items()}
        types = [substitute_type(t, values) for t in node.types]
        changed = rebuild.copied(node)
        if changed is node and attrs == node.attrs and types == list(node.types):
            continue
        rebuild.replace(node, changed.copy(changed.inputs, attrs, types).outputs)
    nodes = [rebuild.value(n.outputs[0]).node or n for n in graph.nodes]
    outputs = [rebuild.value(v) for v in graph.outputs]
    return Graph(inputs, outputs, nodes, name=graph.name, output_names=graph.output_names)


def bind_attr(attr: Attr, values: Mapping[Symbol, Dim]) -> Attr:
    """Replace symbols in an attribute."""
    if isinstance(attr, tuple):
        return tuple(bind_attr(item, values) for item in attr)
    if isinstance(attr, Sym):
        return substitute(attr, values)
    if isinstance(attr, Graph):
        # A symbol that is a whole dim of an input belongs to the subgraph: each run binds it.
        types = [v.type for v in attr.inputs if isinstance(v.type, TensorType)]
        own = {lone_symbol(dim) for type_ in types for dim in type_.shape}
        return bind_symbols(attr, {s: dim for s, dim in values.items() if s not in own})
    if isinstance(attr, TensorType | SequenceType | OptionalType):
        return substitute_type(attr, values)
    return attr
