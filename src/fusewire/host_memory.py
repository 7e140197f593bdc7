"""Host memory as arrays: aligned, lent by engines, and reused once nobody holds it.

The C library maps large memory afresh for every array, page by page, which can cost a memory-bound
program four times its own work. So large memory comes from a pool, and returns to it when the last
array over it is gone.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar, final

import numpy as np

from fusewire.system.hardware import total_memory

# The strictest alignment that an engine asks for before it uses memory without a copy.
ALIGNMENT = 64
# Arrays of at least this many bytes come from the pool: writing fresh memory takes 20 times as long
# as the pool does (40 us against 2).
LARGE = 1 << 20
# Limits of what the pool keeps: bytes, and at most a quarter of the machine's memory; blocks, so
# that searching is quick; and seconds.
_IDLE_BYTES = 1 << 30
_IDLE_COUNT = 64
_IDLE_SECONDS = 30.0
_Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
Block = TypeVar("Block")


@dataclass(frozen=True)
class PoolUse:
    """What a pool of memory holds, in bytes, and how it has served since the process began.

    ``in_use`` is lent and ``idle`` waits to be lent again; ``peak`` is the most that was lent at
    once. Of the requests, ``hits`` were served from what was idle, ``misses`` allocated, and
    ``failures`` found no memory, also after idle memory was freed.
    """

    device: str
    pool: str
    in_use: int
    idle: int
    peak: int
    hits: int
    misses: int
    failures: int


class MemoryPool(Protocol):
    """A pool that says what it holds."""

    def use(self) -> PoolUse:
        """Say what it holds."""

    def clear(self) -> int:
        """Free what is idle; returns the bytes."""

    def count_failure(self) -> None:
        """Count a request that found no memory."""


@final
class Pressure:
    """Callbacks that free memory of the user's when there is little."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[Callable[[PoolUse], object], int | None]] = []

    def add(
        self, callback: Callable[[PoolUse], object], above: int | None = None
    ) -> Callable[[], None]:
        """Add a callback; returns what removes it. ``above`` is a number of bytes in use."""
        row = (callback, above)
        self._callbacks.append(row)
        return lambda: self._callbacks.remove(row) if row in self._callbacks else None

    def watch(self, pool: MemoryPool, before: int, after: int) -> None:
        """Call those whose number of bytes was just passed."""
        for callback, above in tuple(self._callbacks):
            if above is not None and before <= above < after:
                callback(pool.use())

    def relieve(self, pool: MemoryPool) -> None:
        """Call all: an allocation failed, and is tried once more."""
        for callback, _ in tuple(self._callbacks):
            callback(pool.use())


PRESSURE = Pressure()


def allocated(pool: MemoryPool, make: Callable[[], Block]) -> Block:
    """Allocate; where memory runs out, free what is idle, call callbacks, and try once more."""
    try:
        return make()
    except MemoryError:
        pool.clear()
        PRESSURE.relieve(pool)
    try:
        return make()
    except MemoryError:
        pool.count_failure()
        raise


def address(array: _Array) -> int:
    """Return where the elements of an array begin.

    Its ``ctypes`` tells that of every array, and takes four times as long.
    """
    memory: Any = array
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    except (TypeError, ValueError, BufferError):
        # It is read-only, has gaps, no elements, or a dtype that buffers do not know.
        return array.ctypes.data


@lru_cache(maxsize=256)
def lender(shape: tuple[int, ...], of: np.dtype[Any]) -> Callable[[object, int], _Array]:
    """Return a function that makes an array over the memory of an engine's tensor.

    The function takes the tensor and its address. The array keeps the tensor, and so the memory,
    alive. It is writable: lend only what nobody else reads.
    """
    size = math.prod(shape) * of.itemsize
    if size == 0:
        return lambda owner, start: np.empty(shape, of)
    # A subclass made this way accepts attributes.
    memory: Any = type("Memory", (ctypes.c_char * size,), {})

    def lend(owner: object, start: int) -> _Array:
        # Views of the array refer to this object too: it is not an array, so NumPy stops here.
        held = memory.from_address(start)
        held.owner = owner
        return np.ndarray(shape, of, held)

    return lend


def lent_thing(array: _Array) -> Any | None:
    """Return what owns the memory that ``lender`` made an array of; None for any other array.

    Views of all of it in another dtype count; parts of it do not, nor does another order.
    """
    memory = _lent_memory(array)
    if memory is None or ctypes.sizeof(memory) != array.nbytes or not array.flags.c_contiguous:
        return None
    owner = vars(memory).get("owner")
    return owner.thing if isinstance(owner, _Lease) else owner


def lend_again(array: _Array, thing: Any) -> None:
    """Note that another thing owns the memory of an array now, which has to be the same memory."""
    memory = _lent_memory(array)
    if isinstance(memory.owner, _Lease):
        memory.owner.thing = thing
    else:
        memory.owner = thing


def _lent_memory(array: _Array) -> Any:
    """Return the memory that an array, or what it is a view of, was made of; None for others."""
    memory: Any = array.base
    if isinstance(memory, np.ndarray):
        memory = memory.base
    return memory if isinstance(memory, ctypes.Array) else None


@final
class _Idle:
    """A block that waits in a pool; equal only to itself."""

    __slots__ = ("key", "since", "size", "thing")

    def __init__(self, key: Hashable, size: int, thing: Any, since: float) -> None:
        self.key = key
        self.size = size
        self.thing = thing
        self.since = since


@final
class _Lease:
    """Keeps a block in use; when it is gone, the block returns to its pool."""

    __slots__ = ("key", "pool", "size", "thing")

    def __init__(self, pool: Pool, key: Hashable, size: int, thing: Any) -> None:
        self.pool = pool
        self.key = key
        self.size = size
        self.thing = thing
        pool.lend_out(size)

    def __del__(self) -> None:
        self.pool.take_in(self.size)
        self.pool.give(self.key, self.size, self.thing)


@final
class Pool:
    """Blocks of memory, each under a key that says what it can be used for.

    An array may be freed anywhere: in any thread, in the garbage collector during a ``take``, in a
    process just forked. So there is no lock: the list changes only by atomic operations of Python,
    and a thread that finds a block gone looks for another.
    """

    def __init__(
        self, limit: int, count: int = _IDLE_COUNT, seconds: float = _IDLE_SECONDS
    ) -> None:
        self._limit = limit
        self._count = count
        self._seconds = seconds
        # Oldest first.
        self._idle: list[_Idle] = []
        # Kept here, because arrays may outlive the modules of the interpreter.
        self._now = time.monotonic
        self._ident = threading.get_ident
        # Bytes by thread, of which each changes its own: adding to a number is not atomic. What one
        # thread lent another may take in, so that only the sum says something.
        self._lent: dict[int, int] = {}
        self._peak = self._hits = self._misses = self._failures = 0

    def use(self) -> PoolUse:
        """Say what it holds; counts may miss some where threads count at once."""
        counts = self._peak, self._hits, self._misses, self._failures
        return PoolUse("cpu", "host", self._in_use(), self.idle_bytes, *counts)

    def _in_use(self) -> int:
        return sum(list(self._lent.values()))

    def lend_out(self, size: int) -> None:
        """Count a block as lent."""
        before = self._in_use()
        self._count_lent(size)
        self._peak = max(self._peak, before + size)
        PRESSURE.watch(self, before, before + size)

    def take_in(self, size: int) -> None:
        """Count a block as returned."""
        self._count_lent(-size)

    def _count_lent(self, size: int) -> None:
        thread = self._ident()
        self._lent.setdefault(thread, 0)
        # Nothing is called between reading and writing, so that no collection of garbage, which may
        # take in blocks in this thread, comes between them.
        self._lent[thread] += size

    def count_failure(self) -> None:
        """Count a request that found no memory."""
        self._failures += 1

    @property
    def idle_bytes(self) -> int:
        """Bytes that nobody uses now."""
        return sum([idle.size for idle in tuple(self._idle)])

    def take(self, key: Hashable) -> Any | None:
        """Return the most recently used block of this key, or None; the caller owns it."""
        for idle in reversed(tuple(self._idle)):
            if idle.key == key and self._removes(idle):
                self._hits += 1
                return idle.thing
        self._misses += 1
        return None

    def give(self, key: Hashable, size: int, thing: Any) -> None:
        """Take back an unused block of ``size`` bytes, and free what exceeds the limits."""
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
        """Make an array over a block; when its last view is gone, the block returns."""
        size = math.prod(shape) * of.itemsize
        return lender(shape, of)(_Lease(self, key, size, thing), start)

    def clear(self) -> int:
        """Free everything that is idle; returns the bytes."""
        freed = self.idle_bytes
        self._idle.clear()
        return freed

    def _removes(self, idle: _Idle) -> bool:
        try:
            self._idle.remove(idle)
        except ValueError:
            return False
        return True


def idle_limit() -> int:
    """Return how many idle bytes a pool may keep on this machine."""
    memory = total_memory()
    return _IDLE_BYTES if memory is None else min(_IDLE_BYTES, memory // 4)


# The one pool of a process: engines and programs share what they free.
POOL = Pool(idle_limit())
# Free engine memory before the engines themselves are gone.
atexit.register(POOL.clear)


def aligned_empty(shape: tuple[int, ...], of: np.dtype[Any]) -> _Array:
    """Allocate an array whose first element lies on a multiple of ``ALIGNMENT`` bytes.

    Its content is undefined: write all of it before you read it.
    """
    return maker(shape, of)()[0]


@lru_cache(maxsize=256)
def maker(shape: tuple[int, ...], of: np.dtype[Any]) -> Callable[[], tuple[_Array, int]]:
    """Return a function that makes arrays like ``aligned_empty``, each with its address.

    Programs evict the caches, so every object that is touched here costs time.
    """
    size = math.prod(shape) * of.itemsize
    if size < LARGE:

        def make() -> tuple[_Array, int]:
            raw = np.empty(size + ALIGNMENT, np.uint8)
            start = _address(raw)
            gap = -start % ALIGNMENT
            return np.ndarray(shape, of, raw, gap), start + gap

        return make
    # Sizes within an eighth share a block; pages that nobody writes take no memory.
    step = 1 << (size.bit_length() - 4)
    rounded = -(-size // step) * step
    lend, pool = lender(shape, of), POOL

    def again() -> tuple[_Array, int]:
        block = pool.take(rounded)
        if block is None:
            memory = allocated(pool, lambda: np.empty(rounded + ALIGNMENT, np.uint8))
            start = _address(memory)
            block = memory, start + -start % ALIGNMENT
        return lend(_Lease(pool, rounded, size, block), block[1]), block[1]

    return again


def aligned_copy(array: _Array) -> _Array:
    """Copy an array to aligned, contiguous memory."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def owned(output: Any, taken: list[_Array]) -> Any:
    """Copy an output that is, or looks into, a constant or what is taken; then it is taken too."""
    if not isinstance(output, np.ndarray):
        return output
    is_shared = any(np.may_share_memory(output, array) for array in taken)
    own = output.copy() if is_shared or not output.flags.writeable else output
    taken.append(own)
    return own


def _address(raw: _Array) -> int:
    # Takes a third of the time of ``raw.ctypes.data``.
    return ctypes.addressof(ctypes.c_char.from_buffer(raw.data))
