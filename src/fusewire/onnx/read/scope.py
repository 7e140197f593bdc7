"""Names of one ONNX graph, and bodies that capture outer values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusewire.errors import FormatError
from fusewire.ir.builder import inline
from fusewire.ir.dims import Symbol, lone_symbol
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.onnx.notes import attr_symbols


@dataclass
class ImportScope:
    """What the names of a graph stand for; a body sees the names around it, a function does not."""

    outer: ImportScope | None = None
    values: dict[str, Value] = field(default_factory=dict)
    nodes: dict[Node, None] = field(default_factory=dict)

    def inner(self) -> ImportScope:
        """Begin the scope of a body."""
        return ImportScope(self)

    def find(self, name: str) -> Value:
        """Look a name up from the inside out."""
        scope: ImportScope | None = self
        while scope is not None:
            found = scope.values.get(name)
            if found is not None:
                return found
            scope = scope.outer
        raise FormatError(
            f"The name {name!r} is used and nothing makes it before. The file is broken: "
            "nodes must stand after what they use."
        )


@dataclass(frozen=True)
class ImportedBody:
    """An imported subgraph: its own inputs, what it gives, its nodes."""

    name: str
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    nodes: Sequence[Node]

    def captured(self, carriers: Mapping[Symbol, Value]) -> list[Value]:
        """List values from around it that it uses, and those that tell it a size."""
        own = {*self.inputs, *(v for node in self.nodes for v in node.outputs)}
        used = (*(v for node in self.nodes for v in node.operands), *self.outputs)
        outer = dict.fromkeys(v for v in used if v not in own and v.constant is None)
        told = {*_lone(own), *_lone(outer)}
        for symbol in dict.fromkeys(self._symbols(outer)):
            carrier = carriers.get(symbol)
            if symbol not in told and carrier is not None and carrier not in own:
                outer[carrier] = None
                told.update(_lone([carrier]))
        return list(outer)

    def _symbols(self, outer: Iterable[Value]) -> Iterator[Symbol]:
        for node in self.nodes:
            for type_ in node.types:
                yield from type_symbols(type_)
            for attr in node.attrs.values():
                yield from attr_symbols(attr)
        for value in (*self.inputs, *outer):
            yield from type_symbols(value.type)

    def close(self, captured: Sequence[Value]) -> Graph:
        """Make a graph that takes captured values as further inputs."""
        raw = Graph([*self.inputs, *captured], self.outputs, self.nodes)
        extra = [Value(v.type, f"captured{i}") for i, v in enumerate(captured)]
        inputs = [*self.inputs, *extra]
        names = [f"output{i}" for i in range(len(self.outputs))]
        return Graph(inputs, inline(raw, inputs), name=self.name, output_names=names)


def _lone(values: Iterable[Value]) -> Iterator[Symbol]:
    for value in values:
        if isinstance(value.type, TensorType):
            for dim in value.type.shape:
                alone = lone_symbol(dim)
                if alone is not None:
                    yield alone
