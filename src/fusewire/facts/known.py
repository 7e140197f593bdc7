"""Facts about values beyond their types, kept up to date while a graph is rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewire.facts.elements import Elements, constant_elements, elements_of, is_tracked
from fusewire.ir.dims import Dim, Symbol, substitute
from fusewire.ir.graph import Graph, Node, Value, uses


class Facts:
    """Counts of uses, and elements of small int tensors; ``bindings`` are resolved symbols."""

    def __init__(self, graph: Graph, bindings: Mapping[Symbol, Dim] | None = None) -> None:
        self._bindings = bindings or {}
        self._elements: dict[Value, Elements] = {}
        self._uses: dict[Value, int] = {}
        for value in uses(graph):
            self._uses[value] = self._uses.get(value, 0) + 1

    def uses(self, value: Value) -> int:
        """Count the uses of a value in the graph; a node that takes it twice counts twice."""
        return self._uses.get(value, 0)

    def elements(self, value: Value | None) -> Elements | None:
        """Return the elements of a small int or bool tensor as dims, or None."""
        if value is None:
            return None
        if value.constant is not None:
            return constant_elements(value)
        return self._elements.get(value)

    def shape(self, value: Value) -> Sequence[Dim]:
        """Return the shape of a value, with resolved symbols replaced."""
        shape = value.tensor.shape
        return tuple(substitute(d, self._bindings) for d in shape) if self._bindings else shape

    def outputs(self, node: Node) -> Sequence[Elements | None]:
        """Return the elements of a node's outputs; its operands must be learnt before."""
        if not any(is_tracked(v.type) for v in node.outputs):
            return [None] * len(node.outputs)
        return elements_of(node, [self.elements(v) for v in node.inputs], self.shape)

    def learn(self, node: Node) -> None:
        """Store the elements of a node's outputs."""
        for value, elements in zip(node.outputs, self.outputs(node), strict=True):
            if elements is not None:
                self._elements[value] = elements

    def know(self, value: Value, same: Value) -> None:
        """Store that a value has the elements of another."""
        elements = self.elements(same)
        if elements is not None:
            self._elements[value] = elements

    def acquire(self, node: Node) -> None:
        """Count the uses by a new node."""
        for value in node.operands:
            self._uses[value] = self._uses.get(value, 0) + 1

    def release(self, node: Node) -> None:
        """Subtract the uses by a removed node, and by all nodes that only it needed."""
        removed = [node]
        while removed:
            for value in removed.pop().operands:
                left = self._uses[value] = self._uses.get(value, 0) - 1
                maker = value.node
                if left == 0 and maker is not None and not any(map(self.uses, maker.outputs)):
                    removed.append(maker)

    def transfer(self, old: Value, new: Value) -> None:
        """Let the users of one value use another."""
        self._uses[new] = self._uses.get(new, 0) + self._uses.pop(old, 0)
