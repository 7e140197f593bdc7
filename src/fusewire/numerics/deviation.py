"""How far outputs are from the exact ones, and how far those for other inputs may be.

This measures candidates that compute in less than the model's own dtypes: their error is a price
that a user agreed to. Whether an engine is right in the model's own dtypes is another question,
which ``judge`` and ``oracle`` answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fusewire.dtypes import DType
from fusewire.ir.graph import Array, Graph, HostValue
from fusewire.numerics.bound import leaves
from fusewire.numerics.spread import classes

# Normal quantiles: of the share of other inputs within the limit, 99.9%, and of how sure that is,
# 95%.
_SHARE, _SURE = 3.09, 1.645
# Fewer draws beyond the first of their kind do not show how errors vary.
_FEWEST = 2
# Errors are taken to vary by at least so much, as a standard deviation of their logarithm.
_LEAST_SPREAD = 0.02
# Of an error of nothing the logarithm is taken as if it was this share of the largest.
_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Deviation:
    """The error of one output on one set of inputs.

    ``relative`` is the norm of the error over that of the exact output; of integers, booleans and
    strings it is the share of elements that differ. ``element`` is the largest error of an element
    over the largest exact element. Both are infinite if a shape, a dtype, a NaN or an infinity
    differs.
    """

    inputs: str
    output: str
    relative: float
    element: float


def deviations(
    graph: Graph, exact: Sequence[HostValue], got: Sequence[HostValue], inputs: str = "given"
) -> list[Deviation]:
    """Measure every output of a graph against the exact ones, which have floats in float64."""
    right, found = leaves(graph, exact), leaves(graph, got)
    if len(right) != len(found):
        return [Deviation(inputs, "outputs", math.inf, math.inf)]
    pairs = zip(right, found, strict=True)
    return [
        Deviation(inputs, name, *_errors(wide, x, dtype))
        for (name, dtype, wide), (_, _, x) in pairs
    ]


def _errors(wide: Array, got: Array, dtype: DType) -> tuple[float, float]:
    if got.dtype != dtype.numpy or got.shape != wide.shape:
        return math.inf, math.inf
    if not got.size:
        return 0.0, 0.0
    if not dtype.is_inexact:
        share = float(np.mean(np.asarray(got != wide)))
        return share, float(share > 0)
    kinds = classes(wide.astype(dtype.numpy))
    if not np.array_equal(classes(got), kinds):
        return math.inf, math.inf
    is_finite = kinds == 0
    work = np.complex128 if wide.dtype.kind == "c" else np.float64
    right = np.where(is_finite, wide, 0).astype(work)
    apart = np.abs(np.where(is_finite, got, 0).astype(work) - right)
    return _over(float(np.linalg.norm(apart)), float(np.linalg.norm(right))), _over(
        float(apart.max()), float(np.abs(right).max())
    )


def _over(error: float, scale: float) -> float:
    if error == 0.0:
        return 0.0
    return error / scale if scale > 0.0 else math.inf


def limit_for_others(measured: Sequence[Deviation]) -> float:
    """Return the error of an output that 99.9% of other inputs stay within, with 95% confidence.

    Inputs are named after their kind, such as a distribution and a scale: "normal", "normal-2". The
    logarithms of the errors on one kind are taken to be normal, and to vary as much on every kind:
    this is the one-sided tolerance limit of the worst kind (Natrella's approximation). It is
    infinite if too few kinds were drawn twice, and says nothing about kinds that nobody drew.

    >>> errors = {"normal": 0.004, "normal-2": 0.0041, "large": 0.005, "large-2": 0.0049}
    >>> round(limit_for_others([Deviation(x, "y", e, e) for x, e in errors.items()]), 4)
    0.0068
    """
    largest = max((one.relative for one in measured), default=0.0)
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    kinds: dict[str, list[float]] = {}
    for one in measured:
        error = math.log(max(one.relative, _LEAST_SHARE * largest))
        kinds.setdefault(one.inputs.partition("-")[0], []).append(error)
    means = {kind: sum(errors) / len(errors) for kind, errors in kinds.items()}
    repeated = sum(len(errors) - 1 for errors in kinds.values())
    if repeated < _FEWEST:
        return math.inf
    squares = ((x - means[kind]) ** 2 for kind, errors in kinds.items() for x in errors)
    spread = max(math.sqrt(sum(squares) / repeated), _LEAST_SPREAD)
    return max(math.exp(max(means.values()) + _factor(repeated) * spread), largest)


def _factor(repeated: int) -> float:
    """Return how many spreads above a mean its limit is, with so many degrees of freedom."""
    a = 1 - _SURE**2 / (2 * repeated)
    b = _SHARE**2 - _SURE**2 / (repeated + 1)
    return (_SHARE + math.sqrt(_SHARE**2 - a * b)) / a


def worst(measured: Sequence[Deviation]) -> Deviation | None:
    """Return the largest of several errors; None if there is none."""
    return max(measured, key=lambda x: x.relative, default=None)


def by_output(measured: Sequence[Deviation]) -> Mapping[str, list[Deviation]]:
    """Group errors by output, in the order in which they were measured."""
    grouped: dict[str, list[Deviation]] = {}
    for one in measured:
        grouped.setdefault(one.output, []).append(one)
    return grouped
