"""A short run of benchmarks/integer_expressions.py: what is proven is what engines compute."""

import pytest

from benchmarks.integer_expressions import apart

FIRST, COUNT = 0, 3


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "xla", "torch"])
def test_random_integer_expressions_end_as_on_the_reference(engine: str) -> None:
    rows = list(apart(engine, FIRST, COUNT))
    assert [row["problems"] for row in rows] == [[]] * COUNT
    assert sum(row["calls"] - row["refused"] for row in rows) > 16
    assert all(row["own_nodes"] > 0.8 * row["nodes"] for row in rows)
