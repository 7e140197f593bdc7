"""Facts about values beyond their types, kept up to date while a graph is rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewire.ir.dims import Dim, Symbol, substitute
from fusewire.ir.graph import Graph, Node, Value, uses
from fusewire.rewrite.elements import Elements, constant_elements, elements_of, is_tracked


class Facts:
    """Counts of uses, and elements of small int tensors; ``bindings`` are symbols found out."""

    def __init__(self, graph: Graph, bindings: Mapping[Symbol, Dim] | None = None) -> None:
        self._bindings = bindings or {}
        self._elements: dict[Value, Elements] = {}
        self._uses: dict[Value, int] = {}
        for value in uses(graph):
            self._uses[value] = self._uses.get(value, 0) + 1

    def uses(self, value: Value) -> int:
        """Count the uses of a value that is in the graph, each place of a node by itself."""
        return self._uses.get(value, 0)

    def elements(self, value: Value | None) -> Elements | None:
        """Tell the elements of a small int or bool tensor as dims, or None."""
        if value is None:
            return None
        if value.constant is not None:
            return constant_elements(value)
        return self._elements.get(value)

    def shape(self, value: Value) -> Sequence[Dim]:
        """Tell the shape of a value with all symbols replaced that were found out."""
        shape = value.tensor.shape
        return tuple(substitute(d, self._bindings) for d in shape) if self._bindings else shape

    def outputs(self, node: Node) -> Sequence[Elements | None]:
        """Tell the elements of what a node makes; its operands were learnt before."""
        if not any(is_tracked(v.type) for v in node.outputs):
            return [None] * len(node.outputs)
        return elements_of(node, [self.elements(v) for v in node.inputs], self.shape)

    def learn(self, node: Node) -> None:
        """Remember what a node makes."""
        for value, elements in zip(node.outputs, self.outputs(node), strict=True):
            if elements is not None:
                self._elements[value] = elements

    def know(self, value: Value, same: Value) -> None:
        """Remember that a value has the elements of another."""
        elements = self.elements(same)
        if elements is not None:
            self._elements[value] = elements

    def acquire(self, node: Node) -> None:
        """Count the uses that a new node makes."""
        for value in node.operands:
            self._uses[value] = self._uses.get(value, 0) + 1

    def release(self, node: Node) -> None:
        """Take back the uses of a node that is gone, and of all that only it needed."""
        gone = [node]
        while gone:
            for value in gone.pop().operands:
                left = self._uses[value] = self._uses.get(value, 0) - 1
                maker = value.node
                if left == 0 and maker is not None and not any(map(self.uses, maker.outputs)):
                    gone.append(maker)

    def transfer(self, old: Value, new: Value) -> None:
        """Let the users of one value use another."""
        self._uses[new] = self._uses.get(new, 0) + self._uses.pop(old, 0)
