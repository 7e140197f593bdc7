"""Scores of outputs against the right ones, for samples of a user: a function of two lists each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fusewire.errors import CheckError
from fusewire.ir.graph import Array, HostValue

# The right outputs and those to score, to a score.
Metric: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], float]


def top1(right: Sequence[HostValue], outputs: Sequence[HostValue]) -> float:
    """Return the share of rows of the first output of floats whose largest element is the same.

    >>> top1([np.float32([[1, 2], [4, 3]])], [np.float32([[1, 2], [3, 4]])])
    0.5
    """
    for one, other in zip(right, outputs, strict=True):
        if isinstance(one, np.ndarray) and one.dtype.kind not in "biuSUO" and one.ndim:
            return float(np.mean(np.argmax(one, -1) == np.argmax(np.asarray(other), -1)))
    raise CheckError("top1 needs an output of floats with an axis of classes, and there is none.")


def cosine(right: Sequence[HostValue], outputs: Sequence[HostValue]) -> float:
    """Return the least cosine of the angle between an output and the right one.

    >>> cosine([np.float32([1, 0])], [np.float32([2, 0])])
    1.0
    """
    return min((_cosine(*pair) for pair in _floats(right, outputs)), default=1.0)


def _cosine(right: Array, output: Array) -> float:
    scale = float(np.linalg.norm(right) * np.linalg.norm(output))
    if scale == 0.0:
        return float(np.linalg.norm(right) == np.linalg.norm(output))
    return float(np.vdot(right, output).real) / scale


def relative(right: Sequence[HostValue], outputs: Sequence[HostValue]) -> float:
    """Return the largest norm of the error of an output over the norm of the right one.

    >>> round(relative([np.float32([3, 4])], [np.float32([3, 4.5])]), 6)
    0.1
    """
    return max((_relative(*pair) for pair in _floats(right, outputs)), default=0.0)


def _relative(right: Array, output: Array) -> float:
    error, scale = float(np.linalg.norm(output - right)), float(np.linalg.norm(right))
    return error / scale if scale else float(error > 0)


def _floats(right: Sequence[HostValue], outputs: Sequence[HostValue]) -> list[tuple[Array, Array]]:
    """Pair the outputs that are floats, flat and in float64; integers are left out."""
    pairs = []
    for one, other in zip(right, outputs, strict=True):
        if isinstance(one, np.ndarray) and one.dtype.kind not in "biuSUO":
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            pairs.append((one.astype(wide).ravel(), np.asarray(other).astype(wide).ravel()))
    return pairs


METRICS: Mapping[str, Metric] = {"top1": top1, "cosine": cosine, "relative": relative}
