"""The two hashes of a graph, the same in every process.

The *structural* hash ignores names, the values of large constants and the spelling of symbols: it
covers what decides speed. The *exact* hash adds the digest of every constant: it covers what
decides the answer. Neither depends on the order of independent nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from fusewire.ir.dims import Apply, Dim, Sym, Symbol, substitute, symbol, symbols, unbacked
from fusewire.ir.graph import Attr, Graph, Value, order
from fusewire.ir.text import format_attr
from fusewire.ir.types import (
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    substitute_type,
    type_symbols,
)

# A constant this small is more likely a size, an axis or a scale than a weight, and compilers
# specialise on it: its value belongs to the structure.
SMALL_ELEMENTS = 8


def structural_hash(graph: Graph) -> str:
    """Hash what decides speed: ops, types, attributes, edges, small constants."""
    return _Hasher(exact=False).graph(graph)


def exact_hash(graph: Graph) -> str:
    """Hash what decides the answer: the structure and every constant."""
    return _Hasher(exact=True).graph(graph)


class _Hasher:
    """One pass over a graph; symbols are renamed in the order in which they appear."""

    def __init__(self, exact: bool, names: dict[Symbol, Dim] | None = None) -> None:
        self._exact = exact
        self._names: dict[Symbol, Dim] = {} if names is None else names
        self._types: dict[Type, str] = {}
        # Symbols keep their new names: what was substituted once holds for the whole graph.
        self._known: dict[Apply, Dim] = {}

    def graph(self, graph: Graph) -> str:
        return hashlib.sha256("\n".join(self.lines(graph)).encode()).hexdigest()

    def lines(self, graph: Graph) -> Iterator[str]:
        numbers: dict[Value, int] = {}
        for value in graph.inputs:
            numbers[value] = len(numbers)
            yield f"input {self.type(value.type)}"
        for node in order(graph.outputs):
            for value in node.operands:
                yield from self.constant(value, numbers)
            operands = " ".join(["-" if v is None else str(numbers[v]) for v in node.inputs])
            attrs = " ".join([f"{k}={self.attr(a)}" for k, a in sorted(node.attrs.items())])
            types = " ".join([self.type(v.type) for v in node.outputs])
            for value in node.outputs:
                numbers[value] = len(numbers)
            yield f"{node.op}({operands}) {attrs} : {types}"
        for value in graph.outputs:
            yield from self.constant(value, numbers)
            yield f"return {numbers[value]}"

    def constant(self, value: Value, numbers: dict[Value, int]) -> Iterator[str]:
        if value in numbers or value.constant is None:
            return
        numbers[value] = len(numbers)
        small = value.constant.type.size in range(SMALL_ELEMENTS + 1)
        digest = value.constant.digest if self._exact or small else ""
        yield f"constant {value.constant.type} {digest}"

    def rename(self, found: Iterable[Symbol]) -> None:
        for item in found:
            if item not in self._names:
                make = unbacked if item.unbacked else symbol
                self._names[item] = make(f"s{len(self._names)}")

    def type(self, type_: Type) -> str:
        text = self._types.get(type_)
        if text is None:
            self.rename(type_symbols(type_))
            text = self._types[type_] = str(substitute_type(type_, self._names, self._known))
        return text

    def attr(self, attr: Attr) -> str:
        if isinstance(attr, Sym):
            self.rename(symbols(attr))
            return str(substitute(attr, self._names, self._known))
        if isinstance(attr, Graph):
            return _Hasher(self._exact, dict(self._names)).graph(attr)
        if isinstance(attr, tuple):
            return f"({','.join([self.attr(item) for item in attr])})"
        if isinstance(attr, TensorType | SequenceType | OptionalType):
            return self.type(attr)
        return format_attr(attr)
