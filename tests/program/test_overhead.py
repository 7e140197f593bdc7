"""The benchmark of calls, in small: it runs, and a call does not cost a multiple of the engine's.

The bars are for a quiet machine and many rounds; here only a slip that anyone would notice shows.
"""

import pytest

from benchmarks.bare import measure
from benchmarks.overhead import ENGINES, calls_table, child

MORE_US = 20.0
TIMES = 2.5


@pytest.mark.parametrize("engine", ENGINES)
def test_calling_a_program_costs_little_more_than_calling_the_engine(engine: str) -> None:
    # Bare jax is told to run in the calling thread, for the whole process: so in one of its own.
    row = child("benchmarks.bare", engine, "tiny", "--rounds", "60") if engine == "xla" else None
    row = row or measure(engine, "tiny", 60)
    ours, bare = row["ours_us"]["p10"], row["bare_us"]["p10"]
    assert ours <= max(TIMES * bare, bare + MORE_US), calls_table([row])
