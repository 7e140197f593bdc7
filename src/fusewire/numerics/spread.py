"""What a value may be: the wide answer, the spread of runs with noise, and their jumps.

An element's own spread over a few runs may be small by luck, so elements share strength: each
takes a part of its scale from the others. Where runs differ by a jump, or by more than a part of
the value itself, an element is not judged, and counted. Errors that are small everywhere and
spread out are seen by the rms over the whole and over every slice along every axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fusewire.dtypes import DType, dtype
from fusewire.ir.graph import Array
from fusewire.numerics.scale import rms

# Runs with so much more noise show jumps that are near, though no run with plain noise met them.
SCOUT = 4.0
# A tolerance above this share of the value judges nothing; some last places where that is more.
USELESS = 0.1
# A tolerance that would be useless is cut to this many spreads: a right engine needs about half.
NEEDED = 12.0
# The weight of the other elements in an element's spread, in runs.
SHARED = 6.0
# The rms of a large slice may be so many times the largest that a run shows; of one element, 3
# times that, because a few runs tell less about it.
SLICES = 1.75
# If a smaller share of the elements differ, slices show nothing.
ALIKE = 0.1
# Elements that are looked at to tell whether many are equal.
_LOOKED_AT = 2**16


@dataclass(frozen=True)
class Expected:
    """One tensor: the exact answer, the allowed difference, and what cannot be judged."""

    name: str
    dtype: DType
    wide: Array
    tolerance: Array
    # Not judged: near a jump, or of a tolerance that lets everything pass.
    masked: Array
    jumps: Array
    # Largest rms of error over tolerance: of the whole, then of the slices along each axis.
    slices: tuple[float, ...] = field(default=())
    # The largest share of elements that jump in one run.
    jumping: float = 0.0
    # Whether all runs agree on the shape; those of another one say nothing about the elements.
    is_shaped: bool = True

    @property
    def near(self) -> Array | float:
        """The distance from the exact answer below which nothing is a jump: some last places."""
        if not self.dtype.is_inexact:
            return 0.0
        return _places(self.dtype, np.abs(self.wide))

    @property
    def stored(self) -> Array:
        """The answer rounded to its dtype."""
        with np.errstate(all="ignore"):
            return self.wide.astype(self.dtype.numpy)


@dataclass(frozen=True)
class Runs:
    """The same tensor from several runs in stored precision, with plain noise and with more."""

    plain: Sequence[Array]
    scouts: Sequence[Array]

    @property
    def all(self) -> list[Array]:
        return [*self.plain, *self.scouts]


def is_code(of: DType) -> bool:
    """Return whether values are codes: a difference is a step, not an error with a size."""
    return of.is_narrow or (of.is_integer and of.bits <= 8)


def classes(array: Array) -> Array:
    """Classify as NaN (2), +Inf (1), -Inf (-1) or finite (0); a complex Inf has no sign."""
    if not dtype(array.dtype).is_inexact:
        return np.zeros(array.shape, np.int8)
    if array.dtype.kind != "c":
        array = array.astype(np.float64)
    kinds = np.where(np.isnan(array), 2, np.isinf(array)).astype(np.int8)
    if array.dtype.kind != "c":
        kinds[array == -np.inf] = -1
    return kinds


def floor_of(of: DType) -> float:
    """Return what underflow may lose: engines flush numbers this small to zero."""
    if not of.is_inexact or of.is_narrow:
        return 0.0
    real = {"complex64": "float32", "complex128": "float64", "bfloat16": "float32"}
    info = np.finfo(real.get(of.name, of.name))
    return float(info.smallest_subnormal if of.name == "float16" else info.smallest_normal)


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
    name: str,
    of: DType,
    wide: Array,
    runs: Runs,
    multiple: float,
    *,
    codes: bool = False,
    scale: float = 0.0,
    slices: bool = False,
) -> Expected:
    """Derive tolerance and jumps from runs; ``scale`` is the size of the value's terms."""
    alike = Runs(*([x for x in xs if x.shape == wide.shape] for xs in (runs.plain, runs.scouts)))
    is_shaped = len(alike.all) == len(runs.all)
    if len(alike.plain) < 2:
        masked = np.ones(wide.shape, np.bool_)
        return Expected(name, of, wide, np.zeros(wide.shape), masked, masked, is_shaped=False)
    found = _expect(name, of, wide, alike, multiple, codes, scale, slices)
    return replace(found, is_shaped=is_shaped)


def _expect(
    name: str,
    of: DType,
    wide: Array,
    runs: Runs,
    multiple: float,
    codes: bool,
    scale: float,
    slices: bool,
) -> Expected:
    if codes or is_code(of):
        return _expect_codes(name, of, wide, runs)
    if of.is_inexact:
        return _expect_numbers(name, of, wide, runs, multiple, scale, slices)
    moved = [run != wide for run in runs.all]
    masked = np.logical_or.reduce(moved)
    jumping = max(_share(m) for m in moved[: len(runs.plain)])
    return Expected(name, of, wide, np.zeros(wide.shape), masked, masked, jumping=jumping)


def _expect_codes(name: str, of: DType, wide: Array, runs: Runs) -> Expected:
    """Allow the steps that runs take."""
    exact = np.int64 if of.is_integer else np.float64
    with np.errstate(invalid="ignore"):
        moved = [np.abs(run.astype(exact) - wide.astype(exact)) for run in runs.all]
    steps = np.nan_to_num(np.maximum.reduce(moved).astype(np.float64))
    masked = np.zeros(wide.shape, np.bool_)
    jumping = max(_share(m > 0) for m in moved[: len(runs.plain)])
    return Expected(name, of, wide, steps, masked, masked, jumping=jumping)


def _expect_numbers(
    name: str, of: DType, wide: Array, runs: Runs, multiple: float, scale: float, slices: bool
) -> Expected:
    with np.errstate(all="ignore"):
        kinds = classes(wide.astype(of.numpy))
    unlike = [classes(run) != kinds for run in runs.all]
    finite = (kinds == 0) & ~np.logical_or.reduce(unlike)
    errors = np.stack([_distance(run, wide, finite) for run in runs.all])
    amounts = np.array([1.0] * len(runs.plain) + [SCOUT] * len(runs.scouts))
    size = np.where(finite, np.abs(wide), 0.0)
    last_place = of.eps * size + floor_of(of)
    useless = np.maximum(USELESS * np.maximum(size, rms(size)), _places(of, size, scale))
    jumped = unlike | (errors > np.multiply.outer(amounts, useless))
    plain = np.where(np.logical_or.reduce(jumped), 0.0, errors[: len(runs.plain)])
    # Storing the answer rounds it once more, however exact the runs were.
    spread = np.hypot(_spread(plain), 0.25 * last_place)
    tolerance = np.minimum(multiple * spread, np.maximum(NEEDED * spread, useless)) + last_place
    jumped |= errors > np.multiply.outer(2 * amounts, tolerance)
    jumps = np.logical_or.reduce(jumped)
    # What a run does without a jump is allowed.
    tolerance = np.maximum(tolerance, 1.25 * np.where(jumps, 0.0, plain).max(axis=0))
    masked = jumps | (tolerance > useless + last_place)
    jumping = max(_share(j) for j in jumped[: len(runs.plain)])
    limits: tuple[float, ...] = ()
    if slices:
        judged = np.where(masked, 0.0, 1.0 / tolerance)
        limits = _limits([e * judged for e in plain], last_place * judged, _distinct(wide))
    return Expected(name, of, wide, tolerance, masked, jumps, limits, jumping)


def _places(of: DType, size: Array, scale: float = 0.0) -> Array:
    """Return the size of 64 last places of typical numbers."""
    typical = np.maximum(np.where(np.isfinite(size), size, 0.0), max(rms(size), scale))
    places: Array = 64 * (of.eps * typical + floor_of(of))
    return places


def _share(mask: Array) -> float:
    return float(mask.mean()) if mask.size else 0.0


def _distance(run: Array, wide: Array, finite: Array) -> Array:
    work = np.complex128 if wide.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(run.astype(work) - wide.astype(work))
    return np.where(finite, apart, 0.0)


def _spread(errors: Array) -> Array:
    """Estimate each element's spread: all runs but the farthest, and a share of the others'."""
    count = max(len(errors) - 1, 1)
    squares = errors**2
    own = (squares.sum(axis=0) - (squares.max(axis=0) if len(errors) > 1 else 0.0)) / count
    moving = own[own > 0]
    others = float(np.median(moving)) if moving.size else 0.0
    spread: Array = np.sqrt((count * own + SHARED * others) / (count + SHARED))
    return spread


def slice_rms(ratio: Array) -> list[Array]:
    """Take the rms over the whole, then for each axis over every slice along it."""
    squares = ratio * ratio
    levels = [np.sqrt(np.mean(squares, keepdims=True).reshape(1))]
    for axis in range(ratio.ndim):
        others = tuple(i for i in range(ratio.ndim) if i != axis)
        levels.append(np.sqrt(np.mean(squares, axis=others)))
    return levels


def _distinct(wide: Array) -> float:
    """Return the share of distinct elements: an engine rounds equal ones alike."""
    moving = wide[wide != 0][:_LOOKED_AT]
    with np.errstate(all="ignore"):
        kept = moving.astype(np.complex64 if moving.dtype.kind == "c" else np.float32)
    return len(np.unique(kept)) / len(kept) if len(kept) else 1.0


def _limits(ratios: Sequence[Array], last_place: Array, distinct: float) -> tuple[float, ...]:
    """Set limits from what runs show; one last place everywhere is always allowed.

    Noise is drawn for each element; what an engine does to equal ones counts but once. Where almost
    all are equal, so is what they are made from, and errors add up that noise lets cancel.
    """
    if not last_place.size or distinct < ALIKE:
        return ()
    limits = []
    shown = zip(slice_rms(last_place), *map(slice_rms, ratios), strict=True)
    for allowed, *runs in shown:
        count = max(1.0, distinct * last_place.size / allowed.size)
        margin = SLICES * (1 + 8 / count) ** 0.5
        limits.append(max(float(allowed.max()), margin * max(float(r.max()) for r in runs)))
    return tuple(limits)
