"""Check that elements lie within intervals, are in order or finite, and say which one is not.

A warm call uses this module too: it must import little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from fusewire.errors import CheckError
from fusewire.ir.graph import Array

# What is asked of elements: that each lies within its interval, is not below the one before it
# along the last axis, or is finite.
Rule: TypeAlias = Literal["within", "ordered", "finite"]
_SAYS = {"ordered": "it must not be below the one before it", "finite": "it must be finite"}


def check_elements(
    array: Array,
    intervals: Sequence[tuple[int, int]],
    ignored: int | None,
    label: str,
    operand: str,
    input_name: str | None = None,
    rule: Rule = "within",
) -> None:
    """Raise CheckError for the first element outside its interval, both ends of which are inside.

    One interval is for all elements, several are for the places along the last axis. The number
    ``ignored`` is allowed as well. ``label`` names the node, and ``input_name`` the program's
    input that the operand comes from.
    """
    if array.size == 0:
        return
    if rule == "within":
        if not intervals or are_within(array, intervals):
            return
        bad = _outside(array, intervals)
        if ignored is not None:
            bad &= array != ignored
    else:
        bad = _unordered(array) if rule == "ordered" else ~np.isfinite(array)
    if not bad.any():
        return
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    at = f"[{', '.join(map(str, place))}]" if place else ""
    source = "" if input_name is None else f" The operand comes from the input {input_name}."
    allowed = _SAYS.get(rule) or _allowed(*intervals[place[-1] if len(intervals) > 1 else 0])
    raise CheckError(f"{label}: {operand}{at} is {array[place].item()}; {allowed}.{source}")


def _allowed(low: int, high: int) -> str:
    return f"it must be from {low} to {high}" if low <= high else "no number is allowed"


def _unordered(array: Array) -> Array:
    bad = np.zeros(array.shape, np.bool_)
    bad[..., 1:] = array[..., 1:] < array[..., :-1]
    return bad


def is_within(array: Array, low: int, high: int) -> bool:
    """Tell whether all elements, which are integers, are between two numbers, or are one of them.

    The places of the extremes are looked for, which runs through less code than a reduction does or
    than a list of the elements: a large model evicts all code from the caches
    (benchmarks/results/tail.md).
    """
    return not array.size or (
        array.item(array.argmin()) >= low and array.item(array.argmax()) <= high
    )


def are_within(array: Array, intervals: Sequence[tuple[int, int]]) -> bool:
    """Tell whether all elements lie within their intervals."""
    if len(intervals) == 1:
        return is_within(array, *intervals[0])
    return not _outside(array, intervals).any()


def _outside(array: Array, intervals: Sequence[tuple[int, int]]) -> Array:
    lows, highs = _ends(array, intervals)
    return np.asarray((array < lows) | (array > highs))


def _ends(array: Array, intervals: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
    """Return the ends as Python ints, or as int64 arrays where they differ along the last axis.

    NumPy compares Python ints with arrays of any integer dtype exactly.
    """
    if len(intervals) == 1:
        return intervals[0]
    lows, highs = zip(*intervals, strict=True)
    return np.array(lows, np.int64), np.array(highs, np.int64)
