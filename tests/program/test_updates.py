"""Outputs that replace inputs: written over them after the run, or by the engine in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.frontend import Spec
from fusewire.ir.graph import Graph, Value
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.reduction import reduce_sum
from fusewire.ops.scatter import scatter_elements
from fusewire.program.entry import Entry
from fusewire.program.updates import in_place

ROWS, COLUMNS = 64, 96


def cache_graph(kind: str = "set") -> Graph:
    """Write a row into a cache, and use the cache as it is then."""
    cache, row = Value(Spec((ROWS, COLUMNS)).type, "cache"), Value(Spec((1, COLUMNS)).type, "row")
    place = Value(Spec((1, COLUMNS), "int64").type, "place")
    reduction = "add" if kind == "add" else "set"
    new = scatter_elements(cache, place, row, axis=0, reduction=reduction)
    used = reduce_sum(new, axes=(0,))
    if kind == "read":
        used = add(used, reduce_sum(cache, axes=(0,)))
    if kind == "computed":
        new = multiply(new, 1.0)
    return Graph([cache, place, row], [used, new], name="cache", output_names=["sum", "cache"])


def entry_of(graph: Graph, backend: str, arrays: Sequence[Any]) -> Entry:
    program = fw.compile(graph, backend=backend, level=0, fallback="error")
    # The first call is answered by a child, the second by the engine in this process.
    for _ in range(2):
        program(*[array.copy() for array in arrays])
    return replace(program.entry(tuple(arrays)), updates=((1, 0),))


def arrays_of(step: int) -> tuple[Any, Any]:
    place = np.full((1, COLUMNS), step, np.int64)
    return place, np.full((1, COLUMNS), step + 1, np.float32)


@pytest.mark.parametrize("backend", ["reference", "onnxruntime", "openvino", "xla"])
@pytest.mark.parametrize("kind", ["set", "read", "computed"])
def test_state_is_replaced_by_every_engine(backend: str, kind: str) -> None:
    cache = np.zeros((ROWS, COLUMNS), np.float32)
    entry = entry_of(cache_graph(kind), backend, [cache, *arrays_of(0)])
    for step in range(5):
        before = cache.sum(axis=0)
        total, _ = entry.run((cache, *arrays_of(step)))
        expected = cache.sum(axis=0) + (before if kind == "read" else 0)
        np.testing.assert_allclose(total, expected)
    np.testing.assert_array_equal(cache[:6, 0], [1, 2, 3, 4, 5, 0])


def test_onnx_runtime_replaces_in_place() -> None:
    cache = np.zeros((ROWS, COLUMNS), np.float32)
    entry = entry_of(cache_graph(), "onnxruntime", [cache, *arrays_of(0)])
    for step in range(3):
        total, new = entry.run((cache, *arrays_of(step)))
        assert new is cache
        # The other output is the caller's own, and later calls leave it alone.
        assert total[0] == sum(range(step + 2))
        assert not np.shares_memory(total, cache)
    other = cache.copy()
    entry.run((other, *arrays_of(9)))
    assert (cache[9, 0], other[9, 0]) == (0, 10)


def test_state_that_an_engine_cannot_take_as_it_lies_is_replaced_all_the_same() -> None:
    wide = np.zeros((ROWS, 2 * COLUMNS), np.float32)
    cache = wide[:, ::2]
    entry = entry_of(cache_graph(), "onnxruntime", [cache.copy(), *arrays_of(0)])
    entry.run((cache, *arrays_of(3)))
    np.testing.assert_array_equal(wide[3, :4], [4, 0, 4, 0])


@pytest.mark.parametrize(
    ("kind", "expected"), [("set", [(1, 0)]), ("add", []), ("read", []), ("computed", [])]
)
def test_only_what_nobody_else_reads_is_replaced_in_place(
    kind: str, expected: list[tuple[int, int]]
) -> None:
    assert in_place(cache_graph(kind), [(1, 0)]) == expected


def test_threads_have_bindings_of_their_own() -> None:
    from concurrent.futures import ThreadPoolExecutor

    entry = entry_of(
        cache_graph(), "onnxruntime", [np.zeros((ROWS, COLUMNS), np.float32), *arrays_of(0)]
    )

    def fill(seed: int) -> bool:
        cache = np.zeros((ROWS, COLUMNS), np.float32)
        for step in range(50):
            row = np.full((1, COLUMNS), seed * 100 + step, np.float32)
            entry.run((cache, np.full((1, COLUMNS), step, np.int64), row))
        return bool((cache[:50, 0] == seed * 100 + np.arange(50)).all())

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fill, range(8)))
