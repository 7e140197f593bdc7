"""Shared memory: each byte has one user, and the child cannot take it away."""

import gc
import itertools
import os
from typing import Any

import numpy as np
import pytest

from fusewire.process.arena import Arena

SIZE = 300_000


def test_ranges_in_use_do_not_overlap() -> None:
    arena = Arena(5000)
    leases = [arena.lease(size) for size in (1, SIZE, SIZE, 70_000, 5 << 20) for _ in range(4)]
    ends = sorted((lease.offset, lease.offset + lease.size) for lease in leases)
    assert ends[0][0] >= 5000
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_a_range_is_used_again_when_its_last_array_is_gone() -> None:
    arena = Arena(0)
    lease = arena.lease(SIZE)
    offset = lease.offset
    view = arena.lent((SIZE,), np.dtype(np.uint8), lease, offset)[10:20]
    del lease
    other = arena.lease(SIZE)
    assert other.offset != offset
    del view
    assert arena.lease(SIZE).offset == offset


def test_a_range_that_the_garbage_collector_frees_is_used_again_once() -> None:
    arena = Arena(0)
    cycle: list[Any] = [arena.lease(SIZE)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    first, second = arena.lease(SIZE), arena.lease(SIZE)
    assert first.offset != second.offset


def test_pages_of_idle_ranges_are_freed() -> None:
    arena = Arena(0)
    lease = arena.lease(1 << 20)
    arena.view((1 << 20,), np.dtype(np.uint8), lease.offset)[:] = 1
    before = os.fstat(arena.descriptor).st_blocks
    del lease
    arena.pool.clear()
    assert os.fstat(arena.descriptor).st_blocks < before


def test_the_size_is_sealed() -> None:
    arena = Arena(0)
    for size in (0, arena.size * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, size)
