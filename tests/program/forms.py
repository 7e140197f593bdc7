"""Calls that write: to a state, and to memory of the caller's; and those with buffers.

Each form makes a program, with what it is given to compile with, and a call that takes the number
of a step and returns the cache as it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fusewire as fw
from tests.program.test_updates import COLUMNS, ROWS, arrays_of, cache_graph

Compile = Callable[..., Any]
Call = Callable[[int], Any]


def cache_after(steps: int) -> Any:
    """Return the cache after so many steps."""
    expected = np.zeros((ROWS, COLUMNS), np.float32)
    for step in range(steps):
        expected[step] = step + 1
    return expected


def with_state(compiled: Compile) -> Call:
    """Write a row into a state."""
    program = compiled(cache_graph())
    cache = fw.state(np.zeros((ROWS, COLUMNS), np.float32))

    def call(step: int) -> Any:
        total, new = program(cache, *arrays_of(step))
        assert new is cache
        np.testing.assert_array_equal(total.numpy(), cache.numpy().sum(axis=0))
        return cache.numpy()

    return call


def with_out(compiled: Compile) -> Call:
    """Write the next cache over the one that was given."""
    program = compiled(cache_graph())
    cache, total = np.zeros((ROWS, COLUMNS), np.float32), np.empty(COLUMNS, np.float32)

    def call(step: int) -> Any:
        found = program(cache, *arrays_of(step), out=(total, cache))
        assert found[1] is cache
        np.testing.assert_array_equal(total, cache.sum(axis=0))
        return cache

    return call


def with_other_out(compiled: Compile) -> Call:
    """Write the next cache to memory that is no input."""
    program = compiled(cache_graph())
    caches = [np.zeros((ROWS, COLUMNS), np.float32) for _ in range(2)]
    total = np.empty(COLUMNS, np.float32)

    def call(step: int) -> Any:
        new = caches[(step + 1) % 2]
        found = program(caches[step % 2], *arrays_of(step), out=(total, new))
        assert found[1] is new
        np.testing.assert_array_equal(total, new.sum(axis=0))
        return new

    return call


def with_buffers(compiled: Compile) -> Call:
    """Give what a call returned to the next one."""
    program = compiled(cache_graph())
    caches: list[Any] = [fw.asarray(np.zeros((ROWS, COLUMNS), np.float32))]

    def call(step: int) -> Any:
        total, new = program(caches[-1], *arrays_of(step))
        caches.append(new)
        np.testing.assert_array_equal(total.numpy(), new.numpy().sum(axis=0))
        return new.numpy()

    return call


FORMS: list[Callable[[Compile], Call]] = [
    with_state,
    with_out,
    with_other_out,
    with_buffers,
]
