"""The benchmark of threads, in small: right answers, and no memory is kept."""

import pytest

from benchmarks.threads import ENGINES, ROWS, all_engines, one_program

CALLS = 100


@pytest.mark.parametrize("size", ROWS)
@pytest.mark.parametrize("engine", ENGINES)
def test_four_threads_may_call_one_program(engine: str, size: str) -> None:
    assert not one_program(engine, size, CALLS)["problems"]


@pytest.mark.parametrize("size", ROWS)
def test_programs_on_four_engines_may_run_at_once(size: str) -> None:
    assert not all_engines(ENGINES[1:], size, CALLS)["problems"]
