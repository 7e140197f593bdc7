"""Ops on sizes: functions of arrays whose elements are ints, ``Sym`` or bools.

An op's ``symbolic`` takes such arrays of objects and the op's attributes, as its reference takes
numbers. What cannot be known raises DimError; ``fusewire.facts.known`` then gives up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from fusewire import dtypes
from fusewire.errors import DimError
from fusewire.ir.dims import Dim, dim_max, dim_min, floordiv, is_at_most, is_equal, lower_bound
from fusewire.ir.graph import Array, Attr
from fusewire.ops.inference import axes_of

Symbolic: TypeAlias = Callable[..., Any]
# No longer list of sizes is followed.
MOST_FOLLOWED = 64


def unknown(why: str) -> DimError:
    """Say why an element is not known."""
    return DimError(f"An element is not known: {why}.")


def _divided(left: Dim, right: Dim) -> Dim:
    """Integers divided by 0 give 0, so a divisor that may be 0 has no simple form."""
    if right == 0:
        return 0
    bound = lower_bound(right)
    if not isinstance(right, int) and (bound is None or bound < 1):
        raise unknown(f"{right} may be 0")
    return floordiv(left, right)


def _rest(left: Dim, right: Dim) -> Dim:
    return 0 if right == 0 else left - _divided(left, right) * right


def _unsigned(operation: Callable[[Dim, Dim], Dim]) -> Callable[[Dim, Dim], Dim]:
    """Limit to operands of which both signs are known, so that all roundings agree."""

    def apply(left: Dim, right: Dim) -> Dim:
        if not (is_at_most(0, left) and is_at_most(0, right)):
            raise unknown(f"the signs of {left} and {right} are not")
        return operation(left, right)

    return apply


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return bool(left == right)
    answer = is_equal(left, right)
    if answer is None:
        raise unknown(f"{left} and {right} may be equal")
    return answer


def _is_less(left: Any, right: Any) -> bool:
    if is_at_most(left + 1, right):
        return True
    if is_at_most(right, left):
        return False
    raise unknown(f"{left} may be less than {right}")


def _magnitude(dim: Dim) -> Dim:
    if is_at_most(0, dim):
        return dim
    if is_at_most(dim, 0):
        return -dim
    raise unknown(f"the sign of {dim} is not")


def _each(function: Callable[..., Any], operands: int) -> Symbolic:
    """Apply a function of dims element by element."""
    applied: Symbolic = np.frompyfunc(function, operands, 1)
    return applied


add = _each(lambda a, b: a + b, 2)
subtract = _each(lambda a, b: a - b, 2)
multiply = _each(lambda a, b: a * b, 2)
negative = _each(lambda a: -a, 1)
magnitude = _each(_magnitude, 1)
floor_divide = _each(_divided, 2)
truncate_divide = _each(_unsigned(_divided), 2)
remainder = _each(_rest, 2)
fmod = _each(_unsigned(_rest), 2)
maximum = _each(dim_max, 2)
minimum = _each(dim_min, 2)
equal = _each(_is_equal, 2)
not_equal = _each(lambda a, b: not _is_equal(a, b), 2)
less = _each(_is_less, 2)
greater = _each(lambda a, b: _is_less(b, a), 2)
less_equal = _each(lambda a, b: not _is_less(b, a), 2)
greater_equal = _each(lambda a, b: not _is_less(a, b), 2)
logical_and = _each(lambda a, b: a and b, 2)
logical_or = _each(lambda a, b: a or b, 2)
logical_xor = _each(lambda a, b: a != b, 2)
logical_not = _each(lambda a: not a, 1)
where = _each(lambda condition, a, b: a if condition else b, 3)


def reduced_by(function: Symbolic) -> Symbolic:
    """Combine elements over axes."""
    ufunc: Any = function

    def reduced(x: Array, axes: Any, keepdims: bool) -> Array:
        if x.size == 0:
            raise unknown("there is none to combine")
        for axis in reversed(axes_of(axes, x.ndim)):
            x = np.asarray(ufunc.reduce(x, axis, keepdims=keepdims), object)
        return x

    return reduced


def cast(x: Array, dtype: dtypes.DType, saturate: bool) -> Array:
    """Change between numbers and bools; a size is taken to fit the dtype it is kept in."""
    to_bool = dtype is dtypes.bool_

    def one(item: Any) -> Any:
        if isinstance(item, bool):
            return item if to_bool else int(item)
        return not _is_equal(item, 0) if to_bool else item

    return np.asarray(np.frompyfunc(one, 1, 1)(x), object)


def range_(start: Array, stop: Array, step: Array, count: Attr) -> Array:
    """Count from start to stop."""
    first, last, by = start.item(), stop.item(), step.item()
    if not all(isinstance(item, int) for item in (first, last, by)) or by == 0:
        raise unknown("an end of the range is not")
    numbers = range(first, last, by)
    if len(numbers) > MOST_FOLLOWED:
        raise unknown("the range is long")
    return np.array(numbers, object)
