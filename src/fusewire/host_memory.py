"""Memory of the host as arrays: aligned, an engine's own, and used again once nobody holds it.

The C library maps what is large anew for every array, and page by page: that costs a program that
is bound by memory up to four times what it computes. So large memory comes from a pool, and goes
back to it when the last array over it has died, and not before.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import time
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, final

import numpy as np

# What the strictest of engines asks for before it takes memory as it is.
ALIGNMENT = 64
# Arrays of at least so many bytes come from the pool: to be written, they take 20 times as long as
# the pool does (40 us and 2).
LARGE = 1 << 20
# What may lie idle: so many bytes, though never over a quarter of the machine's; so many things, so
# that looking through them is quick; for so many seconds.
_IDLE_BYTES = 1 << 30
_IDLE_COUNT = 64
_IDLE_SECONDS = 30.0
_Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


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
        # Views of the array end in this object too: it is no array, so NumPy looks no further.
        held = memory.from_address(start)
        held.owner = owner
        return np.ndarray(shape, of, held)

    return lend


@final
class _Idle:
    """A thing that waits in a pool; equal to itself alone."""

    __slots__ = ("key", "since", "size", "thing")

    def __init__(self, key: Hashable, size: int, thing: Any, since: float) -> None:
        self.key = key
        self.size = size
        self.thing = thing
        self.since = since


@final
class _Lease:
    """Whoever holds it holds the memory; with it, the memory goes back."""

    __slots__ = ("key", "pool", "size", "thing")

    def __init__(self, pool: Pool, key: Hashable, size: int, thing: Any) -> None:
        self.pool = pool
        self.key = key
        self.size = size
        self.thing = thing

    def __del__(self) -> None:
        self.pool.give(self.key, self.size, self.thing)


@final
class Pool:
    """Things with memory, each under a key that says what it can be used for.

    An array may die anywhere: in any thread, in the garbage collector in the midst of a take, in a
    process just forked. So there is no lock: the list changes by single steps of Python's own, each
    whole or not at all, and who finds that another was quicker looks on.
    """

    def __init__(
        self, limit: int, count: int = _IDLE_COUNT, seconds: float = _IDLE_SECONDS
    ) -> None:
        self._limit = limit
        self._count = count
        self._seconds = seconds
        # Oldest first.
        self._idle: list[_Idle] = []
        # Held here, because arrays die when modules are already gone.
        self._now = time.monotonic

    @property
    def idle_bytes(self) -> int:
        """Bytes that nobody uses at this moment."""
        return sum([idle.size for idle in tuple(self._idle)])

    def take(self, key: Hashable) -> Any | None:
        """Give what was used last of such things, or None; whoever takes it has it alone."""
        for idle in reversed(tuple(self._idle)):
            if idle.key == key and self._removes(idle):
                return idle.thing
        return None

    def give(self, key: Hashable, size: int, thing: Any) -> None:
        """Take back a thing of so many bytes that nobody uses, and let go of what is too much."""
        now = self._now()
        self._idle.append(_Idle(key, size, thing, now))
        waiting = tuple(self._idle)
        total, count = sum([idle.size for idle in waiting]), len(waiting)
        for idle in waiting:
            is_old = now - idle.since > self._seconds
            if not is_old and total <= self._limit and count <= self._count:
                break
            total, count = total - idle.size, count - 1
            self._removes(idle)

    def lend(
        self, shape: tuple[int, ...], of: np.dtype[Any], key: Hashable, thing: Any, start: int
    ) -> _Array:
        """Make an array over a thing's memory; when all of it is gone, the thing comes back."""
        size = math.prod(shape) * of.itemsize
        return lender(shape, of)(_Lease(self, key, size, thing), start)

    def clear(self) -> None:
        """Let go of all that is idle."""
        self._idle.clear()

    def _removes(self, idle: _Idle) -> bool:
        try:
            self._idle.remove(idle)
        except ValueError:
            return False
        return True


def _bound() -> int:
    """Say how many bytes may lie idle on this machine."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _IDLE_BYTES
    return min(_IDLE_BYTES, memory // 4)


# The one pool of a process, as the C library's is: engines and programs share what they leave.
POOL = Pool(_bound())
# Before engines are gone, whose memory may be among it.
atexit.register(POOL.clear)


def aligned_empty(shape: tuple[int, ...], of: np.dtype[Any]) -> _Array:
    """Allocate an array whose first element lies on a multiple of ``ALIGNMENT`` bytes.

    What is in it is anybody's: whoever gets it writes all of it before it is read.
    """
    return maker(shape, of)()[0]


@lru_cache(maxsize=256)
def maker(shape: tuple[int, ...], of: np.dtype[Any]) -> Callable[[], tuple[_Array, int]]:
    """Give what makes such arrays: each with its address, as ``aligned_empty`` makes them.

    After a program that fills the caches, every object that is touched here costs.
    """
    size = math.prod(shape) * of.itemsize
    if size < LARGE:

        def make() -> tuple[_Array, int]:
            raw = np.empty(size + ALIGNMENT, np.uint8)
            start = _address(raw)
            gap = -start % ALIGNMENT
            return np.ndarray(shape, of, raw, gap), start + gap

        return make
    # Sizes up to an eighth apart share; what is not written to takes no memory.
    step = 1 << (size.bit_length() - 4)
    rounded = -(-size // step) * step
    lend, pool = lender(shape, of), POOL

    def again() -> tuple[_Array, int]:
        found = pool.take(rounded)
        if found is None:
            block = np.empty(rounded + ALIGNMENT, np.uint8)
            start = _address(block)
            found = block, start + -start % ALIGNMENT
        return lend(_Lease(pool, rounded, size, found), found[1]), found[1]

    return again


def aligned_copy(array: _Array) -> _Array:
    """Copy an array to where it is aligned, in a row."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _address(raw: _Array) -> int:
    # A third of the time that ``raw.ctypes.data`` takes.
    return ctypes.addressof(ctypes.c_char.from_buffer(raw.data))
