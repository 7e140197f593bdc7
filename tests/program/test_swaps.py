"""What users see of a program while another plan takes the place of the one that serves.

Answers under threads while plans are swapped are in tests/background.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from tests.program.states import PATIENCE, Source, X, engines, eventually

pytestmark = pytest.mark.usefixtures("store")


def _slow() -> None:
    time.sleep(0.005)


@pytest.fixture
def swapping(tmp_path: Path) -> Iterator[Any]:
    """A program of a slow function, which the reference replaces once it has been called."""
    source, registry = Source("function", tmp_path), engines()
    program = source.compiled(X, registry=registry)
    source.decide(registry)
    source.during.append(_slow)
    program.expected = source.expected
    yield program
    program.close()


def test_results_and_explanations_beside_a_swap_are_of_one_plan(swapping: Any) -> None:
    program, is_over = swapping, threading.Event()
    told: list[list[tuple[str, str, str]]] = [[], [], []]

    def watch(rows: list[tuple[str, str, str]]) -> None:
        while not is_over.is_set():
            result = program.run(X)
            np.testing.assert_allclose(result.outputs, program.expected, rtol=1e-5)
            shown = "function" if "on function," in repr(program) else "reference"
            rows.append((result.metadata["backend"], shown, program.why().backend))
            assert result.metadata["nodes"] == len(program.plan.graph.nodes)

    program(X)
    with ThreadPoolExecutor() as pool:
        watching = [pool.submit(watch, rows) for rows in told]
        assert program.wait(PATIENCE)
        # Each sees what serves now.
        counts = [len(rows) for rows in told]
        assert eventually(
            lambda: (
                any(future.done() for future in watching)
                or all(len(rows) > count + 1 for rows, count in zip(told, counts, strict=True))
            )
        )
        is_over.set()
    for future in watching:
        future.result()
    for rows in told:
        assert rows[-1] == ("reference", "reference", "reference")
        for names in zip(*rows, strict=True):
            # Nobody is told of the old plan once the new one was seen.
            assert list(names) == sorted(names)
        # A call may run what was replaced while it ran; what is asked later is not older.
        assert all(list(row) == sorted(row) for row in rows)


def test_profile_goes_on_beyond_a_swap_and_ends(swapping: Any) -> None:
    program = swapping
    with fw.profile() as profile:
        program(X)
        assert program.wait(PATIENCE)
        for _ in range(2):
            program(X)
    program(X)
    calls = [event for event in profile.events if event.kind == "call"]
    assert [event.backend for event in calls] == ["function", "reference", "reference"]
    assert "search" in [event.kind for event in profile.events]
    with fw.profile() as again:
        program(X)
    assert [event.kind for event in again.events].count("call") == 1


def test_profile_that_ends_while_engines_are_compared_is_not_in_what_settles(
    swapping: Any,
) -> None:
    program = swapping
    with fw.profile() as profile:
        program(X)
    assert program.wait(PATIENCE)
    program(X)
    assert [event.kind for event in profile.events].count("call") == 1
    with fw.profile() as again:
        program(X)
    assert [event.backend for event in again.events if event.kind == "call"] == ["reference"]
