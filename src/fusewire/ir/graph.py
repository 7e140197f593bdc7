"""Graphs: values, nodes, constants. Everything is immutable and compared by identity.

A value is an input of a graph, a constant, or an output of a node. Nodes refer to values, and
values to the node that produces them, so the outputs determine the graph; ``Graph.nodes`` lists
nodes in an order in which each comes after what it uses. Subgraphs are attributes and closed:
whatever a body needs is an operand. This file knows no op: names of ops and types of outputs come
from callers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from fusewire.dtypes import DType, dtype, string
from fusewire.errors import GraphError
from fusewire.ir.dims import Sym
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type, brief

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
# A value that a graph runs on: an array, a list of them (a sequence), or None (absent).
HostValue: TypeAlias = Any
Attr: TypeAlias = (
    "bool | int | float | str | DType | Sym | TensorType | SequenceType | OptionalType "
    "| Graph | tuple[Attr, ...] | None"
)


def _always() -> bool:
    return True


class Constant:
    """A tensor known before the program runs; loaded on first use and hashed once.

    ``digest`` is given if the tensor was hashed before. ``is_held`` says that its owner has it in
    memory in any case, so that an artifact need not have it, too. Where its owner may write to it,
    ``is_current`` tells whether that has not happened since it was made.
    """

    __slots__ = ("_array", "_digest", "_load", "is_current", "is_held", "type")

    def __init__(
        self,
        type_: TensorType,
        load: Callable[[], Array],
        digest: str | None = None,
        is_held: bool = False,
        is_current: Callable[[], bool] = _always,
    ) -> None:
        if not type_.is_static:
            raise GraphError(f"A constant of type {type_} must have dims that are ints.")
        self.type = type_
        self._load: Callable[[], Array] | None = load
        self._array: Array | None = None
        self._digest = digest
        self.is_held, self.is_current = is_held, is_current

    @staticmethod
    def of(array: Any) -> Constant:
        """Wrap an array; a writable one is copied, so that nobody can change it later."""
        array = np.asarray(array)
        found = dtype(array.dtype)
        if found is string:
            array = array.astype(object)
        if array.flags.writeable or not array.flags.c_contiguous or array.dtype != found.numpy:
            array = np.array(array, dtype=found.numpy, order="C")
            array.flags.writeable = False
        return Constant(TensorType(found, array.shape), lambda: array)

    @property
    def array(self) -> Array:
        """The elements; read-only."""
        if self._array is None:
            assert self._load is not None
            array = self._load()
            if array.shape != self.type.shape or array.dtype != self.type.dtype.numpy:
                raise GraphError(
                    f"A constant declared as {self.type} loaded {array.dtype}{list(array.shape)}."
                )
            array = array.view()
            array.flags.writeable = False
            self._array, self._load = array, None
        return self._array

    @property
    def digest(self) -> str:
        """SHA-256 over type and elements, as hex."""
        if self._digest is None:
            sha = hashlib.sha256(f"{self.type}\n".encode())
            if self.type.dtype is string:
                sha.update(json.dumps(self.array.tolist()).encode())
            else:
                # A view as bytes: ml_dtypes arrays do not support the buffer protocol.
                flat = np.ascontiguousarray(self.array).reshape(-1).view(np.uint8)
                sha.update(flat.data)
            self._digest = sha.hexdigest()
        return self._digest


class Value:
    """What a node can use: an input, a constant, or an output of a node."""

    __slots__ = ("constant", "index", "name", "node", "type")

    def __init__(
        self,
        type_: Type,
        name: str | None = None,
        constant: Constant | None = None,
        node: Node | None = None,
        index: int = 0,
    ) -> None:
        self.type = type_
        self.name = name
        self.constant = constant
        self.node = node
        self.index = index

    def __repr__(self) -> str:
        made = "constant" if self.constant else f"{self.node.op}" if self.node else "input"
        return f"<{made} {self.name or ''}: {brief(self.type)}>"

    @property
    def tensor(self) -> TensorType:
        """The type, which must be a TensorType."""
        if not isinstance(self.type, TensorType):
            raise GraphError(f"A tensor was expected here, found {self.type}.")
        return self.type


class Node:
    """One use of an op.

    ``inputs`` has None for an absent optional operand; ``operands`` are those that are present.
    """

    __slots__ = ("attrs", "inputs", "name", "op", "operands", "outputs", "source")

    def __init__(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, Attr],
        types: Sequence[Type],
        *,
        names: Sequence[str | None] = (),
        name: str | None = None,
        source: str | None = None,
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.operands = tuple([v for v in self.inputs if v is not None])
        self.attrs: Mapping[str, Attr] = MappingProxyType(dict(attrs))
        self.name = name
        self.source = source
        padded = [*names, *([None] * (len(types) - len(names)))]
        self.outputs = tuple(
            Value(type_, padded[index], None, self, index) for index, type_ in enumerate(types)
        )

    def __repr__(self) -> str:
        types = ", ".join(brief(value.type) for value in self.outputs)
        return f"<node {self.name or ''} {self.op}: {types}>"

    @property
    def types(self) -> tuple[Type, ...]:
        return tuple(value.type for value in self.outputs)

    def graphs(self) -> Iterator[tuple[str, Graph]]:
        """Yield the subgraphs with the names of their attributes."""
        for key, attr in self.attrs.items():
            if isinstance(attr, Graph):
                yield key, attr

    def copy(
        self,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, Attr] | None = None,
        types: Sequence[Type] | None = None,
    ) -> Node:
        """Make the same node with other operands."""
        return Node(
            self.op,
            inputs,
            self.attrs if attrs is None else attrs,
            self.types if types is None else types,
            names=[value.name for value in self.outputs],
            name=self.name,
            source=self.source,
        )


class Graph:
    """Nodes between inputs and outputs, in an order in which they can run."""

    def __init__(
        self,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        nodes: Iterable[Node] | None = None,
        *,
        name: str = "main",
        output_names: Sequence[str] | None = None,
    ) -> None:
        """Collect the nodes from the outputs, unless they are given."""
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.nodes = tuple(order(self.outputs) if nodes is None else nodes)
        names = [v.name or f"output{i}" for i, v in enumerate(self.outputs)]
        self.output_names = tuple(names if output_names is None else output_names)

    def __str__(self) -> str:
        from fusewire.ir.text import print_graph

        return print_graph(self)

    def _repr_html_(self) -> str:
        """Show the ports in a notebook, and the text of the graph folded away."""
        from fusewire.ir.text import graph_html

        return graph_html(self)

    def __repr__(self) -> str:
        return (
            f"<graph {self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes, "
            f"{len(self.outputs)} outputs>"
        )

    @cached_property
    def constants(self) -> tuple[Value, ...]:
        """Constants in the order of their first use, without those of subgraphs."""
        used = uses(self)
        return tuple(dict.fromkeys(value for value in used if value.constant is not None))

    @cached_property
    def users(self) -> Mapping[Value, tuple[Node, ...]]:
        """Nodes that use each value; one entry per use."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.operands:
                users.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in users.items()}

    def walk(self) -> Iterator[Graph]:
        """Yield this graph and all graphs inside it."""
        stack = [self]
        while stack:
            graph = stack.pop()
            yield graph
            for node in graph.nodes:
                stack.extend(body for _, body in node.graphs())


def uses(graph: Graph) -> Iterator[Value]:
    """Yield every use of a value, in order: operands of nodes, then outputs."""
    for node in graph.nodes:
        yield from node.operands
    yield from graph.outputs


def order(outputs: Iterable[Value], known: Container[Node] = ()) -> list[Node]:
    """List the nodes that outputs need, except known ones, each after what it uses. Linear."""
    done: set[Node] = set()
    ordered: list[Node] = []
    for output in outputs:
        if output.node is None or output.node in done or output.node in known:
            continue
        stack: list[tuple[Node, Iterator[Value]]] = [(output.node, iter(output.node.operands))]
        done.add(output.node)
        while stack:
            node, operands = stack[-1]
            for value in operands:
                maker = value.node
                if maker is not None and maker not in done and maker not in known:
                    done.add(maker)
                    stack.append((maker, iter(maker.operands)))
                    break
            else:
                ordered.append(node)
                stack.pop()
    return ordered


def is_current(graph: Graph) -> bool:
    """Tell whether no constant of a graph was written to since it was made.

    If one was, nothing may be recorded under the digest of the graph.
    """
    held = (value.constant for inner in graph.walk() for value in inner.constants)
    return all(constant.is_current() for constant in held if constant is not None)
