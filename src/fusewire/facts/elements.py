"""Known elements of small int and bool tensors, as dims: the sizes of shapes.

``shape_of(x)`` of a float32[n, 3] is (n, 3), and that is followed through the arithmetic that
programs do on shapes (each op's ``symbolic``). Elements are NumPy arrays of objects: ints, ``Sym``
or bools. A size is taken to fit the dtype it is kept in; a number is not, so what would wrap is
not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from fusewire import dtypes
from fusewire.errors import DimError
from fusewire.ir.dims import Dim, Sym
from fusewire.ir.graph import Array, Attr, Graph, Node, Value
from fusewire.ir.types import TensorType, Type
from fusewire.ops.declare import Op, Trait
from fusewire.ops.symbolic import MOST_FOLLOWED, unknown
from fusewire.ops.table import get_op

Elements: TypeAlias = Array
TRACKED = {of.name: of.range for of in (dtypes.int64, dtypes.int32, dtypes.bool_)}


def is_tracked(type_: Type) -> bool:
    """Tell whether the elements of such a tensor are followed."""
    if not isinstance(type_, TensorType) or type_.dtype.name not in TRACKED:
        return False
    return isinstance(type_.size, int) and type_.size <= MOST_FOLLOWED


def constant_elements(value: Value) -> Elements | None:
    """Read the elements of a constant."""
    if value.constant is None or not is_tracked(value.type):
        return None
    return value.constant.array.astype(object)


def elements_of(
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
        return found[value] if value in found else constant_elements(value)

    for inner in body.nodes:
        outputs = elements_of(inner, [read(v) for v in inner.inputs], shape)
        found.update(zip(inner.outputs, outputs, strict=True))
    return tuple(read(v) for v in body.outputs)


def _checked(found: Any, type_: Type) -> Elements | None:
    """Give elements as an array of the right shape, or None when one would not fit."""
    if found is None or not is_tracked(type_):
        return None
    assert isinstance(type_, TensorType)
    array = np.asarray(found, object)
    low, high = TRACKED[type_.dtype.name]
    for item in array.flat:
        if isinstance(item, Sym):
            if any(not low <= factor <= high for _, factor in item.terms):
                return None
        elif not low <= item <= high:
            return None
    return array if array.shape == type_.shape else None
