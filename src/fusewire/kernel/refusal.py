"""Decide whether a node's kernels can be printed, by trying it once per kind.

Two nodes are of a kind if op, types and attributes are equal. What a printer refuses is up to the
backend's ``PrintCheck``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import lru_cache

from fusewire.errors import FusewireError
from fusewire.ir.graph import Graph, Node, Value
from fusewire.kernel.form import Kernel
from fusewire.kernel.lower.region import lower


class PrintCheck(abc.ABC):
    """What a backend's printer says to kernels. Hashable, because answers are remembered."""

    @abc.abstractmethod
    def refusal(self, node: Node, kernels: Sequence[Kernel]) -> str | None:
        """Answer None if all kernels of a node print, else why not; a FusewireError is as good."""


class _NodeKind:
    """A node by what its kernels depend on, apart from the graph that it is in."""

    def __init__(self, node: Node) -> None:
        self._node = node
        types = tuple(str(value.type) for value in (*node.operands, *node.outputs))
        left_out = tuple(value is None for value in node.inputs)
        # A graph in an attribute is one of its own kind.
        attrs = tuple(
            (key, value if isinstance(value, Graph) else repr(value))
            for key, value in sorted(node.attrs.items())
        )
        self._key = (node.op, types, left_out, attrs)

    def alone(self) -> Graph:
        """Make the graph of the node by itself, and forget the node: it holds on to its graph."""
        node = self._node
        copies = {value: Value(value.type, f"x{n}") for n, value in enumerate(node.operands)}
        inputs = [None if value is None else copies[value] for value in node.inputs]
        copy = Node(node.op, inputs, node.attrs, [value.type for value in node.outputs])
        self._node = copy
        return Graph(list(copies.values()), list(copy.outputs), [copy])

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NodeKind) and self._key == other._key


def print_refusal(node: Node, check: PrintCheck) -> str | None:
    """Answer None for a node that kernels compute and a backend prints, else why not."""
    return _answer(_NodeKind(node), check)


@lru_cache(4096)
def _answer(kind: _NodeKind, check: PrintCheck) -> str | None:
    graph = kind.alone()
    try:
        return check.refusal(graph.nodes[0], lower(graph).kernels)
    except FusewireError as error:
        return str(error)
