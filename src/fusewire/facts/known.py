"""Facts about values beyond their types, kept up to date while a graph is rewritten.

Known are counts of uses, and elements of small int and bool tensors, as dims: the sizes of shapes.
``shape_of(x)`` of a float32[n, 3] is (n, 3), and that is followed through the arithmetic that
programs do on shapes (each op's ``symbolic``). Elements are NumPy arrays of objects: ints, ``Sym``
or bools. A size is taken to fit the dtype it is kept in; a number is not, so what would wrap is
not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fusewire import dtypes
from fusewire.errors import DimError
from fusewire.ir.dims import Dim, Sym, Symbol, substitute
from fusewire.ir.graph import Array, Attr, Graph, Node, Value, uses
from fusewire.ir.types import TensorType, Type
from fusewire.ops.declare import Op, Trait
from fusewire.ops.symbolic import MOST_FOLLOWED, unknown
from fusewire.ops.table import get_op

Elements: TypeAlias = Array
_TRACKED = {of.name: of.range for of in (dtypes.int64, dtypes.int32, dtypes.bool_)}


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
            return _constant_elements(value)
        return self._elements.get(value)

    def shape(self, value: Value) -> Sequence[Dim]:
        """Return the shape of a value, with resolved symbols replaced."""
        shape = value.tensor.shape
        return tuple(substitute(d, self._bindings) for d in shape) if self._bindings else shape

    def outputs(self, node: Node) -> Sequence[Elements | None]:
        """Return the elements of a node's outputs; its operands must be learnt before."""
        if not any(_is_tracked(v.type) for v in node.outputs):
            return [None] * len(node.outputs)
        return _elements_of(node, [self.elements(v) for v in node.inputs], self.shape)

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


def _is_tracked(type_: Type) -> bool:
    """Tell whether the elements of such a tensor are followed."""
    if not isinstance(type_, TensorType) or type_.dtype.name not in _TRACKED:
        return False
    return isinstance(type_.size, int) and type_.size <= MOST_FOLLOWED


def _constant_elements(value: Value) -> Elements | None:
    """Read the elements of a constant."""
    if value.constant is None or not _is_tracked(value.type):
        return None
    return value.constant.array.astype(object)


def _elements_of(
    node: Node, known: Sequence[Elements | None], shape: Callable[[Value], Sequence[Dim]]
) -> Sequence[Elements | None]:
    """Find the elements of a node's outputs from those of its operands, None where unknown.

    ``shape`` tells the shape of a value as far as it is known.
    """
    nothing = [None] * len(node.outputs)
    try:
        found = _apply(node, known, shape)
    except (DimError, LookupError, ValueError):
        # Not followed, or wrong: the run will say so.
        return nothing
    outputs = found if isinstance(found, tuple) else (found,)
    return [_checked(x, v.type) for x, v in zip(outputs, node.outputs, strict=True)]


def _apply(
    node: Node, known: Sequence[Elements | None], shape: Callable[[Value], Sequence[Dim]]
) -> Any:
    op = get_op(node.op)
    if op.symbolic is not None and op.is_(Trait.SHAPE):
        return op.symbolic(shape(node.operands[0]))
    if any(x is None and v is not None for x, v in zip(known, node.inputs, strict=True)):
        raise unknown("those of an operand are not")
    if op.symbolic is not None:
        return op.symbolic(*known, **node.attrs)
    if op.expand is not None and op.traits & {Trait.MOVEMENT, Trait.ELEMENTWISE}:
        return _expanded(op, node, known, shape)
    if op.reference is not None and op.is_(Trait.MOVEMENT) and not op.is_(Trait.HOST):
        return _moved(op, node, known)
    raise unknown(f"{node.op} is not followed")


def _moved(op: Op[Any], node: Node, known: Sequence[Elements | None]) -> Any:
    """Run the reference of an op that only moves elements on the dims themselves."""
    operands, _, _ = op.parameters
    if any(isinstance(item, Sym) for attr in node.attrs.values() for item in _flat(attr)):
        raise unknown("an attribute has a symbol")
    if "mode" in node.attrs:
        raise unknown("a border of objects is not one of numbers")
    given: list[Any] = list(known)
    for position, name in enumerate(operands):
        if name in op.index_operands and given[position] is not None:
            if not all(isinstance(item, int) for item in given[position].flat):
                raise unknown("an index is not")
            given[position] = given[position].astype(np.int64)
    assert op.reference is not None
    return op.reference(*given, **node.attrs)


def _flat(attr: Attr) -> Sequence[Attr]:
    if isinstance(attr, tuple):
        return [item for part in attr for item in _flat(part)]
    return [attr]


def _expanded(
    op: Op[Any],
    node: Node,
    known: Sequence[Elements | None],
    shape: Callable[[Value], Sequence[Dim]],
) -> Any:
    """Follow the expansion of a composite."""
    body: Graph = op.expansion(node)
    found: dict[Value, Elements | None] = dict(
        zip(body.inputs, [x for x in known if x is not None], strict=True)
    )

    def read(value: Value | None) -> Elements | None:
        if value is None:
            return None
        return found[value] if value in found else _constant_elements(value)

    for inner in body.nodes:
        outputs = _elements_of(inner, [read(v) for v in inner.inputs], shape)
        found.update(zip(inner.outputs, outputs, strict=True))
    return tuple(read(v) for v in body.outputs)


def _checked(found: Any, type_: Type) -> Elements | None:
    """Give elements as an array of the right shape, or None when one would not fit."""
    if found is None or not _is_tracked(type_):
        return None
    assert isinstance(type_, TensorType)
    array = np.asarray(found, object)
    low, high = _TRACKED[type_.dtype.name]
    for item in array.flat:
        if isinstance(item, Sym):
            if any(not low <= factor <= high for _, factor in item.terms):
                return None
        elif not low <= item <= high:
            return None
    return array if array.shape == type_.shape else None
