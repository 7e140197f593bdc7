"""Check that elements lie within intervals, are in order or finite, and say which one is not.

A warm call uses this module too: it must import little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from fusewire.errors import BudgetError, CheckError
from fusewire.ir.graph import Array

# What is asked of elements: that each lies within its interval, is not below the one before it
# along the last axis, is finite, or that boxes do not take too many samples.
Rule: TypeAlias = Literal["within", "ordered", "finite", "sampled"]
_SAYS = {"ordered": "it must not be below the one before it", "finite": "it must be finite"}


# What engines keep of each sample of all boxes: 32 bytes in OpenVINO 2026.2, and 48 or 64 of those
# of one box on each thread in ONNX Runtime 1.31.1. Both count samples in no more than 32 bits.
_SAMPLE_BYTES = 64
_MOST_SAMPLES = 2**31 - 1
_MIB = 1 << 20


@dataclass(frozen=True)
class Samples:
    """How many samples boxes take of which each has as many as it is large.

    A box has ``bins`` along both axes, and ``scale`` takes it to the image.
    """

    bins: tuple[int, int]
    scale: float

    def count(self, boxes: Array) -> float:
        """Return no less than all boxes take that are [x0, y0, x1, y1].

        Engines allocate for a box whose ends are both before its start, too, and scale corners in
        float32, or in the dtype of the boxes.
        """
        rounding = 2.0**-6 if boxes.dtype.itemsize == 2 else 2.0**-21
        with np.errstate(over="ignore", invalid="ignore"):
            corners = np.asarray(boxes, np.float64) * self.scale
            slack = np.abs(corners).max(1) * rounding + 1
            widths, heights = np.abs(corners[:, 2:] - corners[:, :2]).T + slack
            return float(((heights + self.bins[0]) * (widths + self.bins[1])).sum())

    def check(self, boxes: Array, label: str, operand: str, most_bytes: int | None) -> None:
        """Raise BudgetError if they take more than an engine counts, or than so many bytes hold."""
        count = self.count(boxes)
        limit = math.inf if most_bytes is None else most_bytes
        # Also where the sum is no number.
        if not (count <= _MOST_SAMPLES and count * _SAMPLE_BYTES <= limit):
            most = min(limit, _MOST_SAMPLES * _SAMPLE_BYTES)
            raise BudgetError(
                f"{label}: the samples of {operand} need {count * _SAMPLE_BYTES / _MIB:,.0f} MiB; "
                f"the limit is {most / _MIB:,.0f} MiB. Raise memory_limit, give smaller boxes, or "
                "set how many samples a box takes."
            )


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
