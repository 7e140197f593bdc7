"""The invariants of a graph, each a named check with a message.

What only ops know (names, type rules) comes in as ``infer``, so that this file knows no op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusewire.dtypes import DType
from fusewire.errors import FusewireError, VerifyError
from fusewire.ir.dims import Sym, Symbol, lone_symbol, symbols
from fusewire.ir.graph import Attr, Graph, Node
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type, type_symbols

Infer = Callable[[Node], Sequence[Type]]
MAX_DEPTH = 64


@dataclass(frozen=True)
class Context:
    """What checks need beside the graph."""

    infer: Infer | None
    outer: frozenset[Symbol] = frozenset()
    position: Mapping[Node, int] = field(default_factory=dict)


Check = Callable[[Graph, Context], Iterator[str]]


def _unique_inputs(graph: Graph, context: Context) -> Iterator[str]:
    if len(set(graph.inputs)) != len(graph.inputs):
        yield "an input is listed twice"


def _plain_inputs(graph: Graph, context: Context) -> Iterator[str]:
    for value in graph.inputs:
        if value.node is not None or value.constant is not None:
            yield f"the input {value!r} is an output of a node or a constant"


def _input_names(graph: Graph, context: Context) -> Iterator[str]:
    names = [value.name for value in graph.inputs]
    if None in names or len(set(names)) != len(names):
        yield f"inputs need distinct names, found {names}"


def _unique_nodes(graph: Graph, context: Context) -> Iterator[str]:
    if len(context.position) != len(graph.nodes):
        yield "a node is listed twice"


def _node_outputs(graph: Graph, context: Context) -> Iterator[str]:
    for node in graph.nodes:
        if not node.outputs:
            yield f"{node!r} has no output"
        for index, value in enumerate(node.outputs):
            if value.node is not node or value.index != index or value.constant is not None:
                yield f"output {index} of {node!r} does not point back at it"


def _defined_before_use(graph: Graph, context: Context) -> Iterator[str]:
    inputs = set(graph.inputs)
    for position, node in enumerate(graph.nodes):
        for value in node.operands:
            if value.node is None:
                if value.constant is None and value not in inputs:
                    yield f"{node!r} uses an input of another graph: {value!r}"
            elif context.position.get(value.node, position) >= position:
                yield f"{node!r} uses {value!r} before it is computed, or from another graph"


def _outputs_defined(graph: Graph, context: Context) -> Iterator[str]:
    inputs = set(graph.inputs)
    for value in graph.outputs:
        if value.node is None:
            if value.constant is None and value not in inputs:
                yield f"the output {value!r} is an input of another graph"
        elif value.node not in context.position:
            yield f"the output {value!r} comes from a node that is not in the graph"


def _output_names(graph: Graph, context: Context) -> Iterator[str]:
    if len(graph.output_names) != len(graph.outputs):
        yield f"{len(graph.outputs)} outputs and {len(graph.output_names)} names for them"
    if len(set(graph.output_names)) != len(graph.output_names):
        yield f"outputs need distinct names, found {list(graph.output_names)}"


def _constant_types(graph: Graph, context: Context) -> Iterator[str]:
    for value in graph.constants:
        assert value.constant is not None
        if value.type != value.constant.type:
            yield f"a constant of type {value.constant.type} is used as {value.type}"


def _dims(graph: Graph, context: Context) -> Iterator[str]:
    values = (*graph.inputs, *(v for node in graph.nodes for v in node.outputs))
    for value in values:
        shape = value.type.shape if isinstance(value.type, TensorType) else ()
        if any(isinstance(dim, int) and dim < 0 for dim in shape):
            yield f"{value!r} has a negative dim"


def _attr_kinds(graph: Graph, context: Context) -> Iterator[str]:
    for node in graph.nodes:
        for key, attr in node.attrs.items():
            if not _is_attr(attr):
                yield f"{node!r} has {key}={attr!r}, a {type(attr).__name__} that attrs cannot hold"


def _is_attr(attr: Attr) -> bool:
    if isinstance(attr, tuple):
        return all(_is_attr(item) for item in attr)
    plain = attr is None or type(attr) in (bool, int, float, str)
    rich = (DType, Sym, TensorType, SequenceType, OptionalType, Graph)
    return plain or isinstance(attr, rich)


def _symbols_bound(graph: Graph, context: Context) -> Iterator[str]:
    bound = context.outer | _bound_by_inputs(graph)
    for value in graph.inputs:
        # In a sequence an unbacked dim may differ between elements: nothing binds it.
        loose = not isinstance(value.type, TensorType)
        told = [s for s in type_symbols(value.type) if not (loose and s.unbacked)]
        if missing := [s.key for s in told if s not in bound]:
            yield f"the input {value!r} mentions {missing}, which no input has as a whole dim"
    known = set(bound)
    for node in graph.nodes:
        for item in mentioned(node):
            if item in known:
                continue
            if not item.unbacked:
                yield f"{node!r} mentions {item.key}, which no input binds"
            known.add(item)


def _bound_by_inputs(graph: Graph) -> set[Symbol]:
    """Return the symbols that are a whole dim of an input: a call determines only those."""
    types = [v.type for v in graph.inputs if isinstance(v.type, TensorType)]
    alone = (lone_symbol(dim) for type_ in types for dim in type_.shape)
    return {item for item in alone if item is not None}


def mentioned(node: Node) -> Iterator[Symbol]:
    """Yield the symbols in the types and attributes of a node, without its subgraphs."""
    for type_ in node.types:
        yield from type_symbols(type_)
    for attr in node.attrs.values():
        yield from attr_symbols(attr)


def attr_symbols(attr: Attr) -> Iterator[Symbol]:
    """Yield the symbols that an attribute mentions, without graphs."""
    if isinstance(attr, Sym):
        yield from symbols(attr)
    elif isinstance(attr, tuple):
        for item in attr:
            yield from attr_symbols(item)


def _types_agree(graph: Graph, context: Context) -> Iterator[str]:
    if context.infer is None:
        return
    for node in graph.nodes:
        try:
            types = tuple(context.infer(node))
        except FusewireError as error:
            yield f"{node!r}: {error}"
            continue
        if types != node.types:
            found, want = (", ".join(map(str, side)) for side in (node.types, types))
            yield f"{node!r} says {found}; the type rule of {node.op} says {want}"


CHECKS: dict[str, Check] = {
    "unique-inputs": _unique_inputs,
    "plain-inputs": _plain_inputs,
    "input-names": _input_names,
    "unique-nodes": _unique_nodes,
    "node-outputs": _node_outputs,
    "defined-before-use": _defined_before_use,
    "outputs-defined": _outputs_defined,
    "output-names": _output_names,
    "constant-types": _constant_types,
    "dims": _dims,
    "attr-kinds": _attr_kinds,
    "symbols-bound": _symbols_bound,
    "types-agree": _types_agree,
}


def verify_graph(graph: Graph, infer: Infer | None = None) -> None:
    """Run every check on a graph and on the graphs inside it; raise VerifyError on the first."""
    for check, message in broken(graph, infer):
        raise VerifyError(check, message)


def broken(graph: Graph, infer: Infer | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name of each broken check with a message."""
    stack: list[tuple[Graph, frozenset[Symbol], int]] = [(graph, frozenset(), 0)]
    while stack:
        current, outer, depth = stack.pop()
        if depth > MAX_DEPTH:
            yield "depth", f"graphs nested deeper than {MAX_DEPTH}"
            return
        position = {node: index for index, node in enumerate(current.nodes)}
        context = Context(infer, outer, position)
        for name, check in CHECKS.items():
            for message in check(current, context):
                yield name, f"in graph {current.name}: {message}"
        bodies = [body for node in current.nodes for _, body in node.graphs()]
        if bodies:
            seen = {s for node in current.nodes for t in node.types for s in type_symbols(t)}
            inner = outer | _bound_by_inputs(current) | seen
            stack.extend((body, frozenset(inner), depth + 1) for body in bodies)
