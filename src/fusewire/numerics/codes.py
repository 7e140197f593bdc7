"""Numbers of 8 bits or fewer as codes: the values of floats, and codes of 4 bits in bytes.

What floats round to is taken from ml_dtypes, for engines that carry them as bytes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from fusewire.dtypes import DType
from fusewire.ir.graph import Array


def packed_halves(codes: Array) -> Array:
    """Put two codes of 4 bits, a byte each, in one byte, the first one lower.

    Each row of the last axis begins with a byte of its own.
    """
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [*[(0, 0)] * (codes.ndim - 1), (0, 1)])
    lower, upper = codes[..., ::2] & 15, codes[..., 1::2] & 15
    return np.asarray(lower | upper << 4)


@cache
def code_values(of: DType) -> Array:
    """Give the value of every byte, in float64."""
    codes = np.arange(2**of.bits, dtype=np.uint8)
    found: Array = codes.view(of.numpy).astype(np.float64)
    # What an array of this dtype can hold has no other bytes; 256 entries need no check.
    return np.concatenate([found, np.zeros(256 - found.size)])


@cache
def code_steps(of: DType, saturate: bool) -> tuple[Array, Array, Array]:
    """Find where on the line of float64 the code changes, by halving between values.

    Gives the limits, one code more than those, and the codes of -0.0 and of NaN.
    """
    values = code_values(of)[: 2**of.bits]
    tiny = np.nextafter(0.0, 1.0)
    ends = [-np.inf, -tiny, 0.0, tiny, np.inf]
    points = np.unique(np.concatenate([values[np.isfinite(values)], ends]))
    low, high = _places(points[:-1]), _places(points[1:])
    first = _codes(low, of, saturate)
    changes = _codes(high, of, saturate) != first
    low, high, first = low[changes], high[changes], first[changes]
    while np.any(high - low > 1):
        # Halves are added, because the whole line is longer than an int64.
        middle = low // 2 + high // 2 + (low % 2 + high % 2) // 2
        same = _codes(middle, of, saturate) == first
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    codes = np.append(first[:1], _codes(high, of, saturate))
    zero, nan = np.array([-0.0]), np.array([np.nan])
    special = np.concatenate([np.clip(zero, *of.range) if saturate else zero, nan])
    return _numbers(high), codes, special.astype(of.numpy).view(np.uint8)


def _places(x: Array) -> Array:
    """Count floats from 0, so that neighbours differ by 1."""
    bits = (x + 0.0).view(np.int64)
    return np.where(bits < 0, np.iinfo(np.int64).min - bits, bits)


def _numbers(places: Array) -> Array:
    bits = np.where(places < 0, np.iinfo(np.int64).min - places, places)
    found: Array = bits.view(np.float64)
    return found


def _codes(places: Array, of: DType, saturate: bool) -> Array:
    numbers = np.clip(_numbers(places), *of.range) if saturate else _numbers(places)
    with np.errstate(all="ignore"):
        found: Array = numbers.astype(of.numpy).view(np.uint8)
    return found
