"""What a value may be: the wide answer, how far runs with noise are from it, and where they jump.

An element's own spread over a few runs may be small by luck, so elements share strength: each
takes a part of its scale from the others. Where runs differ by a jump, or by more than a part of
the value itself, an element is not judged, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fusewire.dtypes import DType, dtype
from fusewire.ir.graph import Array
from fusewire.numerics.noise import rms

# Runs with so much more noise show jumps that are near, though no run with plain noise met them.
SCOUT = 4.0
# A tolerance above this share of the value judges nothing; 64 last places where that is more.
USELESS = 0.1
# How many runs' worth of scale an element takes from the others.
SHARED = 3.0


@dataclass(frozen=True)
class Expected:
    """One value: the exact answer, the allowed difference, and what cannot be judged."""

    name: str
    dtype: DType
    wide: Array
    tolerance: Array
    # Not judged: near a jump, or of a tolerance that lets everything pass.
    masked: Array
    jumps: Array
    # Blocks of so many elements, and the largest rms of error over tolerance in such a block.
    blocks: tuple[tuple[int, float], ...] = field(default=())
    # Share of codes that may differ at all.
    differing: float = 1.0
    # Whether all runs agree on the shape.
    is_shaped: bool = True

    @property
    def stored(self) -> Array:
        """The answer rounded to its dtype."""
        with np.errstate(all="ignore"):
            return self.wide.astype(self.dtype.numpy)


def is_code(of: DType) -> bool:
    """Tell whether values are codes: a difference is a step, not an error with a size."""
    return of.is_narrow or (of.is_integer and of.bits <= 8)


def classes(array: Array) -> Array:
    """Tell NaN (2), +Inf (1), -Inf (-1) and finite (0) apart; a complex Inf has no sign."""
    if array.dtype.kind not in "fc" and not dtype(array.dtype).is_float:
        return np.zeros(array.shape, np.int8)
    if array.dtype.kind != "c":
        array = array.astype(np.float64)
    kinds = np.where(np.isnan(array), 2, np.isinf(array)).astype(np.int8)
    if array.dtype.kind != "c":
        kinds[array == -np.inf] = -1
    return kinds


def floor_of(of: DType) -> float:
    """Give what underflow may lose: engines flush to zero where numbers get this small."""
    if not of.is_inexact or of.is_narrow:
        return 0.0
    real = {"complex64": "float32", "complex128": "float64"}.get(of.name, of.name)
    info = np.finfo(np.float32 if real == "bfloat16" else real)
    return float(info.smallest_subnormal if real == "float16" else info.smallest_normal)


def expect_exact(name: str, of: DType, wide: Array) -> Expected:
    """Expect the stored answer and no other."""
    masked = np.zeros(wide.shape, np.bool_)
    tolerance = np.zeros(wide.shape)
    if of.is_inexact:
        with np.errstate(all="ignore"):
            apart = np.abs(wide.astype(of.numpy).astype(wide.dtype) - wide)
        tolerance = np.where(np.isfinite(apart), apart, 0.0).astype(np.float64)
    return Expected(name, of, wide, tolerance, masked, masked)


def expect(
    name: str, of: DType, wide: Array, runs: Sequence[Array], scouts: Sequence[Array],
    multiple: float, codes: bool = False, scale: float = 0.0,
) -> Expected:  # fmt: skip
    """Read tolerance and jumps off runs of the same value; ``scale``: of what it is made from."""
    if any(run.shape != wide.shape for run in (*runs, *scouts)):
        masked = np.ones(wide.shape, np.bool_)
        return Expected(name, of, wide, np.zeros(wide.shape), masked, masked, is_shaped=False)
    if codes or is_code(of):
        return _expect_codes(name, of, wide, runs, scouts)
    if not of.is_inexact:
        masked = np.zeros(wide.shape, np.bool_)
        for run in (*runs, *scouts):
            masked |= run != wide
        return Expected(name, of, wide, np.zeros(wide.shape), masked, masked)
    return _expect_numbers(name, of, wide, runs, scouts, multiple, scale)


def _expect_codes(
    name: str, of: DType, wide: Array, runs: Sequence[Array], scouts: Sequence[Array]
) -> Expected:
    """Allow the steps that runs take; the share of steps is bounded by the runs' own."""
    exact = np.int64 if of.is_integer else np.float64
    steps = np.zeros(wide.shape)
    shares = [0.0]
    for run in (*runs, *scouts):
        with np.errstate(invalid="ignore"):
            moved = np.abs(run.astype(exact) - wide.astype(exact)).astype(np.float64)
        shares.append(float(np.mean(moved > 0)) if wide.size else 0.0)
        steps = np.maximum(steps, np.nan_to_num(moved))
    masked = np.zeros(wide.shape, np.bool_)
    return Expected(name, of, wide, steps, masked, masked, differing=max(shares))


def _expect_numbers(
    name: str, of: DType, wide: Array, runs: Sequence[Array], scouts: Sequence[Array],
    multiple: float, scale: float,
) -> Expected:  # fmt: skip
    with np.errstate(all="ignore"):
        kinds = classes(wide.astype(of.numpy))
    jumps = np.zeros(wide.shape, np.bool_)
    for run in (*runs, *scouts):
        jumps |= classes(run) != kinds
    finite = (kinds == 0) & ~jumps
    errors = np.stack([_distance(run, wide, finite) for run in runs])
    size = np.where(finite, np.abs(wide), 0.0)
    tolerance = multiple * _spread(errors, finite) + of.eps * size + floor_of(of)
    jumps |= errors.max(axis=0) > tolerance
    for run in scouts:
        jumps |= _distance(run, wide, finite) > SCOUT * tolerance
    useless = tolerance > max(USELESS, 64 * of.eps) * np.maximum(
        size, max(scale, rms(size[finite]))
    )
    masked = jumps | (useless & finite & (tolerance > 64 * floor_of(of)))
    return Expected(name, of, wide, tolerance, masked, jumps)


def _distance(run: Array, wide: Array, finite: Array) -> Array:
    work = np.complex128 if wide.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(run.astype(work) - wide.astype(work))
    return np.where(finite, apart, 0.0)


def _spread(errors: Array, finite: Array) -> Array:
    """Estimate each element's spread: all runs but the farthest, and a share of the others'."""
    count = max(len(errors) - 1, 1)
    squares = errors**2
    own = (squares.sum(axis=0) - (squares.max(axis=0) if len(errors) > 1 else 0.0)) / count
    moving = own[finite & (own > 0)]
    others = float(np.median(moving)) if moving.size else 0.0
    spread: Array = np.sqrt((count * own + SHARED * others) / (count + SHARED))
    return spread
