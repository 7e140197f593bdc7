"""Memory that a parent shares with its child: one sparse file that has no name.

The parent alone decides who uses which bytes; the child is told. The file is mapped once by each
side and is larger than it will ever need to be, so that no call maps anything, and its size is
sealed: a child that could shrink it would make the parent crash. Nothing is left behind when both
processes are gone, however they end.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from typing import Any, final

import numpy as np

from fusewire.errors import EngineOutOfMemory, IsolationError
from fusewire.host_memory import ALIGNMENT, Pool, idle_limit, lender
from fusewire.ir.graph import Array
from fusewire.process.forks import in_forked_child
from fusewire.system.sealed import give_back, held_bytes, map_privately, sealed_memory

# Addresses, not memory: pages that nobody wrote take none.
_SIZE = 1 << 40
_LEAST_SIZE = 1 << 30
_LEAST_BLOCK = 1 << 16


def aligned(size: int) -> int:
    """Round a size up to the alignment of tensors."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@final
class Lease:
    """A range of an arena that is in use; when it is gone, the range is used again."""

    __slots__ = ("arena", "epoch", "offset", "size")

    def __init__(self, arena: Arena, offset: int, size: int) -> None:
        self.arena = arena
        self.offset = offset
        self.size = size
        self.epoch = arena.epoch

    def __del__(self) -> None:
        # If a fork came between, another process may look at it still: it is not used again.
        if self.arena.is_open and self.epoch == self.arena.epoch:
            idle = _Idle(self.arena, self.offset, self.size)
            self.arena.pool.give(self.size, self.size, idle)


@final
class _Idle:
    """A range that waits in a pool; its pages are freed if nobody takes it.

    Apart from leases, and made anew each time: the garbage collector finalizes all of a cycle, so a
    lease that put an object of the same cycle into the pool would leave it there finalized.
    """

    __slots__ = ("arena", "is_taken", "offset", "size")

    def __init__(self, arena: Arena, offset: int, size: int) -> None:
        self.arena = arena
        self.offset = offset
        self.size = size
        self.is_taken = False

    def __del__(self) -> None:
        if not self.is_taken:
            self.arena.free(self.offset, self.size)


@final
class Arena:
    """The parent's side; the first ``reserved`` bytes are the caller's, the rest is leased."""

    def __init__(self, reserved: int) -> None:
        self.descriptor, self.size, self.map = _mapped()
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.pool = Pool(idle_limit())
        # How often this process forked: what was lent before a fork is not used again.
        self.epoch = 0
        # Where addresses begin that nobody has used yet.
        self.top = -(-reserved // mmap.PAGESIZE) * mmap.PAGESIZE
        # Ranges without pages, by size. Changed only by atomic operations, as ranges are freed
        # anywhere, even while this thread holds the lock.
        self._ranges: dict[int, list[int]] = {}
        self._lock = threading.Lock()
        self.is_open = True
        _ARENAS.add(self)

    def lease(self, size: int) -> Lease:
        """Take a range of at least this many bytes."""
        # Sizes within an eighth share a range.
        step = 1 << (max(size, _LEAST_BLOCK).bit_length() - 4)
        rounded = -(-max(size, _LEAST_BLOCK) // step) * step
        idle = self.pool.take(rounded)
        if idle is None:
            return Lease(self, self._range(rounded), rounded)
        idle.is_taken = True
        return Lease(self, idle.offset, rounded)

    def _range(self, size: int) -> int:
        with contextlib.suppress(KeyError, IndexError):
            return self._ranges[size].pop()
        with self._lock:
            offset = self.top
            if offset + size > self.size:
                raise EngineOutOfMemory(
                    f"A tensor of {size >> 20} MiB does not fit into the memory that is shared "
                    f"with a child process: {(self.size - offset) >> 20} MiB of it are left."
                )
            self.top += size
        return offset

    def free(self, offset: int, size: int) -> None:
        """Give the pages of a range back to the machine."""
        if self.is_open:
            give_back(self.map, offset, size)
            self._ranges.setdefault(size, []).append(offset)

    def strayed(self) -> int:
        """Count bytes beyond all that was ever leased, which only a child can have written.

        A child can write them and then look as if it held no memory: pages stay in the file.
        """
        return max(0, held_bytes(self.descriptor) - self.top)

    def trim(self) -> None:
        """Free what a child wrote where nothing was leased; to be called when it is dead."""
        if self.is_open and self.strayed():
            give_back(self.map, self.top, self.size - self.top)

    def view(self, shape: tuple[int, ...], of: np.dtype[Any], offset: int) -> Array:
        """Look at a tensor at an offset."""
        return np.ndarray(shape, of, self.map, offset)

    def lent(self, shape: tuple[int, ...], of: np.dtype[Any], lease: Lease, offset: int) -> Array:
        """Make an array that keeps its range in use."""
        return lender(shape, of)(lease, self.address + offset)

    def close(self) -> None:
        """Free what is idle; what is lent is freed with its last array."""
        self.pool.clear()
        self.is_open = False

    def before_fork(self) -> None:
        """Use nothing again that the forked process is about to see."""
        self.epoch += 1

    def after_fork(self) -> None:
        """In the forked process: keep what was lent, apart from the parent's."""
        self.is_open = False
        map_privately(self.address, self.top, self.descriptor)


def _mapped() -> tuple[int, int, mmap.mmap]:
    """Make the file and map it; a smaller one where addresses are limited."""
    size = _SIZE
    while True:
        try:
            descriptor, mapped = sealed_memory("fusewire", size)
            return descriptor, size, mapped
        except OSError as error:
            size //= 4
            if size < _LEAST_SIZE:
                raise IsolationError(
                    f"Cannot share memory with a child process: {error}. Pass isolate='first' to "
                    "run engines in this process after their first call."
                ) from error


_ARENAS: weakref.WeakSet[Arena] = weakref.WeakSet()


def _before_fork() -> None:
    for arena in list(_ARENAS):
        arena.before_fork()


def _after_fork() -> None:
    for arena in list(_ARENAS):
        arena.after_fork()


in_forked_child(_after_fork, _before_fork)
