"""Memory of the host as arrays: aligned for engines that ask for it, or an engine's own."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

# What the strictest of engines asks for before it takes memory as it is.
ALIGNMENT = 64
_Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def aligned_empty(shape: tuple[int, ...], of: np.dtype[Any]) -> _Array:
    """Allocate an array whose first element lies on a multiple of ``ALIGNMENT`` bytes."""
    raw = np.empty(math.prod(shape) * of.itemsize + ALIGNMENT, np.uint8)
    # A third of the time that ``raw.ctypes.data`` takes.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(raw.data)) % ALIGNMENT
    return np.ndarray(shape, of, raw, start)


def aligned_copy(array: _Array) -> _Array:
    """Copy an array to where it is aligned, in a row."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


@lru_cache(maxsize=256)
def lender(shape: tuple[int, ...], of: np.dtype[Any]) -> Callable[[object, int], _Array]:
    """Give a function from an engine's tensor and its address to an array over its memory.

    The array keeps the tensor, and so the memory, alive. It may be written to: lend only what
    nobody else reads.
    """
    size = math.prod(shape) * of.itemsize
    if size == 0:
        return lambda owner, start: np.empty(shape, of)
    # A type that is made like this takes attributes.
    memory: Any = type("Memory", (ctypes.c_char * size,), {})

    def lend(owner: object, start: int) -> _Array:
        held = memory.from_address(start)
        held.owner = owner
        return np.ndarray(shape, of, held)

    return lend
