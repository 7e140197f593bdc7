"""What is known of the elements of small int and bool tensors, as dims: the sizes of shapes.

``shape_of(x)`` of a float32[n, 3] is (n, 3), and that is followed through the arithmetic that
programs do on shapes. Elements are NumPy arrays of objects: ints, ``Sym`` or bools. A size is
taken to fit the dtype it is kept in; a number is not, so what would wrap is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fusewire import dtypes
from fusewire.errors import DimError
from fusewire.ir.dims import (
    Dim,
    Sym,
    dim_max,
    dim_min,
    floordiv,
    is_at_most,
    is_equal,
    lower_bound,
    size,
)
from fusewire.ir.graph import Array, Attr, Graph, Node, Value
from fusewire.ir.types import TensorType, Type
from fusewire.ops.declare import Op, Trait
from fusewire.ops.inference import axes_of
from fusewire.ops.table import get_op

Elements: TypeAlias = Array
TRACKED = {of.name: of.range for of in (dtypes.int64, dtypes.int32, dtypes.bool_)}
MOST = 64


def is_tracked(type_: Type) -> bool:
    """Tell whether the elements of such a tensor are followed."""
    if not isinstance(type_, TensorType) or type_.dtype.name not in TRACKED:
        return False
    return isinstance(type_.size, int) and type_.size <= MOST


def constant_elements(value: Value) -> Elements | None:
    """Read the elements of a constant."""
    if value.constant is None or not is_tracked(value.type):
        return None
    return value.constant.array.astype(object)


def _unknown(why: str) -> DimError:
    return DimError(f"An element is not known: {why}.")


def _divided(left: Dim, right: Dim) -> Dim:
    """Integers divided by 0 give 0, so a divisor that may be 0 has no simple form."""
    if right == 0:
        return 0
    bound = lower_bound(right)
    if not isinstance(right, int) and (bound is None or bound < 1):
        raise _unknown(f"{right} may be 0")
    return floordiv(left, right)


def _remainder(left: Dim, right: Dim) -> Dim:
    return 0 if right == 0 else left - _divided(left, right) * right


def _unsigned(operation: Callable[[Dim, Dim], Dim]) -> Callable[[Dim, Dim], Dim]:
    """Limit to operands of which both signs are known, so that all roundings agree."""

    def apply(left: Dim, right: Dim) -> Dim:
        if not (is_at_most(0, left) and is_at_most(0, right)):
            raise _unknown(f"the signs of {left} and {right} are not")
        return operation(left, right)

    return apply


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return bool(left == right)
    found = is_equal(left, right)
    if found is None:
        raise _unknown(f"{left} and {right} may be equal")
    return found


def _is_less(left: Any, right: Any) -> bool:
    if is_at_most(left + 1, right):
        return True
    if is_at_most(right, left):
        return False
    raise _unknown(f"{left} may be less than {right}")


def _chosen(condition: bool, left: Any, right: Any) -> Any:
    return left if condition else right


def _magnitude(dim: Dim) -> Dim:
    if is_at_most(0, dim):
        return dim
    if is_at_most(dim, 0):
        return -dim
    raise _unknown(f"the sign of {dim} is not")


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negative": lambda a: -a,
    "abs": _magnitude,
    "floor_divide": _divided,
    "truncate_divide": _unsigned(_divided),
    "remainder": _remainder,
    "fmod": _unsigned(_remainder),
    "maximum": dim_max,
    "minimum": dim_min,
    "equal": _is_equal,
    "not_equal": lambda a, b: not _is_equal(a, b),
    "less": _is_less,
    "greater": lambda a, b: _is_less(b, a),
    "less_equal": lambda a, b: not _is_less(b, a),
    "greater_equal": lambda a, b: not _is_less(a, b),
    "logical_and": lambda a, b: a and b,
    "logical_or": lambda a, b: a or b,
    "logical_xor": lambda a, b: a != b,
    "logical_not": lambda a: not a,
    "where": _chosen,
}
_UFUNCS = {
    name: np.frompyfunc(function, 3 if name == "where" else function.__code__.co_argcount, 1)
    for name, function in ELEMENTWISE.items()
}
REDUCTIONS: Mapping[str, np.ufunc] = {
    "reduce_sum": np.frompyfunc(ELEMENTWISE["add"], 2, 1),
    "reduce_prod": np.frompyfunc(ELEMENTWISE["multiply"], 2, 1),
    "reduce_max": np.frompyfunc(dim_max, 2, 1),
    "reduce_min": np.frompyfunc(dim_min, 2, 1),
    "reduce_all": np.frompyfunc(ELEMENTWISE["logical_and"], 2, 1),
    "reduce_any": np.frompyfunc(ELEMENTWISE["logical_or"], 2, 1),
}


def _reduced(ufunc: np.ufunc, x: Elements, axes: Any, keepdims: bool) -> Any:
    if x.size == 0:
        raise _unknown("there is none to combine")
    for axis in reversed(axes_of(axes, x.ndim)):
        x = np.asarray(ufunc.reduce(x, axis, keepdims=keepdims), object)
    return x


def _cast(x: Elements, dtype: dtypes.DType, saturate: bool) -> Elements:
    to_bool = dtype is dtypes.bool_

    def one(item: Any) -> Any:
        if isinstance(item, bool):
            return item if to_bool else int(item)
        return not _is_equal(item, 0) if to_bool else item

    return np.asarray(np.frompyfunc(one, 1, 1)(x), object)


def _range(start: Elements, stop: Elements, step: Elements, count: Attr) -> Elements:
    first, last, by = start.item(), stop.item(), step.item()
    if not all(isinstance(item, int) for item in (first, last, by)) or by == 0:
        raise _unknown("an end of the range is not")
    found = range(first, last, by)
    if len(found) > MOST:
        raise _unknown("the range is long")
    return np.array(found, object)


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
    if node.op in ("shape_of", "size_of"):
        dims = shape(node.operands[0])
        return np.array(dims, object) if node.op == "shape_of" else size(dims)
    op = get_op(node.op)
    if any(x is None and v is not None for x, v in zip(known, node.inputs, strict=True)):
        raise _unknown("those of an operand are not")
    if node.op in _UFUNCS:
        return _UFUNCS[node.op](*known)
    if node.op in REDUCTIONS:
        return _reduced(REDUCTIONS[node.op], *known, **node.attrs)  # type: ignore[arg-type] # attrs fit by the op's type rule
    if node.op in _SPECIAL:
        return _SPECIAL[node.op](*known, **node.attrs)
    if op.expand is not None and op.traits & {Trait.MOVEMENT, Trait.ELEMENTWISE}:
        return _expanded(op, node, known, shape)
    if op.reference is not None and op.is_(Trait.MOVEMENT) and not op.is_(Trait.HOST):
        return _moved(op, node, known)
    raise _unknown(f"{node.op} is not followed")


_SPECIAL: Mapping[str, Callable[..., Any]] = {"cast": _cast, "range": _range}


def _moved(op: Op[Any], node: Node, known: Sequence[Elements | None]) -> Any:
    """Run the reference of an op that only moves elements on the dims themselves."""
    operands, _, _ = op.parameters
    if any(isinstance(item, Sym) for attr in node.attrs.values() for item in _flat(attr)):
        raise _unknown("an attribute has a symbol")
    if "mode" in node.attrs:
        raise _unknown("a border of objects is not one of numbers")
    given: list[Any] = list(known)
    for position, name in enumerate(operands):
        if name in op.index_operands and given[position] is not None:
            if not all(isinstance(item, int) for item in given[position].flat):
                raise _unknown("an index is not")
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
